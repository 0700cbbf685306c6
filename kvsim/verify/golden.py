"""Replays recorded decisions of a real engine and compares them request by request.

A case is a pair of files, `NAME.trace.jsonl[.gz]` (native trace) and `NAME.expected.json` (what the engine decided, under which
configuration). `exact: true`: every request's cached tokens, host tokens and preemptions, the totals, and every time within 1e-9
relative. `exact: false`: the recording itself depends on the iteration order of a set; each total must lie within the recorded spread,
widened by 2% on both sides.

The engine keeps some requests in sets, and its recordings cover five hash seeds. A case is likewise replayed under up to five orders of
those sets (`kvsim.cache.offload.order`), batch order first, and holds when one of them does; where no set matters all five are the same.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.cache.offload import OFFLOAD, Connector, HostTier
from kvsim.engine.step_time.linear import Linear
from kvsim.engine.vllm import Batch, Chains, EngineConfig, VllmEngine
from kvsim.errors import TraceError

RELATIVE = 1e-9
WIDENED = 0.02
ORDERS = 5
SUMS = ("requests", "steps", "end_s", "input_tokens", "cached_tokens", "host_tokens", "preemptions", "stored_blocks", "loaded_blocks")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of one case: `difference` is None when it holds (under set order `order`), else the first difference in batch order."""

    case: str
    exact: bool
    requests: int
    steps: int
    order: int
    difference: str | None

    @property
    def text(self) -> str:
        """What to print of it."""
        if self.difference:
            return self.difference
        return ("exact" if self.exact else "inside the recorded spread") + (f", set order {self.order}" if self.order else "")


def cases(folder: Path) -> list[Path]:
    """The `.expected.json` files of `folder`, by name; raises `TraceError` if there are none."""
    found = sorted(folder.glob("*.expected.json"))
    if not found:
        raise TraceError(f"{folder}: no *.expected.json in this folder")
    return found


def verify(folder: Path) -> Iterator[Verdict]:
    """Replay every case of `folder`."""
    for path in cases(folder):
        yield verify_case(path)


def verify_case(path: Path) -> Verdict:
    """Replay the case whose expectation is `path`; laws are checked at the end of each replay."""
    expected = read_expected(path)
    trace = read_trace(path)
    first: Verdict | None = None
    for order in range(ORDERS):
        verdict = _replay(expected, trace, order)
        if verdict.difference is None:
            return verdict
        first = first or verdict
    assert first is not None
    return first


def _replay(expected: dict[str, Any], trace: list[dict[str, Any]], order: int) -> Verdict:
    engine = build(expected, trace, order)
    engine.advance(np.inf)
    engine.check()
    rows = {int(row.tag): row for row in engine.harvest().view(np.recarray)}
    difference = None if engine.idle else "the engine stopped with requests left"
    difference = difference or _compare(expected, rows, _totals(engine, rows, trace))
    return Verdict(expected["case"], expected["exact"], len(trace), int(engine.e.state.steps[0]), order, difference)


def build(expected: dict[str, Any], trace: list[dict[str, Any]], order: int = 0) -> VllmEngine:
    """The engine of a case with its whole trace submitted, each turn waiting for the one before."""
    engine, size = expected["engine"], expected["block_size"]
    chains = Chains.of([np.asarray(line["block_ids"], np.int32) for line in trace])
    sim = VllmEngine(
        EngineConfig(size, engine["num_hbm_blocks"], engine["max_num_seqs"], engine["max_num_batched_tokens"], order_seed=order),
        chains,
        Linear(**expected["step_time_s"]).build(),
        _connector(expected["host"]),
        ids=chains.ids,
        longest_chain=max((len(line["block_ids"]) for line in trace), default=0),
    )
    column = {name: np.array([line[name] for line in trace], np.int64) for name in ("input_tokens", "output_tokens", "request_id")}
    at = np.array([line.get("arrival_s", np.nan) for line in trace])
    rows = sim.submit(
        Batch(
            chain=np.arange(len(trace)),
            prompt=column["input_tokens"],
            output=column["output_tokens"],
            at=at,
            tag=column["request_id"],
            order=column["request_id"],
            notify=np.zeros(len(trace), bool),
        )
    )
    before, last = np.full(len(trace), -1), dict[Any, int]()
    for i, line in enumerate(trace):
        before[i] = last.get(line["session_id"], -1)
        last[line["session_id"]] = i
    waits = np.isnan(at)
    delay_s = np.array([line.get("delay_s", 0.0) for line in trace])
    sim.depend(rows[waits], rows[before[waits]], delay_s[waits])
    return sim


