"""Composition root: from a scenario to its result.

Each arm (variant) runs at each concurrency; a point is built from plain values, simulated, checked against the laws and summarised.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim import __version__
from kvsim.errors import ScenarioError
from kvsim.metrics.result import Result
from kvsim.metrics.summary import Point

if TYPE_CHECKING:
    from kvsim.cluster import Cluster
    from kvsim.engine.build import Built, EngineSpec
    from kvsim.router import Router
    from kvsim.scenario import Scenario
    from kvsim.scenario.cluster import Cluster as Setting
    from kvsim.workload.clients import Client
    from kvsim.workload.workload import Workload

Progress = Callable[[str, int | None, float], None]


@dataclass(frozen=True, slots=True)
class PointSpec:
    """One point to simulate: an arm of the scenario at one concurrency (None: its clients have none)."""

    variant: str
    concurrency: int | None
    scenario: Scenario


def points_of(scenario: Scenario) -> list[PointSpec]:
    """Variants in their order, each at every concurrency in its order."""
    return [PointSpec(name, level, arm) for name, arm in scenario.arms() for level in arm.workload.clients.levels]


def run(scenario: Scenario, *, progress: Progress | None = None, timeline: Path | None = None) -> Result:
    """Simulate every point of `scenario` (`kvsim.load` reads one from a file).

    `progress(variant, concurrency, share)` is called with the share of the point's time that is simulated, from 0 to 1. `timeline`: a file
    that gets a Chrome trace; of several points each gets its own (see `timeline_path`).
    """
    points, tables = [], []
    specs = points_of(scenario)
    for spec in specs:
        point, columns = simulate(spec, progress, timeline_path(timeline, spec, len(specs)))
        points.append(point)
        tables.append(columns)
    return Result(__version__, scenario.to_dict(), tuple(points), scenario.dump(), tuple(tables))


def timeline_path(asked: Path | None, spec: PointSpec, points: int) -> Path | None:
    """The timeline file of one of `points` points: the one asked for, or beside it one that is named by variant and concurrency."""
    if asked is None or points == 1:
        return asked
    stem, dot, suffix = asked.name.partition(".")
    point = spec.variant if spec.concurrency is None else f"{spec.variant} {spec.concurrency}"
    return asked.with_name(f"{stem}-{re.sub(r'[^A-Za-z0-9]+', '-', point).strip('-')}{dot}{suffix}")


def simulate(spec: PointSpec, progress: Progress | None = None, timeline: Path | None = None) -> tuple[Point, dict[str, Any]]:
    """(summary, request columns) of one point; `timeline`: a file for what happened when."""
    from kvsim.engine.build import work_out
    from kvsim.metrics.recorder import Recorder

    began = time.perf_counter()
    built = work_out(engine_spec(spec.scenario.cluster))
    workload = workload_of(spec.scenario, built.spec.block_tokens)
    cluster = cluster_of(spec, built, workload, progress, traced=timeline is not None)
    cluster.run()
    recorder = Recorder()
    recorder.extend(cluster.columns())
    recorder.check()
    if progress is not None:
        progress(spec.variant, spec.concurrency, 1.0)
    columns = recorder.table()
    if timeline is not None:
        unit = built.block_bytes * built.spec.deployment.tp * built.scale(workload)
        cluster.timeline(unit).write(timeline)
    return _summary(spec, cluster, built, columns, time.perf_counter() - began), columns


def cluster_of(spec: PointSpec, built: Built, workload: Workload, progress: Progress | None = None, *, traced: bool = False) -> Cluster:
    """The cluster of a point, ready to run."""
    from kvsim.cluster import Cluster, Plan
    from kvsim.engine.build import Role

    cluster, split = spec.scenario.cluster, spec.scenario.cluster.split
    dp = cluster.parallelism.dp
    prefillers = None if split is None else split.prefill * dp
    roles = [Role()] * (split.prefill if split else cluster.nodes)
    roles += [Role(caches=False, prefix_cache=split.decode_prefix_cache)] * split.decode if split else []
    workers = cluster.nodes * dp
    commons = built.commons(workload, cluster.nodes)
    first = _router(spec, built, workload, cluster.router.parameters, "both" if split is None else "prefill", prefillers or workers)
    second = None if split is None else _router(spec, built, workload, split.router.parameters, "decode", split.decode * dp)
    logged = any(router is not None and router.cache is not None for router in (first, second))
    return Cluster(
        Plan(
            engine=built.maker(workload, commons, roles, logged=logged, traced=traced),
            commons=commons,
            node_of=[w // dp for w in range(workers)],
            groups=built.groups(workers),
            prefillers=prefillers,
            router=first,
            second_router=second,
            client=_client(spec, workload),
            faults=_faults(spec.scenario),
            traced=traced,
        ),
        workload,
        _teller(spec, workload, progress),
    )


def _router(spec: PointSpec, built: Built, workload: Workload, parameters: Any, role: Any, workers: int) -> Router:
    from kvsim.rng import stream
    from kvsim.router import Setting

    scale = built.scale(workload)
    nic = built.spec.nic
    made: Router = parameters.build(
        Setting(
            workers=workers,
            role=role,
            block_tokens=workload.block_tokens,
            hbm_blocks=int(built.hbm_blocks / scale),
            max_num_batched_tokens=built.max_num_batched_tokens,
            ids=workload.unique_ids,
            rng=stream(spec.scenario.seed, "router", role),
            prefill_s=built.prefill_s,
            copy_s=0.0 if nic is None else built.block_bytes * scale / nic.up,
        )
    )
    return made


def _client(spec: PointSpec, workload: Workload) -> Callable[[Any, Any], Client]:
    from kvsim.rng import stream
    from kvsim.workload.clients.agentx import AgentX
    from kvsim.workload.clients.closed_loop import ClosedLoop
    from kvsim.workload.clients.open_loop import OpenLoop
    from kvsim.workload.clients.plan import SessionPlan

    clients, plan, seed = spec.scenario.workload.clients, SessionPlan.of(workload), spec.scenario.seed
    budget = clients.max_sessions
    if budget is None and clients.window_s is None:
        budget = workload.sessions
    if clients.mode == "closed-loop":
        assert spec.concurrency is not None
        lanes = spec.concurrency
        return lambda env, server: ClosedLoop(env, workload, plan, server, lanes, budget, clients.warmup, clients.duration)
    if clients.mode == "open-loop":
        return lambda env, server: OpenLoop(
            env,
            workload,
            plan,
            server,
            arrivals=clients.arrivals,
            rate=clients.rate,
            time_scale=clients.time_scale,
            rng=stream(seed, "arrivals"),
            warmup_s=clients.warmup,
            duration_s=clients.duration,
            budget=budget,
        )
    assert spec.concurrency is not None
    trees = spec.concurrency
    return lambda env, server: AgentX(
        env,
        workload,
        plan,
        server,
        lanes=trees,
        seed=seed,
        duration_s=clients.window_s,
        max_context_tokens=clients.max_context,
        max_sessions=clients.max_sessions,
    )


def _faults(scenario: Scenario) -> list[Any]:
    from kvsim.cluster.faults import Fault

    return [Fault(f.kind, f.at, f.until, f.node or 0, f.factor or 1.0, f.link or "host") for f in scenario.faults]


def _teller(spec: PointSpec, workload: Workload, progress: Progress | None) -> Callable[[float, int], None] | None:
    """Tells `progress` how far a point is: by time where the window has an end, else by sessions."""
    if progress is None:
        return None
    clients = spec.scenario.workload.clients
    budget, end = clients.max_sessions or workload.sessions, clients.warmup + (clients.window_s or 0.0)

    def tell(now_s: float, ended: int) -> None:
        share = now_s / end if clients.window_s is not None else ended / budget
        progress(spec.variant, spec.concurrency, min(share, 1.0))

    return tell


WAYS = {"host": ("hbm->dram", "dram->hbm"), "ssd": ("ssd write", "ssd read"), "nic": ("nic out", "nic in")}


def _summary(spec: PointSpec, cluster: Cluster, built: Built, columns: dict[str, Any], wall_s: float) -> Point:
    from kvsim.metrics.summary import LinkUse, SsdUse, Unfinished, Window, summarise

    start = cluster.window_start_s
    window = Window(start, max(cluster.now_s, start))
    use, setting = cluster.use(), spec.scenario.cluster
    scale = built.scale(cluster.workload)
    # A block on a GPU's link is its share of KV, times the GPUs that move theirs side by side.
    unit = {
        "host": built.block_bytes * setting.parallelism.tp,
        "nic": built.block_bytes * setting.parallelism.tp,
        "ssd": built.distinct_bytes,
    }
    links = {
        name: LinkUse(int(count.blocks[w] * unit[kind] * scale), float(count.busy_s[w]), count.waits[w])
        for kind, count in use.ways.items()
        for w, name in enumerate(WAYS[kind])
    }
    ssd, tier = None, setting.tiers.ssd
    if tier is not None and built.ssd_blocks:
        capacity = built.ssd_blocks * built.distinct_bytes * setting.nodes
        ssd = SsdUse(links["ssd write"].bytes, int(capacity), endurance_dwpd=tier.endurance)
    return summarise(
        columns,
        window,
        variant=spec.variant,
        concurrency=spec.concurrency,
        gpus=setting.nodes * setting.gpus_per_node,
        itl_counts=use.itl,
        transfers=links,
        evictions=use.evictions,
        unfinished=Unfinished(running=use.running, waiting=use.waiting),
        ssd=ssd,
        faults=cluster.fault_spans,
        simulated_s=cluster.now_s,
        wall_s=wall_s,
    )


def engine_spec(cluster: Setting) -> EngineSpec:
    """The scenario's engine in plain values."""
    from kvsim import catalog
    from kvsim.engine.build import EngineSpec, HostSpec, PoolSpec, Size, SsdSpec, deployment

    p, tiers, engine, hbm = cluster.parallelism, cluster.tiers, cluster.engine, cluster.tiers.hbm.capacity
    d = deployment(cluster.model, cluster.hardware, tp=p.tp, dp=p.dp, ep=p.ep, weight_dtype=cluster.weight_dtype, kv_dtype=cluster.kv_dtype)

    def link(asked: Any, own: str | None, where: str) -> catalog.Link:
        named = own if asked == "auto" else asked
        if named is None:
            raise ScenarioError(f"{where}: the hardware names no link of its own, give one")
        return catalog.link(named)

    host = ssd = pool = nic = None
    if tiers.dram is not None:
        dram = tiers.dram
        host = HostSpec(
            Size(dram.capacity.amount, dram.capacity.unit),
            dram.offload.parameters,
            dram.eviction.name,
            link(dram.link, d.hardware.host_link, "cluster.tiers.dram.link"),
            dram.layout,
            dram.copy_by,
            dram.layerwise,
        )
    if tiers.ssd is not None:
        size = Size(tiers.ssd.capacity.amount, tiers.ssd.capacity.unit)
        ssd = SsdSpec(size, link(tiers.ssd.link, d.hardware.nvme, "cluster.tiers.ssd.link"), tiers.ssd.drives, tiers.ssd.gds)
    if tiers.pool is not None:
        t = tiers.pool
        size = Size(t.capacity.amount, t.capacity.unit)
        pool = PoolSpec(size, t.replicas, t.lease, t.high_water, max(t.high_water - t.evict_share, 0.0))
        nic = link(t.link, d.hardware.nic, "cluster.tiers.pool.link")
    if cluster.split is not None:
        nic = nic or link(cluster.split.link, d.hardware.nic, "cluster.split.link")
    return EngineSpec(
        deployment=d,
        block_tokens=engine.block_tokens,
        max_num_seqs=None if engine.max_num_seqs == "auto" else engine.max_num_seqs,
        max_num_batched_tokens=None if engine.max_num_batched_tokens == "auto" else engine.max_num_batched_tokens,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        utilisation=cluster.gpu_memory_utilization,
        hbm=None if hbm == "auto" else Size(hbm.amount, hbm.unit),
        host=host,
        ssd=ssd,
        pool=pool,
        nic=nic,
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
