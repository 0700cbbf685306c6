"""Composition root: from a scenario to its result.

Each arm (variant) runs at each concurrency; a point is built from plain values, simulated, checked against the laws and summarised.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from kvsim import __version__
from kvsim.errors import ScenarioError
from kvsim.metrics.result import Result
from kvsim.metrics.summary import Point

if TYPE_CHECKING:
    from kvsim.cluster import Cluster
    from kvsim.engine.build import EngineSpec
    from kvsim.scenario import Scenario, models
    from kvsim.workload.workload import Workload

Progress = Callable[[str, int, float], None]


@dataclass(frozen=True, slots=True)
class PointSpec:
    """One point to simulate: an arm of the scenario at one concurrency."""

    variant: str
    concurrency: int
    scenario: Scenario


def points_of(scenario: Scenario) -> list[PointSpec]:
    """Variants in their order, each at every concurrency in its order."""
    return [PointSpec(name, level, arm) for name, arm in scenario.arms() for level in arm.workload.clients.concurrency]


def run(scenario: Scenario, *, progress: Progress | None = None) -> Result:
    """Simulate every point of `scenario` (`kvsim.load` reads one from a file).

    `progress(variant, concurrency, share)` is called with the share of the point's time that is simulated, from 0 to 1.
    """
    points, tables = [], []
    for spec in points_of(scenario):
        point, columns = simulate(spec, progress)
        points.append(point)
        tables.append(columns)
    return Result(__version__, scenario.to_dict(), tuple(points), scenario.dump(), tuple(tables))


def simulate(spec: PointSpec, progress: Progress | None = None) -> tuple[Point, dict[str, Any]]:
    """(summary, request columns) of one point."""
    from kvsim.cluster import Cluster
    from kvsim.engine.build import work_out
    from kvsim.metrics.recorder import Recorder
    from kvsim.workload.clients.plan import SessionPlan

    began = time.perf_counter()
    arm, clients = spec.scenario, spec.scenario.workload.clients
    built = work_out(engine_spec(arm.cluster))
    workload = workload_of(arm, built.spec.block_tokens)
    until = float("inf") if clients.duration is None else clients.warmup + clients.duration

    def tell(now_s: float, ended: int) -> None:
        if progress is not None:
            share = ended / budget if budget else now_s / until
            progress(spec.variant, spec.concurrency, min(share, 1.0))

    budget = clients.max_sessions
    if budget is None and clients.duration is None:
        budget = workload.sessions
    cluster = Cluster(
        engines=[built.engine(workload, window_start_s=clients.warmup) for _ in range(arm.cluster.nodes)],
        workload=workload,
        plan=SessionPlan.of(workload),
        lanes=spec.concurrency,
        until_s=until,
        window_start_s=clients.warmup,
        budget=budget,
        progress=tell,
    )
    cluster.run()
    recorder = Recorder()
    recorder.extend(cluster.columns())
    recorder.check()
    tell(cluster.now_s, budget or 0)
    columns = recorder.table()
    unit_bytes = built.block_bytes / built.spec.block_tokens * workload.block_tokens * arm.cluster.gpus_per_node
    return _summary(spec, cluster, columns, until, unit_bytes, time.perf_counter() - began), columns


def _summary(spec: PointSpec, cluster: Cluster, columns: dict[str, Any], until: float, unit_bytes: float, wall_s: float) -> Point:
    from kvsim.metrics.summary import LinkUse, Unfinished, Window, summarise

    window = Window(spec.scenario.workload.clients.warmup, min(until, max(cluster.now_s, spec.scenario.workload.clients.warmup)))
    use = cluster.use()
    links = (
        {}
        if not use.has_host
        else {
            name: LinkUse(int(use.blocks[c] * unit_bytes), float(use.busy_s[c]), use.waits[c])
            for c, name in enumerate(("hbm->dram", "dram->hbm"))
        }
    )
    return summarise(
        columns,
        window,
        variant=spec.variant,
        concurrency=spec.concurrency,
        gpus=spec.scenario.cluster.nodes * spec.scenario.cluster.gpus_per_node,
        itl_counts=use.itl,
        transfers=links,
        evictions={"hbm": use.hbm_evictions} | ({"dram": use.host_evictions} if use.has_host else {}),
        unfinished=Unfinished(running=use.running, waiting=use.waiting),
        ssd=None,
        simulated_s=cluster.now_s,
        wall_s=wall_s,
    )


def engine_spec(cluster: models.Cluster) -> EngineSpec:
    """The scenario's engine in plain values."""
    from kvsim import catalog
    from kvsim.engine.build import EngineSpec, HostSpec, deployment

    d = deployment(
        cluster.model,
        cluster.hardware,
        tp=cluster.parallelism.tp,
        ep=cluster.parallelism.ep,
        weight_dtype=cluster.weight_dtype,
        kv_dtype=cluster.kv_dtype,
    )
    host, dram, engine, hbm = None, cluster.tiers.dram, cluster.engine, cluster.tiers.hbm.capacity
    if dram is not None:
        link = catalog.link(d.hardware.host_link if dram.link == "auto" else dram.link)
        host = HostSpec(
            dram.capacity.amount,
            dram.capacity.unit,
            dram.offload.parameters,
            dram.eviction.name,
            link.bandwidth,
            link.latency,
            link.per_fragment,
        )
    return EngineSpec(
        deployment=d,
        block_tokens=engine.block_tokens,
        max_num_seqs=None if engine.max_num_seqs == "auto" else engine.max_num_seqs,
        max_num_batched_tokens=None if engine.max_num_batched_tokens == "auto" else engine.max_num_batched_tokens,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        utilisation=cluster.gpu_memory_utilization,
        hbm_amount=None if hbm == "auto" else hbm.amount,
        hbm_unit="bytes" if hbm == "auto" else hbm.unit,
        host=host,
        step_time=cluster.step_time.parameters,
    )


def workload_of(arm: Scenario, block_tokens: int) -> Workload:
    """The arm's workload in cache units: the larger of the trace's block and the engine's."""
    workload = arm.workload
    if workload.trace is not None:
        loaded = _trace(workload.trace, workload.format)
    else:
        assert workload.synthetic is not None
        loaded = _synthetic(workload.synthetic.parameters, arm.seed)
    if block_tokens <= loaded.block_tokens:
        if loaded.block_tokens % block_tokens:
            raise ScenarioError(
                f"cluster.engine.block_tokens: the trace's blocks have {loaded.block_tokens} tokens, which {block_tokens} does not divide"
            )
        return loaded
    return loaded.with_block(block_tokens)


@cache
def _trace(path: str, format: str) -> Workload:
    from kvsim.workload.load import load

    return load(path, format)


@cache
def _synthetic(parameters: Any, seed: int) -> Workload:
    workload: Workload = parameters.generate(seed)
    return workload