def _connector(host: dict[str, Any] | None) -> Connector:
    if host is None:
        return Connector(HostTier(0))
    tier = HostTier(host["blocks"], host.get("policy", "lru"), host["latency"], host["d2h_per_block"], host["h2d_per_block"])
    if host["connector"] == "native":
        preset = OFFLOAD["vllm-native"](host.get("store_threshold", 0), host.get("prompt_only", True))
    else:
        preset = OFFLOAD["vllm-simple-lazy" if host["lazy"] else "vllm-simple-eager"]()
    return preset.connector(tier)  # type: ignore[no-any-return]


def read_expected(path: Path) -> dict[str, Any]:
    """What the engine decided and under which configuration. Raises `TraceError` for a file that is no recorded case."""
    try:
        expected = json.loads(path.read_bytes())
        missing = {"case", "exact", "block_size", "engine", "step_time_s", "host", "summary", "requests"} - expected.keys()
    except (ValueError, AttributeError) as error:
        raise TraceError(f"{path}: not a recorded case: {error}") from error
    if missing:
        raise TraceError(f"{path}: not a recorded case: no {', '.join(sorted(missing))}")
    return expected  # type: ignore[no-any-return]


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The requests of the case whose expectation is `path`, one mapping a line."""
    stem = path.name.removesuffix(".expected.json")
    for name, opener in ((f"{stem}.trace.jsonl.gz", gzip.open), (f"{stem}.trace.jsonl", open)):
        file = path.with_name(name)
        if file.exists():
            with opener(file, "rt") as lines:
                return [json.loads(line) for line in lines]
    raise TraceError(f"{path}: no {stem}.trace.jsonl.gz beside it")


def _totals(engine: VllmEngine, rows: dict[int, Any], trace: list[dict[str, Any]]) -> dict[str, float]:
    state, moved = engine.e.state[0], engine.e.transfers.link.way.blocks
    return {
        "requests": len(rows),
        "steps": int(state.steps),
        "end_s": float(state.clock),
        "input_tokens": sum(line["input_tokens"] for line in trace),
        "cached_tokens": sum(int(r.hbm_tokens + r.host_tokens) for r in rows.values()),
        "host_tokens": sum(int(r.external) for r in rows.values()),
        "preemptions": sum(int(r.preemptions) for r in rows.values()),
        "stored_blocks": int(moved[0]),
        "loaded_blocks": int(moved[1]),
    }


def _compare(expected: dict[str, Any], rows: dict[int, Any], totals: dict[str, float]) -> str | None:
    if not expected["exact"]:
        for name in SUMS:
            low, high = expected["spread"][name]
            if not low * (1 - WIDENED) <= totals[name] <= high * (1 + WIDENED):
                return f"{name} is {totals[name]:g}, recorded {low:g} to {high:g}"
        return None
    for want in sorted(expected["requests"], key=lambda r: (r["arrival"], r["id"])):
        row = rows.get(want["id"])
        if row is None:
            return f"request {want['id']} never ended"
        got = {
            "arrival": float(row.arrival),
            "cached_tokens": int(row.hbm_tokens + row.host_tokens),
            "host_tokens": int(row.external),
            "preemptions": int(row.preemptions),
            "first_token": float(row.first_token),
            "finish": float(row.finish),
        }
        for name, value in got.items():
            if not _same(value, want[name]):
                return f"request {want['id']}: {name} is {value!r}, recorded {want[name]!r}"
    for name in SUMS:
        if not _same(totals[name], expected["summary"][name]):
            return f"{name} is {totals[name]!r}, recorded {expected['summary'][name]!r}"
    return None


def _same(a: float, b: float) -> bool:
    return a == b if isinstance(b, int) else abs(a - b) <= RELATIVE * max(abs(a), abs(b))
