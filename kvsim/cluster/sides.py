"""Sides of a cluster, each with its router: all workers, or those that prefill and those that decode; and what routers see of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvsim.cluster.fleet import Fleet
from kvsim.engine.vllm import VllmEngine
from kvsim.router import REJECT, Arrival, Router, Workers
from kvsim.router.index import CacheIndex

HBM, HOST = 0, 1


class _Log:
    """How far the log of one tier of one engine has been read."""

    def __init__(self) -> None:
        self.engine: VllmEngine | None = None
        self.at = 0


@dataclass(slots=True)
class Side:
    """`workers`: engines of the fleet that `router` chooses among, by their numbers in it; `alive` [engines of the fleet]."""

    fleet: Fleet
    router: Router
    workers: Sequence[int]
    alive: NDArray[np.bool_]
    ids: int
    _index: CacheIndex | None = field(init=False)
    _logs: dict[tuple[int, int], _Log] = field(init=False, default_factory=dict)
    _unstarted: dict[int, tuple[VllmEngine, int]] = field(init=False, default_factory=dict)
    _loads: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]] = field(init=False)
    _polled_s: float = field(init=False, default=-np.inf)
    _members: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self._members = np.array(self.workers, np.int64)
        self._index = CacheIndex(len(self.workers), self.ids) if self.router.cache is not None else None
        n = len(self.fleet.engines)
        self._loads = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n)

    @property
    def open(self) -> bool:
        """Whether any worker is alive."""
        return bool(self.alive[self._members].any())

    @property
    def only(self) -> int | None:
        """The engine that every request goes to, if it is alive and there is nothing to choose."""
        simple = len(self.workers) == 1 and self.router.cache is None and not self.router.told_first_tokens
        return self.workers[0] if simple and self.alive[self.workers[0]] else None

    def choose(self, arrival: Arrival) -> int:
        """The engine that serves `arrival`, or `REJECT`."""
        if self.router.told_first_tokens:
            self._tell_first_tokens(arrival.at_s)
        chosen = self.router.choose(arrival, self._see(arrival))
        return REJECT if chosen == REJECT else int(self._members[chosen])

    def sent(self, number: int, engine: VllmEngine, row: int) -> None:
        """Request `number`, chosen for, is in `row` of `engine`."""
        if self.router.told_first_tokens:
            self._unstarted[number] = engine, row

    def ended(self, number: int, at_s: float) -> None:
        """Request `number` left this side."""
        self._unstarted.pop(number, None)
        self.router.ended(number, at_s)

    def lost(self, engine: int) -> None:
        """An engine went down."""
        if engine in self.workers:
            worker = self.workers.index(engine)
            self.router.lost(worker)
            if self._index is not None:
                self._index.forget(worker)

    def _tell_first_tokens(self, now_s: float) -> None:
        for number, (engine, row) in list(self._unstarted.items()):
            at = float(engine.first_token_s[row])
            if 0.0 <= at <= now_s:
                del self._unstarted[number]
                self.router.first_token(number, at)

    def _see(self, arrival: Arrival) -> Workers:
        now, members = arrival.at_s, self._members
        told = self.router.load.cut(now)
        if told > self._polled_s or self.router.load.kind != "polled":
            self.fleet.read_loads(*self._loads)
            self._polled_s = told
        zero = np.zeros(members.size, np.int64)
        hbm = host = disk = pool = zero
        if self.router.cache is not None:
            self._read_logs(self.router.cache.cut(now))
            assert self._index is not None
            hbm, host, _ = self._index.match(arrival)
            disk, pool = self._below(arrival, hbm, host)
        running, waiting, usage = self._loads
        return Workers(self.alive[members], running[members], waiting[members], usage[members], hbm, host, disk, pool)

    def _below(self, arrival: Arrival, hbm: NDArray[np.int64], host: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Blocks on each worker's SSD behind those in HBM and DRAM, and in the shared pool behind those in HBM: both are asked directly."""
        disk, pool = np.zeros_like(hbm), np.zeros_like(hbm)
        for i, worker in enumerate(self.workers):
            engine = self.fleet.engines[worker]
            runs = arrival.run_start, arrival.run_length
            disk[i] = engine.connector.peek_below(*runs, int(hbm[i] + host[i]), arrival.at_s)[0]
            pool[i] = engine.connector.peek_below(*runs, int(hbm[i]), arrival.at_s)[1]
        return disk, pool

    def _read_logs(self, upto_s: float) -> None:
        assert self._index is not None
        for i, worker in enumerate(self.workers):
            engine = self.fleet.engines[worker]
            for tier, log in ((HBM, engine.e.pool.log), (HOST, engine.connector.log(engine.host))):
                if log is None:
                    continue
                read = self._logs.setdefault((i, tier), _Log())
                if read.engine is not engine:
                    read.engine, read.at = engine, 0
                written = int(log.meta[0])
                upto = read.at + int(np.searchsorted(log.at[read.at : written], upto_s, side="right"))
                if upto > read.at:
                    self._index.tell(i, tier, log.key[read.at : upto], log.present[read.at : upto])
                    read.at = upto
                if read.at == written:
                    log.meta[0] = read.at = 0
