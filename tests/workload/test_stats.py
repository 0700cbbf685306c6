"""Statistics by hand, against published figures of the samples, and of the whole public traces."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.workload.load import load
from kvsim.workload.stats import infinite_cache, nominal_start_s, trace_stats

from .twins import infinite_hits, json_lines, lines

DATA = Path(__file__).parents[1] / "data"


def test_by_hand(tmp_path: Path) -> None:
    """Three requests of 512-token blocks: [0 1 2'], [0 1], [0 3 2''] with a partial last block where marked."""
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [0, 1, 2]},
        {"timestamp": 500, "input_length": 1024, "output_length": 3, "hash_ids": [0, 1]},
        {"timestamp": 2000, "input_length": 1100, "output_length": 2, "hash_ids": [0, 1, 2]},
        {"timestamp": 2000, "input_length": 1030, "output_length": 2, "hash_ids": [0, 3, 4]},
    ]
    (tmp_path / "t").write_bytes(lines(rows))
    w = load(tmp_path / "t", cache=False)
    cache = infinite_cache(w)
    assert cache.hit_blocks.tolist() == [0, 2, 3, 1] and cache.hit_tokens.tolist() == [0, 1024, 1100, 512]
    s = trace_stats(w)
    assert (s.requests, s.sessions, s.prompt_blocks, s.unique_blocks, s.unique_tokens) == (4, 4, 11, 5, 2560)
    assert s.theoretical_hit_rate == 6 / 11 and s.theoretical_hit_rate_tokens == (1024 + 1100 + 512) / 4254
    assert (s.duration_s, s.delay_s, s.session_duration_s) == (2.0, None, None)
    assert (s.input_tokens.sum, s.input_tokens.mean, s.input_tokens.min, s.input_tokens.p50) == (4254, 1063.5, 1024, 1065.0)
    assert (s.output_tokens.p10, s.output_tokens.p90, s.output_tokens.max) == (1.3, 2.7, 3)
    json.dumps(s.as_dict(), allow_nan=False)


def test_time_order_without_recorded_times(tmp_path: Path) -> None:
    """Turns follow their delays from the session's arrival, as if requests took no time."""
    rows = [
        {"request_id": 0, "session_id": 0, "turn": 0, "arrival_s": 1.0, "input_tokens": 1, "output_tokens": 1, "block_ids": []},
        {"request_id": 1, "session_id": 0, "turn": 1, "delay_s": 2.5, "input_tokens": 1, "output_tokens": 1, "block_ids": []},
        {"request_id": 2, "session_id": 1, "turn": 0, "delay_s": 0.5, "input_tokens": 1, "output_tokens": 1, "block_ids": []},
    ]
    (tmp_path / "t").write_bytes(lines(rows))
    w = load(tmp_path / "t", cache=False)
    assert nominal_start_s(w).tolist() == [1.0, 3.5, 0.5]
    s = trace_stats(w)
    assert (s.duration_s, s.session_duration_s, s.theoretical_hit_rate, s.theoretical_hit_rate_tokens) == (None, None, None, 0.0)


def test_mooncake_sample_against_the_file() -> None:
    rows = json_lines(DATA / "mooncake_conversation_200.jsonl.gz")
    hits = infinite_hits([r["hash_ids"] for r in rows], [r["hash_ids"] for r in rows])
    s = trace_stats(load(DATA / "mooncake_conversation_200.jsonl.gz", cache=False))
    assert s.theoretical_hit_rate == sum(hits) / sum(len(r["hash_ids"]) for r in rows)
    tokens = sum(min(512 * h, r["input_length"]) for h, r in zip(hits, rows, strict=True))
    assert s.theoretical_hit_rate_tokens == tokens / sum(r["input_length"] for r in rows)
    assert s.unique_blocks == len({b for r in rows for b in r["hash_ids"]})
    assert s.duration_s == (rows[-1]["timestamp"] - rows[0]["timestamp"]) / 1000


def test_agentx_sample_against_the_file() -> None:
    """Requests of a session in the order of their starts, its sub-agents' among them; a session shares nothing with another."""
    blocks = hits = 0
    for recorded in json_lines(DATA / "agentx_v8_sample.jsonl.xz"):
        top = recorded["requests"]
        timed = [(r["t"], r["hash_ids"]) for r in top if r["type"] != "subagent"]
        timed += [(a["t"] + r["t"], r["hash_ids"]) for a in top if a["type"] == "subagent" for r in a["requests"]]
        prompts = [ids for _, ids in sorted(timed, key=lambda pair: pair[0])]
        blocks += sum(map(len, prompts))
        hits += sum(infinite_hits(prompts, prompts))
    s = trace_stats(load(DATA / "agentx_v8_sample.jsonl.xz", cache=False))
    assert (s.prompt_blocks, s.theoretical_hit_rate) == (blocks, hits / blocks)
    assert s.duration_s is None and s.session_duration_s is not None and s.delay_s is not None


