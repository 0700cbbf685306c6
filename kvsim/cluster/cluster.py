"""The simulated cluster of one point: what it is made of, how it runs, and what it reports. Plain values in, columns out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from kvsim.cluster.counters import Counters, count_ways, evictions
from kvsim.cluster.faults import Fault, Faults
from kvsim.cluster.fleet import Fleet
from kvsim.cluster.front import Front, Request
from kvsim.cluster.sides import Side
from kvsim.cluster.tracing import Tracing
from kvsim.engine.state import REJECTED, REQUEST
from kvsim.engine.vllm import Commons, VllmEngine
from kvsim.errors import LawError
from kvsim.metrics.summary import FaultSpan
from kvsim.metrics.timeline import Timeline
from kvsim.router import Router
from kvsim.workload.clients import Client, Server, Turn
from kvsim.workload.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a cluster is made of, in plain values.

    `engine(worker)` makes engine number `worker`; `node_of` [workers]: its node; `groups` [workers, 2]: the engines it steps with.
    `prefillers`: of a split, how many workers prefill, the others decode; None: all do both. `router` chooses who serves or prefills,
    `second_router` who decodes. `client(env, server)` makes who sends.
    """

    engine: Callable[[int], VllmEngine]
    commons: Commons
    node_of: Sequence[int]
    groups: NDArray[np.int64]
    prefillers: int | None
    router: Router
    second_router: Router | None
    client: Callable[[simpy.Environment, Server], Client]
    faults: Sequence[Fault] = ()
    traced: bool = False  # engines keep what they do for a timeline


@dataclass(frozen=True, slots=True)
class Use:
    """What happened in the window: counters of ways by name, evictions by tier, times between tokens; and what is unfinished at the end."""

    ways: dict[str, Counters]
    evictions: dict[str, int]
    itl: NDArray[np.int64]
    running: int
    waiting: int


