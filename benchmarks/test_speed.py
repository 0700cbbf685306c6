"""How fast the engine is. Counts are asserted, seconds only reported:

    pip install -e '.[test]'
    pytest benchmarks --benchmark-columns=min,median,rounds

The hour of AgentX traffic needs the corpus: KVSIM_SHARED names the folder that has `traces/agentx-v8-dev.jsonl.xz`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.engine.build import work_out
from kvsim.verify.golden import build, read_expected, read_trace

GOLDEN = Path(__file__).parents[1] / "tests" / "data" / "golden"
CORPUS = Path(os.environ.get("KVSIM_SHARED") or Path(__file__).parents[2] / "shared") / "traces" / "agentx-v8-dev.jsonl.xz"


def test_scheduler_steps(benchmark: Any) -> None:
    """The recorded regime `hbm-pressure`: 240 requests in 889 steps, one kernel call."""
    path = GOLDEN / "hbm-pressure.expected.json"
    expected, trace = read_expected(path), read_trace(path)

    def fresh() -> tuple[tuple[Any], dict[str, Any]]:
        return (build(expected, trace),), {}

    engines = []

    def replay(engine: Any) -> None:
        engine.advance(np.inf)
        engines.append(engine)

    benchmark.pedantic(replay, setup=fresh, rounds=30, warmup_rounds=1)
    assert {int(e.e.state.steps[0]) for e in engines} == {889}
    assert {e.calls for e in engines} == {1}
    benchmark.extra_info["steps_per_second"] = round(889 / benchmark.stats.stats.median)


@pytest.mark.parametrize("variant", ["HBM only", "HBM + DRAM"])
def test_hour_of_agentx_at_concurrency_64(benchmark: Any, variant: str) -> None:
    """Kimi-K3 on eight B300, `scenarios/agentx-b300.yaml`: one simulated hour, loading not counted."""
    if not CORPUS.exists():
        pytest.skip("the AgentX corpus is not here: set KVSIM_SHARED to its folder")
    from kvsim.scenario import load
    from kvsim.simulation import cluster_of, engine_spec, points_of, workload_of

    overrides = [f"workload.trace={CORPUS}", "workload.clients.concurrency=[64]"]
    scenario = load(Path(__file__).parents[1] / "scenarios" / "agentx-b300.yaml", overrides)
    (spec,) = (point for point in points_of(scenario) if point.variant == variant)
    built = work_out(engine_spec(spec.scenario.cluster))
    workload = workload_of(spec.scenario, built.spec.block_tokens)
    clusters = []

    def hour() -> None:
        cluster = cluster_of(spec, built, workload)
        cluster.run()
        clusters.append(cluster)

    benchmark.pedantic(hour, rounds=3, warmup_rounds=1)
    steps = {int(c.engines[0].e.state.steps[0]) for c in clusters}
    calls = {c.calls for c in clusters}
    assert len(steps) == 1
    assert len(calls) == 1
    # A kernel call for each request that is sent and each that ends, and for arrays that grow; never one a step.
    assert calls.pop() <= 3 * clusters[0].front.sent + 100
    benchmark.extra_info["steps"] = steps.pop()
    benchmark.extra_info["requests"] = clusters[0].front.sent
