"""Preble: E2, exploitation where most of a prompt is cached, exploration by cost where it is not.

The order of a decision:

1. Exploit: if more of the prompt is cached than not, the least loaded of the workers with the longest prefix. If that worker is the most
   loaded of all, with over `rebalance_ratio` times the least load, rebalance: the least loaded worker instead, which thereby gets
   the prefix too.
2. Explore: else the worker with the least of load + eviction + missed prefill, in seconds.

Load: of the requests sent within the last `window_s`, the prefill of what they missed and `decode_s` each. Eviction: the time to prefill
again the blocks that would have to go, times the worker's hit rate in the window. Equal costs are decided at random.

What is cached is the router's own tree: what it sent to each worker, least recently used first out beyond the worker's HBM. Preble moves
subtrees of the tree when it rebalances, and copies one whose own requests overload a worker; here single requests move, with both effects.
Source: Srivatsa et al., Preble, ICLR 2025, arXiv 2407.00023; AIBrix e3e10f9, prefix_cache_preble.go (window, decode length).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.router import ROUTER, Arrival, Router, Setting, Workers
from kvsim.router.pick import lowest
from kvsim.router.prefill_time import prefill_seconds
from kvsim.router.ranges import above, at_least
from kvsim.router.recent import RecentIndex

NS = 1_000_000_000  # whole nanoseconds add up and cancel without a rest


class Sent(NamedTuple):
    """A request sent: its work in nanoseconds, its blocks, and how many of them were taken to be cached."""

    at_s: float
    worker: int
    work_ns: int
    blocks: int
    hits: int


class Window:
    """Sums over the requests of the last `seconds`, arrays [workers]: `work_ns`, `blocks`, `hits`."""

    def __init__(self, workers: int, seconds: float) -> None:
        self.work_ns, self.blocks, self.hits = (np.zeros(workers, np.int64) for _ in range(3))
        self._seconds = seconds
        self._sent: deque[Sent] = deque()

    def add(self, sent: Sent) -> None:
        """A request was sent, not before the one added last."""
        self._sent.append(sent)
        self._sum(sent, 1)

    def move(self, now_s: float) -> None:
        """Drop what is older than the window."""
        while self._sent and self._sent[0].at_s <= now_s - self._seconds:
            self._sum(self._sent.popleft(), -1)

    def forget(self, worker: int) -> None:
        """Drop what was sent to `worker`."""
        for sent in self._sent:
            if sent.worker == worker:
                self._sum(sent, -1)
        self._sent = deque(sent for sent in self._sent if sent.worker != worker)

    def _sum(self, sent: Sent, sign: int) -> None:
        self.work_ns[sent.worker] += sign * sent.work_ns
        self.blocks[sent.worker] += sign * sent.blocks
        self.hits[sent.worker] += sign * sent.hits


class PrebleRouter(Router):
    """Keeps the tree and the window."""

    def __init__(self, parameters: Preble, setting: Setting) -> None:
        self._p, self._setting = parameters, setting
        self._tree = RecentIndex(setting.workers, setting.ids, max_blocks=setting.hbm_blocks)
        self._window = Window(setting.workers, parameters.window_s)
        self._sent = 0

    def choose(self, arrival: Arrival, workers: Workers) -> int:
        """See `Router`."""
        self._window.move(arrival.at_s)
        alive = np.flatnonzero(workers.alive)
        matched = self._tree.match(arrival, arrival.at_s)
        cached = int(matched[alive].max()) * arrival.block_tokens
        if cached > arrival.prompt_tokens - cached:
            worker = self._exploit(matched, alive)
        else:
            worker = lowest(self._costs(arrival, matched, alive), alive, self._setting.rng)
        hits = int(matched[worker])
        missed_s = float(prefill_seconds(self._setting, arrival, matched[worker : worker + 1])[0])
        self._window.add(Sent(arrival.at_s, worker, round((missed_s + self._p.decode_s) * NS), arrival.blocks, hits))
        self._tree.note(worker, arrival, arrival.at_s)
        self._sent += 1
        return worker

    def costs(self, arrival: Arrival, workers: Workers) -> NDArray[np.float64]:
        """Seconds that exploring weighs for each worker that is alive, in their order. Changes nothing but the window's begin."""
        self._window.move(arrival.at_s)
        return self._costs(arrival, self._tree.match(arrival, arrival.at_s), np.flatnonzero(workers.alive))

    def lost(self, worker: int) -> None:
        """See `Router`."""
        self._tree.forget(worker)
        self._window.forget(worker)

    def _exploit(self, matched: NDArray[np.int64], alive: NDArray[np.int64]) -> int:
        load = self._window.work_ns / NS
        holders = alive[matched[alive] == matched[alive].max()]
        worker = lowest(load[holders], holders, self._setting.rng)
        least, most = float(load[alive].min()), float(load[alive].max())
        settled = self._sent >= self._p.rebalance_min_requests * alive.size
        if settled and load[worker] == most and most > self._p.rebalance_ratio * least:
            return lowest(load[alive], alive, self._setting.rng)
        return worker

    def _costs(self, arrival: Arrival, matched: NDArray[np.int64], alive: NDArray[np.int64]) -> NDArray[np.float64]:
        matched, window = matched[alive], self._window
        missed = prefill_seconds(self._setting, arrival, matched)
        return window.work_ns[alive] / NS + self._eviction(arrival.blocks - matched, alive) + missed

    def _eviction(self, needed: NDArray[np.int64], alive: NDArray[np.int64]) -> NDArray[np.float64]:
        setting, window = self._setting, self._window
        held = self._tree.blocks[alive]
        evicted = np.minimum(np.maximum(held + needed - setting.hbm_blocks, 0), held)
        hit_rate = window.hits[alive] / np.maximum(window.blocks[alive], 1)
        blocks, of = np.unique(np.where(hit_rate > 0, evicted, 0), return_inverse=True)
        again = [setting.prefill_s(n * setting.block_tokens, 0) if n else 0.0 for n in blocks.tolist()]
        seconds: NDArray[np.float64] = np.array(again)[of] * hit_rate
        return seconds


@ROUTER.register("preble", source="Srivatsa et al., Preble, ICLR 2025; AIBrix e3e10f9, prefix-cache-preble")
@dataclass(frozen=True, slots=True)
class Preble:
    """Where the longest prefix is if that is most of the prompt, else where load, eviction and missed prefill cost least (Preble's E2).

    `window_s`: over which load and hit rate count. `decode_s`: the decode work a request is taken to bring (AIBrix: 45 tokens of 0.15 s,
    whatever comes out). `rebalance_ratio`: the most loaded worker passes requests on when it has over so many times the least load,
    after the first `rebalance_min_requests` a worker.
    """

    window_s: float = 180.0
    decode_s: float = 45 * 0.15
    rebalance_ratio: float = 1.5
    rebalance_min_requests: int = 50

    def __post_init__(self) -> None:
        above("window_s", self.window_s, 0, "seconds")
        at_least("decode_s", self.decode_s, 0)
        at_least("rebalance_ratio", self.rebalance_ratio, 1)
        at_least("rebalance_min_requests", self.rebalance_min_requests, 0)

    def build(self, setting: Setting) -> Router:
        """The router of one run."""
        return PrebleRouter(self, setting)