def test_answers_that_stay_cached_only_add_hits() -> None:
    w = load(DATA / "agentx_v8_sample.jsonl.xz", cache=False)
    prompts, chains = infinite_cache(w), infinite_cache(w, with_outputs=True)
    assert (chains.hit_blocks >= prompts.hit_blocks).all() and chains.hit_blocks.sum() > prompts.hit_blocks.sum()


EXPECTED = {
    "mooncake_conversation": "mooncake_conversation.jsonl.gz",
    "mooncake_synthetic": "mooncake_synthetic.jsonl.gz",
    "lmcache_miniswe": "lmcache_agent/miniswe.jsonl.gz",
    "lmcache_magagent": "lmcache_agent/magagent.jsonl.gz",
    "lmcache_taubench": "lmcache_agent/taubench.jsonl.gz",
    "lmcache_repoagent": "lmcache_agent/repoagent.jsonl.gz",
}


@pytest.mark.parametrize("trace", EXPECTED)
def test_independent_figures_of_public_traces(shared: Path, trace: str) -> None:
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        pytest.skip("too many ids for plain Python")
    with (shared / "traces" / "expected" / "trace_stats.csv").open() as file:
        want = next(row for row in csv.DictReader(file) if row["trace"] == trace)
    s = trace_stats(load(shared / "traces" / EXPECTED[trace], cache=False))
    empty = int(want["zero_in"])  # which count as one token here
    assert s.requests == int(want["requests"]) and s.block_tokens == int(want["block_size"])
    assert s.input_tokens.sum == int(want["in_sum"]) + empty and s.output_tokens.sum == int(want["out_sum"]) + int(want["zero_out"])
    assert s.prompt_blocks == int(want["blocks"]) and s.unique_blocks == int(want["unique_blocks"])
    assert s.theoretical_hit_rate == pytest.approx(float(want["inf_hit_blk"]), abs=5.1e-5)
    assert s.theoretical_hit_rate_tokens == pytest.approx(float(want["inf_hit_tok"]), abs=1e-4 if empty else 5.1e-5)
    assert s.duration_s == pytest.approx(float(want["duration_s"]), abs=0.06)
    for name, value in (
        ("in_p50", s.input_tokens.p50),
        ("in_p90", s.input_tokens.p90),
        ("in_p99", s.input_tokens.p99),
        ("in_max", s.input_tokens.max),
    ):
        assert value == pytest.approx(float(want[name]), abs=1.0 if empty else 0.06)


def test_the_large_agentx_trace(shared: Path) -> None:
    """568 of the 710 sessions whose figures are published: 373 MB unpacked, 76 million ids, read in bounded memory."""
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        pytest.skip("too many ids for plain Python")
    code = (
        "import json, sys; from pathlib import Path; from kvsim.workload.load import load; from kvsim.workload.stats import trace_stats; "
        "stats = trace_stats(load(sys.argv[1], cache=False)).as_dict(); "
        "status = dict(line.split(':', 1) for line in Path('/proc/self/status').read_text().splitlines()); "
        "print(json.dumps(stats | {'memory_kb': int(status['VmHWM'].split()[0])}))"
    )
    trace = shared / "traces" / "agentx-v8-dev.jsonl.xz"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code, str(trace)], capture_output=True, text=True, env=environment, check=True)
    s = json.loads(done.stdout)
    assert s["memory_kb"] < 1_500_000
    assert (s["requests"], s["sessions"], s["streams"], s["scope"]) == (39_432, 568, 618, "session")
    assert s["theoretical_hit_rate"] == pytest.approx(0.9634, abs=0.001)
    assert s["theoretical_hit_rate_tokens"] == pytest.approx(0.9632, abs=0.001)
    assert s["input_tokens"]["mean"] == pytest.approx(122_379, rel=0.02) and s["output_tokens"]["mean"] == pytest.approx(440, rel=0.02)
    assert s["delay_s"]["p50"] == pytest.approx(9.7, rel=0.02)


def test_the_agentx_trace_with_global_ids(shared: Path) -> None:
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        pytest.skip("too many ids for plain Python")
    neon = trace_stats(load(shared / "traces" / "agentx-neon", cache=False))
    assert neon.scope == "global" and neon.theoretical_hit_rate == pytest.approx(0.64, abs=0.001)


@pytest.mark.parametrize("case", ["host-arc", "open-loop", "identical-prompts"])
def test_recorded_traces_list_their_outputs(case: str) -> None:
    path = DATA / "golden" / f"{case}.trace.jsonl.gz"
    w = load(path, cache=False)
    rows = json_lines(path)
    assert w.listed_outputs and w.format == "native"
    assert [w.chain(i).size for i in range(w.requests)] == [len(r["block_ids"]) for r in rows]
    assert w.unique_ids == len({b for r in rows for b in r["block_ids"]})
