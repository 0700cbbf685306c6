"""Laws over generated workloads: whatever the sessions, the pool and the connector, nothing is lost, counted twice or seen too early."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsim.cache.offload import OFFLOAD
from kvsim.metrics.recorder import HITS
from tests.clients.test_closed_loop import cluster, native, table

sessions = st.lists(
    st.lists(st.tuples(st.floats(0, 6), st.integers(1, 120), st.integers(1, 25)), min_size=1, max_size=4), min_size=1, max_size=8
)


def growing(raw: list[list[tuple[float, int, int]]]) -> list[list[tuple[float, int, int]]]:
    """Turns that re-send the ones before: prompts add up."""
    out = []
    for turns in raw:
        n, made = 0, []
        for delay, more, answer in turns:
            made.append((delay, n + more, answer))
            n += more + answer
        out.append(made)
    return out


@pytest.mark.slow_without_jit
@pytest.mark.parametrize("host", [None, *sorted(OFFLOAD)])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=sessions, lanes=st.integers(1, 6), blocks=st.integers(40, 90), host_blocks=st.integers(2, 120), shared=st.integers(0, 3))
def test_nothing_is_lost(tmp_path: Path, host: str | None, raw: list, lanes: int, blocks: int, host_blocks: int, shared: int) -> None:  # type: ignore[type-arg]
    workload = native(tmp_path, growing(raw), shared)
    c = cluster(workload, lanes, blocks=blocks, host=(host, host_blocks) if host else None)
    t = table(c)  # checks rows, pools, references and transfers
    assert sorted(t["request"]) == list(range(workload.requests))
    hits = sum(t[name] for name in HITS)
    assert (hits <= t["theoretical_tokens"] + 15).all()
    assert (hits < t["input_tokens"]).all()
    own = t["session"] * 100 + t["turn"]
    order = np.argsort(own)
    previous = order[:-1][np.diff(own[order]) == 1]
    following = order[1:][np.diff(own[order]) == 1]
    delays = workload.delay_s[t["request"][following]]
    np.testing.assert_array_equal(t["arrival_s"][following], t["finish_s"][previous] + delays)


def one_after_another(tmp_path: Path) -> list[list[tuple[float, int, int]]]:
    rng = np.random.default_rng(3)
    return growing([[(1.0, int(rng.integers(16, 200)), 4) for _ in range(5)] for _ in range(8)])


def test_hits_never_fall_as_hbm_grows(tmp_path: Path) -> None:
    """LRU, one queue, fixed order: sessions take turns, 12 s apart, and every answer takes 4 s whatever it hits."""
    rng = np.random.default_rng(3)
    raw = [[(0.0, 20, 4), (10.0 + 12 * s, 150, 4), *((200.0, int(rng.integers(16, 160)), 4) for _ in range(4))] for s in range(8)]
    workload = native(tmp_path, growing(raw), shared=0)
    runs = [table(cluster(workload, 8, blocks=blocks)) for blocks in (60, 90, 120, 160, 200, 300, 1000)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run["arrival_s"], runs[0]["arrival_s"])
    totals = [int(run["hbm_tokens"].sum()) for run in runs]
    assert totals == sorted(totals)
    assert totals[0] < totals[2] < totals[-1]


def test_an_unbounded_pool_hits_all_that_was_met(tmp_path: Path) -> None:
    workload = native(tmp_path, one_after_another(tmp_path), shared=4)
    t = table(cluster(workload, 1, blocks=100_000))
    assert (t["missed_evicted"] == 0).all()
    # What is left is the block that is always recomputed.
    assert (t["theoretical_tokens"] - t["hbm_tokens"] <= 16).all()


def test_a_tier_of_no_size_is_no_tier(tmp_path: Path) -> None:
    from kvsim import load, run

    scenario = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
    short = ["workload.clients.concurrency=[24]", "workload.clients.duration=30s", "workload.clients.warmup=0s"]
    nothing = run(load(scenario, [*short, "variants={A: {cluster.tiers.dram: null}, B: {cluster.tiers.dram.capacity: 0}}"]))
    a, b = nothing.requests
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.slow_without_jit
def test_interactive_law() -> None:
    """Closed loop: N = X (R + Z). Sessions of one length; X of sessions and their mean time in the system give back the lanes."""
    from kvsim import load, run

    scenario = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
    chosen = ["workload.clients.concurrency=[12]", "workload.clients.duration=3000s", "workload.clients.warmup=0s", "variants={A: {}}"]
    (t,) = run(load(scenario, chosen)).requests
    begin = {s: t["arrival_s"][t["session"] == s].min() for s in np.unique(t["session"])}
    end = {s: t["finish_s"][t["session"] == s].max() for s in begin}
    lanes = {s: t["lane"][t["session"] == s][0] for s in begin}
    whole = sum(end[s] - begin[s] for s in begin) / 3000.0
    assert whole == pytest.approx(12, rel=0.06)  # the gap before a session's first request, and sessions cut at the end
    for lane in range(12):
        spans = sorted((begin[s], end[s]) for s in begin if lanes[s] == lane)
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans))


def test_same_scenario_same_bytes(tmp_path: Path) -> None:
    from kvsim import load, run

    scenario = Path(__file__).parents[2] / "scenarios" / "quickstart.yaml"
    chosen = ["workload.clients.concurrency=[32]", "workload.clients.duration=40s", "workload.clients.warmup=10s"]
    for name in "ab":
        run(load(scenario, chosen)).write(tmp_path / name)
    assert (tmp_path / "a" / "requests.parquet").read_bytes() == (tmp_path / "b" / "requests.parquet").read_bytes()
    assert (tmp_path / "a" / "scenario.yaml").read_bytes() == (tmp_path / "b" / "scenario.yaml").read_bytes()