@dataclass(slots=True, eq=False)
class Cluster:
    """A cluster and its clients. `progress`, if given, is called with the simulated time and the sessions ended."""

    plan: Plan
    workload: Workload
    progress: Callable[[float, int], None] | None = None
    client: Client = field(init=False)
    front: Front = field(init=False)
    window_start_s: float = field(init=False, default=0.0)
    retired: list[tuple[int, VllmEngine]] = field(init=False, default_factory=list)
    _env: simpy.Environment = field(init=False)
    _fleet: Fleet = field(init=False)
    _faults: Faults = field(init=False)
    _over: simpy.Event = field(init=False)
    _before: tuple[dict[str, Counters], dict[str, int]] = field(init=False)
    _tracing: Tracing | None = field(init=False, default=None)
    _names: dict[int, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        plan, self._env = self.plan, simpy.Environment()
        self._over = self._env.event()
        workers = range(len(plan.node_of))
        self._fleet = Fleet(self._env, [plan.engine(w) for w in workers], plan.groups, self._tell)
        alive = np.ones(len(workers), bool)
        ids = self.workload.unique_ids
        split = plan.prefillers
        first = Side(self._fleet, plan.router, workers[:split], alive, ids)
        second = None if split is None or plan.second_router is None else Side(self._fleet, plan.second_router, workers[split:], alive, ids)
        self.front = Front(self._env, self._fleet, self.workload, first, second, list(plan.node_of), self._name, self._ended)
        self._faults = Faults(self._env, plan.faults, self._fleet, self.front, alive, plan.engine, self.retired, plan.commons)
        self.client = plan.client(self._env, self)
        self._before = self._count()
        if plan.traced:
            roles = ["" if split is None else "prefill" if w < split else "decode" for w in workers]
            self._tracing = Tracing(plan.commons, list(plan.node_of), roles)

    @property
    def engines(self) -> list[VllmEngine]:
        """The engines, those that went down not among them."""
        return self._fleet.engines

    @property
    def _all_engines(self) -> list[VllmEngine]:
        return [*self.engines, *(engine for _, engine in self.retired)]

    @property
    def calls(self) -> int:
        """Kernel calls so far."""
        return self._fleet.calls

    def run(self) -> None:
        """Simulate; the laws that engines keep are checked at the end, whatever the user asked for."""
        self.client.start()
        self._faults.start()
        self._fleet.start()
        with suppress(simpy.core.EmptySchedule):  # all sessions are done
            while not self._over.triggered:
                self._env.step()
        self._drain()
        for engine in self._all_engines:
            engine.check()
        front = self.front
        if front.sent != len(front.done) + len(front.flying):
            raise LawError(f"requests: {front.sent} sent != {len(front.done)} ended + {len(front.flying)} in flight")

    def send(self, turn: Turn) -> None:
        """See `kvsim.workload.clients.Server`."""
        top = turn.id_offset + self.workload.unique_ids
        if top > self.plan.commons.met.size:
            self.plan.commons.grow(top)
            for engine in self.engines:
                engine.grow_ids(top)
        self.front.send(turn)

    def open_window(self) -> None:
        """See `kvsim.workload.clients.Server`."""
        self.window_start_s = self._env.now
        self._before = self._count()
        for engine in self._all_engines:
            engine.e.itl[:] = 0

    def stop(self) -> None:
        """See `kvsim.workload.clients.Server`."""
        if not self._over.triggered:
            self._over.succeed()

    @property
    def now_s(self) -> float:
        """When the run ended, or how far it is."""
        return max(self._env.now, *(engine.clock for engine in self.engines)) if not self._over.triggered else self._env.now

    def use(self) -> Use:
        """What happened in the window."""
        ways, gone = self._count()
        before_ways, before_gone = self._before
        states = [engine.e.state[0] for engine in self.engines]
        running = sum(int(s.running) for s in states)
        return Use(
            ways={name: count.minus(before_ways[name]) for name, count in ways.items()},
            evictions={tier: n - before_gone[tier] for tier, n in gone.items()},
            itl=np.sum([engine.e.itl for engine in self._all_engines], axis=0),
            running=running,
            waiting=max(len(self.front.flying) - running, 0),
        )

    def _count(self) -> tuple[dict[str, Counters], dict[str, int]]:
        engines, now = self._all_engines, self._env.now
        hbm, host = evictions(engines)
        ways, gone = {}, {"hbm": hbm}
        if engines[0].connector.has_host:
            ways["host"] = count_ways([engine.e.transfers.link for engine in engines], now)
            gone["dram"] = host
        if self.plan.prefillers is not None or self.plan.commons.pool is not None:
            ways["nic"] = count_ways([self.plan.commons.nics], now)
        if self.plan.commons.ssds:
            ways["ssd"] = count_ways([ssd.ways for ssd in self.plan.commons.ssds], now)
            gone["ssd"] = sum(ssd.evictions for ssd in self.plan.commons.ssds)
        if self.plan.commons.pool is not None:
            gone["pool"] = self.plan.commons.pool.evictions
        return ways, gone

    def timeline(self, unit_bytes: float) -> Timeline:
        """What happened when; `unit_bytes`: of a block on its way. Of a cluster whose engines kept it (`Plan.traced`)."""
        assert self._tracing is not None
        return self._tracing.timeline([*enumerate(self.engines), *self.retired], self.front.done, unit_bytes, self.fault_spans)

    @property
    def fault_spans(self) -> list[FaultSpan]:
        """What broke, and from when to when."""
        return [FaultSpan(f.what, f.at_s, f.until_s) for f in self.plan.faults]

    def _name(self, turn: Turn) -> str:
        name = self._names.get(turn.instance)
        if name is None:
            w = self.workload
            passed = turn.instance // w.sessions
            plain = w.session_name[int(w.session[turn.row])]
            name = self._names[turn.instance] = f"{plain}#{passed}" if passed else plain
        return name

    def _tell(self, index: int, at_s: float) -> None:
        self.front.told(index, at_s)
        if self._tracing is not None:
            self._tracing.sample(self.engines, at_s)
        if self.progress is not None:
            self.progress(at_s, self.client.sessions_ended)

    def _ended(self, number: int, at_s: float) -> None:
        self.client.ended(number, at_s)

    def _drain(self) -> None:
        """Requests that ended in the steps under way when the run stopped: nobody is told any more, but they count."""
        front = self.front
        for index, engine in enumerate(self.engines):
            rows = engine.harvest()
            keep = np.ones(len(rows), bool)
            for i, number in enumerate(rows["tag"].tolist()):
                request = front.flying[number]
                if front.second is not None and index == request.worker and request.decoder < 0:
                    keep[i] = False
                    continue
                del front.flying[number]
                front.done.append(request)
            front.rows.append(rows[keep])

    def columns(self) -> dict[str, NDArray[Any]]:
        """What `kvsim.metrics.recorder` records, a row for each request that ended, in the order of their ends."""
        front = self.front
        # As bytes: numpy compares all fields of the types it concatenates.
        rows = np.concatenate([np.zeros(0, np.uint8), *(piece.view(np.uint8) for piece in front.rows)]).view(REQUEST)
        order = np.argsort(rows["finish"], kind="stable")
        rows = rows[order]
        done = [front.done[i] for i in order.tolist()]
        return _columns(rows, done, front, self.workload)


def _columns(rows: Any, done: list[Request], front: Front, workload: Workload) -> dict[str, NDArray[Any]]:
    turns = [request.turn for request in done]
    row = np.array([turn.row for turn in turns], np.int64)
    split = front.second is not None
    # Of a split the prefill node's row tells of hits and their reasons, the decode node's of tokens and times.
    there = np.array([r.prefilled is not None for r in done], bool)
    hits = rows.copy()
    for i in np.flatnonzero(there):
        hits[i] = done[i].prefilled
    node_of = np.array([*front.node_of, -1])
    worker = np.array([r.worker for r in done], np.int64)
    decoder = np.array([r.decoder for r in done], np.int64)
    computed = hits["prompt"] - hits["hbm_tokens"] - hits["host_tokens"]
    # Whatever was scheduled beyond the prompt's misses and one pass over the output was computed before. After a preemption it may be less:
    # what stands behind a gap in the cache counts as missed at first, and is a hit once the gap has been filled.
    again = np.maximum(hits["work"] - computed - (hits["output"] - 1), 0)
    if split:
        again = np.where(there, again + rows["work"] - rows["output"], again)
    scheduled = hits["scheduled"]
    return {
        "request": row,
        "session": np.array([turn.instance for turn in turns], np.int64),
        "turn": workload.turn[row],
        "lane": np.array([turn.lane for turn in turns], np.int32),
        "node": node_of[worker].astype(np.int32),
        "decode_node": node_of[np.where(decoder >= 0, decoder, worker)].astype(np.int32),
        "arrival_s": np.array([turn.at_s for turn in turns], np.float64),
        "scheduled_s": scheduled,
        "first_token_s": rows["first_token"],
        "finish_s": rows["finish"],
        "input_tokens": hits["prompt"],
        "output_tokens": np.array([turn.output for turn in turns], np.int64),
        "hbm_tokens": hits["hbm_tokens"],
        "dram_tokens": hits["host_tokens"] - hits["ssd_tokens"] - hits["pool_tokens"],
        "ssd_tokens": hits["ssd_tokens"],
        "pool_tokens": hits["pool_tokens"],
        "computed_tokens": computed,
        "recomputed_tokens": again,
        "theoretical_tokens": hits["theoretical"],
        "missed_cold": hits["cold"],
        "missed_evicted": hits["evicted"],
        "missed_elsewhere": hits["elsewhere"],
        "missed_pending": hits["pending"],
        "missed_too_late": np.zeros(len(row), np.int64),
        "missed_partial_block": hits["partial"],
        "missed_not_stored": hits["not_stored"],
        "preemptions": (rows["preemptions"] + np.where(there, hits["preemptions"], 0)).astype(np.int32),
        "load_s": hits["load_s"],
        "transfer_s": np.where(there, rows["load_s"], 0.0),
        "retries": np.array([r.retries for r in done], np.int32),
        "rejected": rows["status"] == REJECTED,
    }
