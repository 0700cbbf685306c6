"""Faults: what breaks at a time, for how long, and what that does to requests on their way.

- `node-down`: a node and its caches (HBM, DRAM, its SSD) are lost; its requests are sent again, to others, and count from their first
  arrival. A prompt it was to hand over to a decode node is computed there. With no node left requests wait for one.
- `ssd-slow`: the drives of a node take `factor` times as long. `ssd-full`: they take no new blocks.
- `link-degraded`: the host link of a node's GPUs, or its NIC, takes `factor` times as long.
- `pool-lost`: the shared pool loses what it holds, and takes and gives nothing while it is away.

A transfer that is under way or queued when a fault begins keeps its time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import simpy
from numpy.typing import NDArray

from kvsim.cluster.fleet import Fleet
from kvsim.cluster.front import Front
from kvsim.engine.vllm import Commons, VllmEngine

Kind = Literal["node-down", "ssd-slow", "ssd-full", "link-degraded", "pool-lost"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, from `at_s` until `until_s` (None: for good)."""

    kind: Kind
    at_s: float
    until_s: float | None
    node: int = 0
    factor: float = 1.0
    link: Literal["host", "nic"] = "host"

    @property
    def what(self) -> str:
        """As people read it."""
        if self.kind == "pool-lost":
            return "pool lost"
        if self.kind == "link-degraded":
            return f"node {self.node}: {self.link} link {self.factor:g}x slower"
        return f"node {self.node}: " + {"node-down": "down", "ssd-full": "SSD full", "ssd-slow": f"SSD {self.factor:g}x slower"}[self.kind]


@dataclass(slots=True, eq=False)
class Faults:
    """Lets `faults` happen. `alive` [engines] is what routers see; `engine(worker)` makes a fresh one; `retired` gets what is lost."""

    env: simpy.Environment
    faults: Sequence[Fault]
    fleet: Fleet
    front: Front
    alive: NDArray[np.bool_]
    engine: Callable[[int], VllmEngine]
    retired: list[tuple[int, VllmEngine]]
    commons: Commons
    _host_slow: dict[int, float] = field(init=False, default_factory=dict)

    def start(self) -> None:
        """Set the clocks."""
        for fault in self.faults:
            self.env.process(self._happen(fault))

    def _happen(self, fault: Fault) -> Generator[simpy.Event, None, None]:
        yield self.env.timeout(fault.at_s)
        self._begin(fault)
        if fault.until_s is not None:
            yield self.env.timeout(fault.until_s - self.env.now)
            self._end(fault)

    def _workers(self, node: int) -> list[int]:
        return [w for w, n in enumerate(self.front.node_of) if n == node]

    def _begin(self, fault: Fault) -> None:
        if fault.kind == "node-down":
            self._down(fault.node)
        elif fault.kind == "pool-lost":
            assert self.commons.pool is not None
            self.commons.pool.lose()
        elif fault.kind == "ssd-full":
            self.commons.ssds[fault.node].close(True)
        else:
            self._slow(fault, fault.factor)

    def _end(self, fault: Fault) -> None:
        if fault.kind == "node-down":
            for worker in self._workers(fault.node):
                self.alive[worker] = True
            self.front.reopen()
        elif fault.kind == "pool-lost":
            assert self.commons.pool is not None
            self.commons.pool.close(False)
        elif fault.kind == "ssd-full":
            self.commons.ssds[fault.node].close(False)
        else:
            self._slow(fault, 1.0 / fault.factor)

    def _slow(self, fault: Fault, factor: float) -> None:
        if fault.kind == "ssd-slow":
            self.commons.ssds[fault.node].ways.way.slow *= factor
        elif fault.link == "nic":
            self.commons.nics.way.slow[2 * fault.node : 2 * fault.node + 2] *= factor
        else:
            self._host_slow[fault.node] = self._host_slow.get(fault.node, 1.0) * factor
            for worker in self._workers(fault.node):
                self.fleet.engines[worker].e.transfers.link.way.slow = self._host_slow[fault.node]

    def _down(self, node: int) -> None:
        workers = self._workers(node)
        for worker in workers:
            self.alive[worker] = False
            old, new = self.fleet.engines[worker], self.engine(worker)
            new.grow_ids(self.commons.met.size)
            new.e.seen[:] = old.e.seen
            new.e.transfers.link.way.slow = self._host_slow.get(node, 1.0)
            self.retired.append((worker, old))
            self.fleet.replace(worker, new)
            self.front.first.lost(worker)
            if self.front.second is not None:
                self.front.second.lost(worker)
        if self.commons.ssds:
            self.commons.ssds[node].lose()
            self.commons.ssds[node].close(False)
        if self.commons.pool is not None:
            self.commons.pool.forget_unwritten()
        self.front.retry(set(workers))
