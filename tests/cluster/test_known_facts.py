"""What is known of KV caches in clusters, from practice, holds in the simulator too: each test states a fact and checks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvsim
from kvsim.metrics.summary import Point
from kvsim.simulation import points_of, simulate
from tests.cluster.conftest import BLOCK, TIERS, Shape, run, workload_of

pytestmark = pytest.mark.slow_without_jit

PREFIX_TOKENS = 8000
AGENTS = f"""
seed: 42
workload:
  synthetic:
    kind: agentic
    sessions: 160
    prefix_tokens: {PREFIX_TOKENS}
    first_tokens: {{median: 12000, sigma: 0.8}}
    turns: {{median: 24, sigma: 0.7}}
    max_turns: 100
    new_tokens: {{median: 700, sigma: 1.3}}
    output_tokens: {{median: 200, sigma: 0.7}}
    tool_gap_s: {{median: 8, sigma: 0.6}}
    human_gap_s: {{median: 60, sigma: 0.8}}
    compact_at_tokens: 100000
    max_context: 110000
  clients: {{mode: closed-loop, concurrency: 8, warmup: 300s, duration: 300s}}
cluster:
  hardware: h100
  model: llama-3.1-8b
  engine: {{kind: vllm, block_tokens: 64}}
"""
HBM = {"cluster.tiers.hbm.capacity": "440k tokens"}  # what is left on one H100
Facts = Callable[..., tuple[Point, dict[str, Any]]]


@pytest.fixture
def agents(tmp_path: Path) -> Facts:
    """Runs coding agents against one H100 at a concurrency, with overrides by dotted path: the point and its columns in the window."""
    file = tmp_path / "agents.yaml"
    file.write_text(AGENTS)

    def simulated(concurrency: int, **overrides: Any) -> tuple[Point, dict[str, Any]]:
        changes = {**HBM, "workload.clients.concurrency": concurrency, **overrides.pop("set", {})}
        return simulated_point(file, changes)

    return simulated


def simulated_point(file: Path, changes: dict[str, Any]) -> tuple[Point, dict[str, Any]]:
    """The one point of a scenario, and the rows that count for it."""
    scenario = kvsim.load(file, overrides=[f"{path}={value}" for path, value in changes.items()])
    (spec,) = points_of(scenario)
    point, columns = simulate(spec)
    inside = (columns["finish_s"] >= point.simulated_s - point.duration_s) & ~columns["rejected"]
    return point, {name: column[inside] for name, column in columns.items()}


def dram(tokens: str, offload: str = "vllm-simple-eager") -> dict[str, Any]:
    """Overrides for a DRAM tier."""
    return {"cluster.tiers.dram": f"{{capacity: {tokens} tokens, offload: {offload}}}"}


def known(value: float | None) -> float:
    """A figure that must not be null."""
    assert value is not None
    return value


def throughput(point: Point) -> float:
    """Total tokens a second and GPU."""
    return known(point.throughput.total_tok_s_per_gpu)


def test_round_robin_loses_what_sticky_sessions_keep(agents: Facts) -> None:
    """Over eight replicas round-robin loses most of the hit rate that sticky sessions have beyond the prefix that all sessions share.

    The shared prefix is soon on every node, with any router. The rest, a session's own history, is after a turn on one of eight.
    """
    eight = {"cluster.nodes": 8, "workload.clients.warmup": "180s"}
    robin, _ = agents(64, set={**eight, "cluster.router": "round-robin"})
    sticky, _ = agents(64, set={**eight, "cluster.router": "session-hash"})
    own = [known(p.hit_rate.total) - p.requests * PREFIX_TOKENS / p.input_tokens for p in (robin, sticky)]
    assert known(sticky.hit_rate.total) > 0.95 * known(sticky.hit_rate.theoretical)
    assert 0 < own[0] < 0.5 * own[1]
    assert known(robin.missed.elsewhere) > 0.1 > known(sticky.missed.elsewhere)


@pytest.mark.parametrize("offload", ["vllm-native", "vllm-simple-eager"])
def test_dram_smaller_than_hbm_is_of_no_use(agents: Facts, offload: str) -> None:
    """Write-through DRAM well below the size of HBM gets almost no hits: what it still has, HBM has too. A larger one does get them.

    At half of HBM's size. Near its size DRAM does get some under load: HBM is full of running requests then.
    """
    small, large = (agents(20, set=dram(size, offload))[0] for size in ("220k", "3520k"))
    assert known(small.hit_rate.dram) < 0.03
    assert known(large.hit_rate.dram) > 0.2
    assert known(large.hit_rate.total) > known(small.hit_rate.total) + 0.15


def test_offload_pays_past_the_knee_only(agents: Facts) -> None:
    """While live contexts fit into HBM, DRAM below it changes throughput by under 5%; far past that point, by a multiple."""
    below, past = ([throughput(agents(n, set=tier)[0]) for tier in ({}, dram("3520k"))] for n in (6, 28))
    assert below[1] == pytest.approx(below[0], rel=0.05)
    assert past[1] > 2 * past[0]


def test_dram_recovers_twenty_to_thirty_points_of_agentx(shared: Path) -> None:
    """At a point of highest throughput of HBM alone, DRAM recovers 20 to 30 points of hit rate on AgentX traffic.

    MiniMax-M3 in NVFP4 on two B200 (1.1M tokens of KV) at 14 session trees: HBM alone is at 99% of its highest throughput, which it has
    from 12 to 15 trees, and hits 67%; with DRAM it is 95%.
    """
    changes = {
        "workload.trace": shared / "traces" / "agentx-v8-dev.jsonl.xz",
        "cluster.hardware": "b200",
        "cluster.gpus_per_node": 2,
        "cluster.parallelism.tp": 2,
        "cluster.model": "minimax-m3-nvfp4",
        "cluster.tiers.dram": "{capacity: 774GB, offload: vllm-simple-eager}",
        "variants": "{}",
    }
    file = Path(kvsim.__file__).parents[1] / "scenarios" / "agentx-b300.yaml"

    def at(trees: int, more: dict[str, Any]) -> Point:
        clients = {"workload.clients": f"{{mode: agentx, concurrency: {trees}}}"}
        return simulated_point(file, {**changes, **clients, **more})[0]

    hbm_only = {n: at(n, {"cluster.tiers.dram": "null"}) for n in (10, 12, 14, 16, 20)}
    with_dram = at(14, {})
    assert throughput(hbm_only[14]) > 0.95 * max(map(throughput, hbm_only.values()))
    assert 0.20 <= known(with_dram.hit_rate.total) - known(hbm_only[14].hit_rate.total) <= 0.30


def test_a_shared_pool_makes_round_robin_nearly_as_good_as_sticky_sessions(agents: Facts) -> None:
    """With a pool that all nodes share, round-robin hits within three points of sticky sessions, and far above itself without."""
    eight = {"cluster.nodes": 8, "workload.clients.warmup": "180s"}
    pool = {"cluster.tiers.pool": "{capacity: 16M tokens}"}
    robin, _ = agents(64, set={**eight, "cluster.router": "round-robin"})
    pooled, _ = agents(64, set={**eight, **pool, "cluster.router": "round-robin"})
    sticky, _ = agents(64, set={**eight, "cluster.router": "session-hash"})
    assert known(pooled.hit_rate.total) == pytest.approx(known(sticky.hit_rate.total), abs=0.03)
    assert known(pooled.hit_rate.total) > known(robin.hit_rate.total) + 0.3
    assert known(pooled.throughput.requests_s) > 0.95 * known(sticky.throughput.requests_s)
    assert known(pooled.ttft_s.p50) < known(robin.ttft_s.p50)


def test_what_changes_the_hit_rate_changes_the_timing(agents: Facts) -> None:
    """The more DRAM at the knee, the more hits, the shorter the time to first token, the higher the throughput, all in the same runs.

    And within a run: a turn that DRAM has the history of gets its first token sooner than one whose history was evicted.
    """
    runs = [agents(24, set=dram(size)) for size in ("440k", "660k", "880k", "3520k")]
    hits, ttft, rate = zip(*((known(p.hit_rate.total), known(p.ttft_s.mean), throughput(p)) for p, _ in runs), strict=True)
    assert list(hits) == sorted(hits) and hits[3] > hits[0] + 0.3
    assert list(ttft) == sorted(ttft, reverse=True) and ttft[3] < ttft[0] / 2
    assert list(rate) == sorted(rate) and rate[3] > 1.5 * rate[0]
    rows = runs[1][1]
    waited = rows["first_token_s"] - rows["scheduled_s"] + rows["load_s"]
    loaded, evicted = rows["dram_tokens"] > 20_000, rows["missed_evicted"] + rows["missed_not_stored"] > 20_000
    assert loaded.sum() >= 10 and evicted.sum() >= 10
    assert np.median(waited[loaded & ~evicted]) < np.median(waited[evicted & ~loaded]) / 2


def test_an_ssd_keeps_the_hit_rate_where_users_outgrow_dram(agents: Facts) -> None:
    """With few users DRAM needs no SSD below it; with many more than it can hold its hit rate collapses, and the SSD keeps most of it."""
    host = dram("880k", "vllm-native")
    ssd = {"cluster.tiers.ssd": "{capacity: 32M tokens, drives: 2}"}
    idle = {
        "workload.synthetic.human_share": 1.0,
        "workload.synthetic.human_gap_s": "{median: 180, sigma: 0.5}",
        "workload.synthetic.first_tokens": "{median: 30000, sigma: 0.5}",
        "workload.clients.warmup": "600s",
        "workload.clients.duration": "600s",
    }
    few = [known(agents(8, set={**idle, **host, **more})[0].hit_rate.total) for more in ({}, ssd)]
    alone, with_ssd = (agents(64, set={**idle, **host, **more})[0] for more in ({}, ssd))
    assert few[0] == pytest.approx(few[1], abs=0.02)
    assert known(alone.hit_rate.total) < 0.5 * few[0]
    assert known(with_ssd.hit_rate.total) > 0.8 * known(with_ssd.hit_rate.theoretical)
    assert known(with_ssd.hit_rate.ssd) > 0.2


def test_throughput_per_gpu_counts_all_gpus_of_a_split(agents: Facts) -> None:
    """Tokens a second and GPU of a split are over the GPUs of prefill and decode nodes: the measure of which one wins."""
    split = {"cluster.nodes": 3, "cluster.gpus_per_node": 2, "cluster.parallelism.tp": 2, "cluster.split": "{prefill: 1, decode: 2}"}
    point, rows = agents(12, set=split)
    tokens = int(rows["input_tokens"].sum() + rows["output_tokens"].sum())
    assert throughput(point) == pytest.approx(tokens / point.duration_s / 6)
    assert set(rows["node"].tolist()) == {0} and set(rows["decode_node"].tolist()) == {1, 2}


LATENCY_S, UP_S, STEP_S, TOKEN_S = 0.25, 0.02, 0.5, 0.01


@pytest.mark.parametrize("tiers", ["native-lru", "simple-eager"])
def test_a_hit_that_is_counted_is_a_hit_that_is_timed(tiers: str) -> None:
    """A hit in DRAM lowers the computed tokens one for one, stands in the request's load time, and on the link with its bytes.

    Between the two turns of a session another one fills all of HBM. By hand: without DRAM the second turn takes a step and the time of its
    whole prompt; with it, the load of the first turn's blocks, and a step with the time of the rest.
    """
    first, second, hbm = 24 * BLOCK, 26 * BLOCK, 30
    w = workload_of([[(0.0, first, 1), (200.0, second, 1)], [(100.0, hbm * BLOCK - 2, 2)]])
    times: dict[str, Any] = {"step": (STEP_S, TOKEN_S, 0.0, 0.0), "latency_s": LATENCY_S, "host_s": (0.01, UP_S)}
    _, cold = run(Shape(hbm=hbm, max_batched=1024, **times), w)
    cluster, warm = run(Shape(TIERS[tiers], hbm=hbm, host=200, max_batched=1024, **times), w)
    load_s = LATENCY_S + UP_S * first / BLOCK
    np.testing.assert_array_equal(warm["dram_tokens"], [0, first, 0])
    np.testing.assert_array_equal(cold["computed_tokens"] - warm["computed_tokens"], warm["dram_tokens"])
    np.testing.assert_allclose(warm["load_s"], [0, load_s, 0])
    np.testing.assert_allclose(_ttft(cold)[1], STEP_S + TOKEN_S * second)
    np.testing.assert_allclose(_ttft(warm)[1], load_s + STEP_S + TOKEN_S * (second - first))
    assert cluster.use().ways["host"].blocks[1] * BLOCK == first


def _ttft(rows: dict[str, Any]) -> Any:
    return rows["first_token_s"] - rows["arrival_s"]


def test_hits_are_on_the_link(agents: Facts) -> None:
    """Whole runs too: bytes brought up are the tokens hit in DRAM times the KV of a token, and each such request waited for its own."""
    whole = {"workload.clients.warmup": "0s", "workload.clients.duration": "null", "workload.clients.max_sessions": 24}
    point, rows = agents(20, set={**dram("3520k"), **whole})
    per_token = 2 * 32 * 8 * 128 * 2  # K and V of 32 layers with 8 heads of 128, in BF16
    assert point.preemptions == 0
    assert point.transfers["dram->hbm"].bytes == rows["dram_tokens"].sum() * per_token > 0
    hit = rows["dram_tokens"] > 0
    assert (rows["load_s"][~hit] == 0).all()
    assert (rows["load_s"][hit] >= rows["dram_tokens"][hit] * per_token / 53e9).all()
    assert (rows["load_s"] <= rows["scheduled_s"] - rows["arrival_s"] + 1e-9).all()
    np.testing.assert_array_equal(rows["computed_tokens"], rows["input_tokens"] - rows["hbm_tokens"] - rows["dram_tokens"])
