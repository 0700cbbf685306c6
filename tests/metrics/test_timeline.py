"""The Chrome trace: one worked by hand, the rules of the format, and what Perfetto's importer would make of it."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import LawError
from kvsim.metrics.summary import FaultSpan
from kvsim.metrics.timeline import Fills, Moves, Steps, Timeline

LINKS, TIERS = ("hbm->dram", "dram->hbm"), ("hbm", "dram")
ID, TIME = {"type": "integer", "minimum": 1, "maximum": 2**32 - 1}, {"type": "integer", "minimum": 0}
TEXT = {"type": "string", "minLength": 1}


def event(ph: str, required: list[str], **properties: Any) -> dict[str, Any]:
    """The schema of an event of type `ph`."""
    known = {"ph": {"const": ph}, "name": TEXT, "pid": ID} | properties
    return {"type": "object", "required": ["name", "ph", "pid", *required], "properties": known, "additionalProperties": False}


def args(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


NUMBERS = {"type": "object", "additionalProperties": {"type": "integer"}}
# Trace Event Format (Google): complete events need ts and dur, counters a series of numbers and no tid, metadata has no time.
SCHEMAS = {
    "X": event("X", ["tid", "ts", "dur"], tid=ID, ts=TIME, dur=TIME, args=NUMBERS),
    "C": event("C", ["ts", "args"], ts=TIME, args=args(**{"%": {"type": "number", "minimum": 0, "maximum": 100}})),
    "process_name": event("M", ["args"], args=args(name=TEXT)),
    "process_sort_index": event("M", ["args"], args=args(sort_index={"type": "integer"})),
    "thread_name": event("M", ["tid", "args"], tid=ID, args=args(name=TEXT)),
    "thread_sort_index": event("M", ["tid", "args"], tid=ID, args=args(sort_index={"type": "integer"})),
}
EVENTS = {name: jsonschema.Draft202012Validator(schema) for name, schema in SCHEMAS.items()}


def columns(kind: Any, *rows: tuple[float, ...]) -> Any:
    """`kind` of the rows, whole numbers but for times and shares."""
    names = kind.__dataclass_fields__
    table = zip(*rows, strict=True) if rows else [()] * len(names)
    real = {"start_s", "end_s", "at_s", "used"}
    return kind(*(np.array(column, float if name in real else np.int64) for name, column in zip(names, table, strict=True)))


def timeline(steps: Any = (), moves: Any = (), fills: Any = (), faults: Any = (), engines: Any = ("node 0", "node 1")) -> Timeline:
    return Timeline(engines, LINKS, TIERS, columns(Steps, *steps), columns(Moves, *moves), columns(Fills, *fills), faults)


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a file, each valid by its type."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert list(document) == ["displayTimeUnit", "traceEvents"] and document["displayTimeUnit"] in ("ms", "ns")
    for one in document["traceEvents"]:
        EVENTS[one["name"] if one["ph"] == "M" else one["ph"]].validate(one)
    return document["traceEvents"]  # type: ignore[no-any-return]


def written(line: Timeline, folder: Path) -> list[dict[str, Any]]:
    line.write(folder / "trace.json")
    return read(folder / "trace.json")


def threads(events: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Slices of each (process, thread) by name, as Perfetto makes them: names by id, events by time, ids of threads in one space."""
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    names = {e["tid"]: (processes[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert len(names) == sum(e["name"] == "thread_name" for e in events) and not names.keys() & processes.keys()
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        found[names[e["tid"]]].append(e)
    return found


def assert_flat(events: list[dict[str, Any]]) -> None:
    """No slice is open when the next of its thread begins: an importer that stacks slices never goes deeper than one."""
    for slices in threads(events).values():
        until = 0
        for e in slices:
            assert e["ts"] >= until
            until = e["ts"] + e["dur"]


STEPS = [
    # A chunk of prefill, a mixed step, three steps of two decodes, a gap, another, then one of one decode.
    (0, 1.0, 1.5, 512, 0), (0, 1.5, 2.0, 256, 1), (0, 2.0, 2.01, 0, 2), (0, 2.01, 2.02, 0, 2), (0, 2.02, 2.03, 0, 2),
    (0, 2.5, 2.51, 0, 2), (0, 2.51, 2.52, 0, 1), (1, 1.0, 1.25, 0, 7),
]  # fmt: skip
MOVES = [(0, 1, 0.5, 0.75, 4096), (0, 1, 0.75, 1.0, 100), (1, 0, 2.0, 2.5, 8)]
FILLS = [(0, 0, 0.0, 0.0), (0, 0, 1.0, 0.5), (0, 0, 1.5, 0.5009), (0, 0, 2.0, 0.501), (0, 0, 3.0, 0.4995), (1, 1, 0.5, 0.25)]
FAULTS = [FaultSpan("node 1 down", 1.25, 2.0), FaultSpan("node 1 down", 2.75, None)]


def test_the_worked_example(tmp_path: Path) -> None:
    def meta(kind: str, name: str, sort_index: int, **ids: int) -> list[dict[str, Any]]:
        return [
            {"name": f"{kind}_name", "ph": "M", **ids, "args": {"name": name}},
            {"name": f"{kind}_sort_index", "ph": "M", **ids, "args": {"sort_index": sort_index}},
        ]

    def slices(name: str, pid: int, tid: int, *rows: tuple[int, int, dict[str, int]]) -> list[dict[str, Any]]:
        return [{"name": name, "ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": shown} for ts, dur, shown in rows]

    def counts(name: str, pid: int, *rows: tuple[int, float]) -> list[dict[str, Any]]:
        return [{"name": name, "ph": "C", "pid": pid, "ts": ts, "args": {"%": percent}} for ts, percent in rows]

    assert written(timeline(STEPS, MOVES, FILLS, FAULTS), tmp_path) == [
        *meta("process", "faults", 0, pid=3),
        *meta("process", "node 0", 1, pid=1),
        *meta("process", "node 1", 2, pid=2),
        *meta("thread", "node 1 down", 0, pid=3, tid=4),
        *slices("node 1 down", 3, 4, (1_250_000, 750_000, {}), (2_750_000, 250_000, {})),
        *meta("thread", "prefill", 0, pid=1, tid=5),
        *slices("prefill", 1, 5, (1_000_000, 500_000, {"tokens": 512}), (1_500_000, 500_000, {"tokens": 256})),
        *meta("thread", "decode", 1, pid=1, tid=6),
        *slices(
            "decode", 1, 6, (1_500_000, 500_000, {"batch": 1, "steps": 1}), (2_000_000, 30_000, {"batch": 2, "steps": 3}),
            (2_500_000, 10_000, {"batch": 2, "steps": 1}), (2_510_000, 10_000, {"batch": 1, "steps": 1}),
        ),
        *meta("thread", "decode", 1, pid=2, tid=7),
        *slices("decode", 2, 7, (1_000_000, 250_000, {"batch": 7, "steps": 1})),
        *meta("thread", "dram->hbm", 3, pid=1, tid=8),
        *slices("dram->hbm", 1, 8, (500_000, 250_000, {"bytes": 4096}), (750_000, 250_000, {"bytes": 100})),
        *meta("thread", "hbm->dram", 2, pid=2, tid=9),
        *slices("hbm->dram", 2, 9, (2_000_000, 500_000, {"bytes": 8})),
        *counts("hbm in use", 1, (0, 0.0), (1_000_000, 50.0), (2_000_000, 50.1), (3_000_000, 50.0)),
        *counts("dram in use", 2, (500_000, 25.0)),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_rows_in_any_order_are_the_same_bytes(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    shuffled = ([rows[i] for i in rng.permutation(len(rows))] for rows in (STEPS, MOVES, FILLS, FAULTS))
    timeline(STEPS, MOVES, FILLS, FAULTS).write(tmp_path / name)
    before = (tmp_path / name).read_bytes()
    timeline(*shuffled).write(tmp_path / name)
    assert (tmp_path / name).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_gz_holds_the_same_text(tmp_path: Path) -> None:
    line = timeline(STEPS, MOVES, FILLS, FAULTS)
    line.write(tmp_path / "a.json")
    line.write(str(tmp_path / "b.json.gz"))
    assert (tmp_path / "b.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert gzip.decompress((tmp_path / "b.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()


STEP = st.tuples(st.floats(0, 0.3), st.sampled_from([0.0, 0.0, 0.0, 3e-7, 0.1]), st.sampled_from([0, 0, 0, 64]), st.integers(0, 2))


@given(steps=st.lists(st.tuples(st.integers(0, 1), STEP), max_size=30), moves=st.lists(st.tuples(st.integers(0, 3), STEP), max_size=20))
def test_what_holds_for_any_engine_and_link(steps: Any, moves: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    clock, rows, copies = [0.0] * 2, [], []
    for engine, (length, gap, tokens, decodes) in steps:
        start = clock[engine] + gap
        clock[engine] = start + length
        rows.append((engine, start, clock[engine], tokens, decodes))
    busy = [0.0] * 4
    for lane, (length, gap, amount, _) in moves:
        start = busy[lane] + gap
        busy[lane] = start + length
        copies.append((lane // 2, lane % 2, start, busy[lane], amount))
    events = written(timeline(rows, copies), tmp_path_factory.mktemp("any"))
    assert_flat(events)
    found = threads(events)
    # Each slice may be off by the rounding of its two ends.
    for engine in (0, 1):
        for lane, amount in (("prefill", 3), ("decode", 4)):
            its = found.get((f"node {engine}", lane), [])
            of = [r for r in rows if r[0] == engine and r[amount]]
            assert sum(e["args"].get("steps", 1) for e in its) == len(of)
            assert sum(e["dur"] for e in its) == pytest.approx(1e6 * sum(r[2] - r[1] for r in of), abs=len(of) + 1)
        assert sum(e["args"]["tokens"] for e in found.get((f"node {engine}", "prefill"), [])) == sum(r[3] for r in rows if r[0] == engine)
        for e in found.get((f"node {engine}", "decode"), []):
            inside = [r for r in rows if r[0] == engine and r[4] and e["ts"] <= 1e6 * r[1] + 1 and 1e6 * r[2] <= e["ts"] + e["dur"] + 1]
            assert e["args"]["batch"] in [r[4] for r in inside] and len(inside) >= e["args"]["steps"]
    assert sum(e["args"]["bytes"] for e in events if e["ph"] == "X" and "bytes" in e["args"]) == sum(r[4] for r in copies)


def twin_merged(rows: list[Any]) -> list[tuple[int, int, int, int]]:
    """(start, end, batch, steps) by the merge rule, step by step."""
    out: list[list[Any]] = []
    for _, start, end, tokens, decodes in rows:
        before = out[-1] if out else None
        if before and not tokens and not before[4] and before[2] == decodes and before[1] == start:
            before[1], before[3] = end, before[3] + 1
        elif decodes:
            out.append([start, end, decodes, 1, tokens])
    return [(round(1e6 * start), round(1e6 * end), batch, steps) for start, end, batch, steps, _ in out]


@given(steps=st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 0, 4]), st.sampled_from([0, 0, 0, 64]), st.integers(0, 2))))
def test_merging_is_that_of_the_twin(steps: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    clock, rows = 0, []
    for length, gap, tokens, decodes in steps:
        rows.append((0, (clock + gap) / 64, (clock + gap + length) / 64, tokens, decodes))
        clock += gap + length
    found = threads(written(timeline(rows), tmp_path_factory.mktemp("twin"))).get(("node 0", "decode"), [])
    assert [(e["ts"], e["ts"] + e["dur"], e["args"]["batch"], e["args"]["steps"]) for e in found] == twin_merged(rows)


@given(used=st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_a_counter_is_never_further_than_a_tenth_of_a_percent_from_the_truth(used: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    events = written(timeline(fills=[(0, 0, float(i), share) for i, share in enumerate(used)]), tmp_path_factory.mktemp("fill"))
    shown = {e["ts"] // 1_000_000: e["args"]["%"] for e in events if e["ph"] == "C"}
    last = shown[0]
    for i, share in enumerate(used):
        last = shown.get(i, last)
        assert last == pytest.approx(100 * share, abs=0.1 + 0.05 + 1e-6)


def test_small_changes_write_nothing(tmp_path: Path) -> None:
    events = written(timeline(fills=[(0, 0, float(i), 0.5 + 0.0004 * (i % 3)) for i in range(1000)]), tmp_path)
    assert sum(e["ph"] == "C" for e in events) == 1


def test_noise_of_floats_is_neither_a_gap_nor_an_overlap(tmp_path: Path) -> None:
    noisy = 0.1 + 0.2
    early = np.nextafter(1e-6 * 1000.5, 0)
    events = written(timeline([(0, 0.0, 0.3, 0, 4), (0, noisy, 0.5, 0, 4)], [(0, 0, 0.0, 0.0010005, 1), (0, 0, early, 0.002, 1)]), tmp_path)
    assert_flat(events)
    (decode,) = threads(events)["node 0", "decode"]
    assert (decode["ts"], decode["dur"], decode["args"]["steps"]) == (0, 500_000, 2)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"steps": [(0, 0.0, 1.0, 8, 0), (0, 0.5, 2.0, 8, 0)]}, r"prefill of node 0 overlaps itself: 0.0 to 1.0 s, and 0.5 to 2.0 s"),
        ({"steps": [(1, 0.0, 1.0, 0, 1), (1, 0.99, 2.0, 0, 1)]}, "decode of node 1 overlaps itself"),
        ({"moves": [(0, 1, 0.0, 5.0, 1), (0, 1, 1.0, 2.0, 1)]}, "dram->hbm of node 0 overlaps itself"),
        ({"moves": [(0, 1, 2.0, 1.0, 1)]}, "dram->hbm of node 0 goes from 2.0 to 1.0 s"),
        ({"steps": [(0, 0.0, np.nan, 8, 0)]}, "goes from 0.0 to nan s"),
        ({"fills": [(0, 1, 1.0, 1.01)]}, "dram is filled to 1.01 at 1.0 s"),
        ({"fills": [(0, 1, 1.0, -0.1)]}, "dram is filled to -0.1"),
    ],
)
def test_broken_laws_are_named_and_leave_no_file(rows: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(LawError, match=said):
        timeline(**rows).write(tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())


def test_two_links_two_engines_and_the_two_lanes_may_overlap(tmp_path: Path) -> None:
    moves = [(engine, link, 0.0, 1.0, 1) for engine in (0, 1) for link in (0, 1)]
    events = written(timeline([(0, 0.0, 1.0, 8, 3), (1, 0.0, 1.0, 8, 3)], moves), tmp_path)
    assert len(threads(events)) == 8
    assert_flat(events)


def test_faults_of_a_kind_that_overlap_have_threads_of_their_own(tmp_path: Path) -> None:
    spans = [FaultSpan("slow", 0.0, 4.0), FaultSpan("slow", 1.0, 2.0), FaultSpan("lossy", 1.0, 2.0), FaultSpan("slow", 3.0, 5.0)]
    events = written(timeline(faults=spans), tmp_path)
    tids = [(e["args"]["name"], e["tid"]) for e in events if e["name"] == "thread_name"]
    on = {tid: [(e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == tid] for _, tid in tids}
    assert [(name, on[tid]) for name, tid in tids] == [
        ("slow", [(0, 4_000_000)]),
        ("lossy", [(1_000_000, 1_000_000)]),
        ("slow", [(1_000_000, 1_000_000), (3_000_000, 2_000_000)]),
    ]


def test_names_may_hold_anything(tmp_path: Path) -> None:
    name = 'a "100 %d" node, Zürich \\ \n%'
    events = written(timeline([(0, 0.0, 1.0, 8, 3)], faults=[FaultSpan(name, 0.0, 1.0)], engines=(name,)), tmp_path)
    assert {process for process, _ in threads(events)} == {name, "faults"}
    assert next(e["name"] for e in events if e["ph"] == "X") == name


def test_nothing_is_a_valid_file_with_the_engines_named(tmp_path: Path) -> None:
    assert [e["args"].get("name") for e in written(timeline(), tmp_path)] == ["node 0", None, "node 1", None]
    assert written(timeline(engines=()), tmp_path) == []


def test_blocks_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = timeline(STEPS, MOVES, FILLS, FAULTS)
    events = written(line, tmp_path)
    monkeypatch.setattr("kvsim.metrics.timeline.LINES_A_BLOCK", 2)
    assert written(line, tmp_path) == events


@pytest.mark.parametrize("rows", [{"steps": [(2, 0.0, 1.0, 1, 1)]}, {"moves": [(0, 2, 0.0, 1.0, 1)]}, {"fills": [(0, -1, 0.0, 1.0)]}])
def test_what_has_no_name_is_refused(rows: Any) -> None:
    with pytest.raises(ValueError, match="but 2 names"):
        timeline(**rows)


def test_columns_of_different_lengths_and_empty_names_are_refused() -> None:
    three, two = np.zeros(3), np.zeros(2)
    with pytest.raises(ValueError, match="Steps needs columns of one dimension and one length"):
        Steps(three, three, two, three, three)
    with pytest.raises(ValueError, match="Fills needs columns of one dimension"):
        Fills(*[np.zeros((2, 2))] * 4)
    with pytest.raises(ValueError, match="an empty engine name"):
        timeline(engines=("node 0", ""))
