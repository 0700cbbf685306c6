"""The simulated cluster of one point: nodes under one clock, sessions placed on them, and what they report.

Plain values in, columns out; `kvsim.simulation` makes the one from a scenario and the other into a result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from kvsim.engine.node import Node
from kvsim.engine.state import REJECTED, REQUEST
from kvsim.engine.vllm import Batch, VllmEngine
from kvsim.workload.clients.closed_loop import ClosedLoop
from kvsim.workload.clients.plan import SessionPlan
from kvsim.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class _Counters:
    """Running counters of one engine: channels [down, up] and tiers [HBM, host]."""

    blocks: NDArray[np.int64]
    busy_s: NDArray[np.float64]
    waits: NDArray[np.int64]
    evictions: NDArray[np.int64]

    def minus(self, other: _Counters) -> _Counters:
        return _Counters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def plus(self, other: _Counters) -> _Counters:
        return _Counters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def _counters(engine: VllmEngine) -> _Counters:
    channels = engine.e.transfers.channels
    evictions = np.array([int(engine.e.pool.meta.evictions[0]), engine.connector.evictions(engine.e, engine.host)])
    return _Counters(channels.blocks.copy(), channels.busy.copy(), engine.e.transfers.waits.copy(), evictions)


@dataclass(frozen=True, slots=True)
class Use:
    """What the engines did in the window. `blocks`, `busy_s`, `waits`: of the host channels, down and up; `itl`: times between tokens."""

    has_host: bool
    blocks: NDArray[np.int64]
    busy_s: NDArray[np.float64]
    waits: NDArray[np.int64]
    hbm_evictions: int
    host_evictions: int
    itl: NDArray[np.int64]
    running: int
    waiting: int


@dataclass(slots=True)
class Cluster:
    """Engines serving the sessions of a closed loop until `until_s`; a session's node follows from its name (session-hash routing).

    Counters (`use`) count from `window_start_s` on. `progress`, if given, is called with the simulated time and the sessions ended.
    """

    engines: list[VllmEngine]
    workload: Workload
    plan: SessionPlan
    lanes: int
    until_s: float
    window_start_s: float
    budget: int | None
    progress: Callable[[float, int], None] | None = None
    client: ClosedLoop = field(init=False)
    ended: list[Any] = field(init=False, default_factory=list)
    ended_on: list[tuple[int, int]] = field(init=False, default_factory=list)
    _nodes: list[Node] = field(init=False)
    _before: list[_Counters] = field(init=False)
    _env: simpy.Environment = field(init=False)

    def __post_init__(self) -> None:
        self._env = simpy.Environment()
        self._before = [_counters(engine) for engine in self.engines]
        if self.window_start_s > 0:
            self._env.process(self._open_window())
        self._nodes = [Node(self._env, engine, self.until_s, self._on_end) for engine in self.engines]
        self.client = ClosedLoop(self.workload, self.plan, self, self.lanes, self.budget)

    def run(self) -> None:
        """Simulate; the laws that engines keep are checked at the end, whatever the user asked for."""
        self.client.start()
        self._env.run()
        for node in self._nodes:
            self._collect(node, node.engine.harvest())
        for engine in self.engines:
            engine.check()

    def _open_window(self) -> Generator[simpy.Event, None, None]:
        yield self._env.timeout(self.window_start_s)
        self._before = [_counters(engine) for engine in self.engines]

    @property
    def now_s(self) -> float:
        """How far the furthest engine got."""
        return max(engine.clock for engine in self.engines)

    def use(self) -> Use:
        """What the engines did in the window, in sum."""
        after = [_counters(engine) for engine in self.engines]
        total = after[0].minus(self._before[0])
        for now, before in zip(after[1:], self._before[1:], strict=True):
            total = total.plus(now.minus(before))
        states = [engine.e.state[0] for engine in self.engines]
        return Use(
            has_host=self.engines[0].connector.has_host,
            blocks=total.blocks,
            busy_s=total.busy_s,
            waits=total.waits,
            hbm_evictions=int(total.evictions[0]),
            host_evictions=int(total.evictions[1]),
            itl=np.sum([engine.e.itl for engine in self.engines], axis=0),
            running=sum(int(s.running) for s in states),
            waiting=sum(int(s.live - s.running) for s in states),
        )

    def enter(self, session: int, instance: int, at_s: float) -> None:
        """A session begins (see `kvsim.workload.clients.closed_loop.Server`): its node takes all its requests and their edges."""
        node = self._nodes[self.place(session)]
        plan, offset = self.plan, self.client.id_offset(instance)
        first, last = int(plan.first[session]), int(plan.first[session + 1])
        rows = np.arange(first, last)
        node.engine.grow_ids(offset + self.workload.unique_ids)
        entered = node.engine.submit(
            Batch(
                chain=rows,
                prompt=self.workload.input_tokens[rows],
                output=self.workload.output_tokens[rows],
                at=at_s + plan.start_s[rows],
                tag=instance * self.workload.requests + rows,
                order=instance * self.workload.requests + rows,
                notify=plan.last_of_stream[rows],
                id_offset=offset,
            )
        )
        edges = slice(int(plan.edge_first[session]), int(plan.edge_first[session + 1]))
        node.engine.depend(entered[plan.target[edges] - first], entered[plan.on[edges] - first], plan.delay_s[edges])
        node.wake()

    def place(self, session: int) -> int:
        """The node of a session: a hash of its name, the same in every process."""
        digest = hashlib.blake2b(self.workload.session_name[session].encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % len(self._nodes)

    def _on_end(self, node: Node, rows: Any) -> None:
        self._collect(node, rows)
        told = rows["notify"] == 1
        for tag, finish in zip(rows["tag"][told].tolist(), rows["finish"][told].tolist(), strict=True):
            self.client.stream_ended(tag // self.workload.requests, finish)
        if self.progress is not None:
            self.progress(min(node.engine.clock, self.until_s), self.client.ended)

    def _collect(self, node: Node, rows: Any) -> None:
        if len(rows):
            self.ended.append(rows)
            self.ended_on.append((self._nodes.index(node), len(rows)))

    def columns(self) -> dict[str, NDArray[Any]]:
        """What `kvsim.metrics.recorder` records, a row for each request that ended, in the order of their ends."""
        rows = np.concatenate(self.ended) if self.ended else np.zeros(0, REQUEST)
        node = np.repeat([n for n, _ in self.ended_on], [k for _, k in self.ended_on]).astype(np.int32)
        order = np.argsort(rows["finish"], kind="stable")
        rows, node = rows[order], node[order]
        instance, request = rows["tag"] // max(self.workload.requests, 1), rows["tag"] % max(self.workload.requests, 1)
        zero = np.zeros(rows.size, np.int64)
        return {
            "request": request,
            "session": instance,
            "turn": self.workload.turn[request],
            "lane": np.asarray(self.client.lane, np.int32)[instance],
            "node": node,
            "arrival_s": rows["arrival"],
            "scheduled_s": rows["scheduled"],
            "first_token_s": rows["first_token"],
            "finish_s": rows["finish"],
            "input_tokens": rows["prompt"],
            "output_tokens": rows["output"],
            "hbm_tokens": rows["hbm_tokens"],
            "dram_tokens": rows["host_tokens"],
            "ssd_tokens": zero,
            "pool_tokens": zero,
            "computed_tokens": rows["prompt"] - rows["hbm_tokens"] - rows["host_tokens"],
            # Whatever was scheduled beyond the prompt's misses and one pass over the output was computed before.
            "recomputed_tokens": rows["work"] - (rows["prompt"] - rows["hbm_tokens"] - rows["host_tokens"]) - (rows["output"] - 1),
            "theoretical_tokens": rows["theoretical"],
            "missed_cold": rows["cold"],
            "missed_evicted": rows["evicted"],
            "missed_elsewhere": zero,
            "missed_pending": rows["pending"],
            "missed_too_late": zero,
            "missed_partial_block": rows["partial"],
            "missed_not_stored": rows["not_stored"],
            "preemptions": rows["preemptions"].astype(np.int32),
            "load_s": rows["load_s"],
            "rejected": rows["status"] == REJECTED,
        }
