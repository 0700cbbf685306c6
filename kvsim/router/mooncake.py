"""Mooncake: the Conductor's KVCache-centric scheduling, the least estimated time to first token.

For each worker, with `own` the blocks of the prompt in its caches and `best` those it would have with the better prefix:

    best / own < balancing_threshold    time = queue + prefill behind own
    else                                time = queue + the less of (prefill behind own, copying best - own blocks + prefill behind best)

Queue: the router's own estimates of the prefills it sent there that had no first token yet. Equal times are decided at random.

In the paper the better prefix is copied from the DRAM of the worker that has it, and so hot prefixes spread. Here prefixes travel between
workers through the shared pool only: `best` is what the pool has beyond the worker's HBM, no worker's HBM is copied to another's, and
without a pool only the first line is left. Whether an engine really loads from the pool is its own decision. That copying must beat prefill
is the paper's rule for hot spots (section 6.2). The value of the threshold is not published; 1 always weighs one against the other.
Where it chooses decode nodes it takes the one with the fewest requests (the paper's: by load).
Source: Qin et al., Mooncake, arXiv 2407.00079, Algorithm 1 and section 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.router import REJECT, ROUTER, Arrival, Router, Setting, View, Workers
from kvsim.router.in_flight import InFlight, LoadRouter, least_loaded
from kvsim.router.pick import lowest
from kvsim.router.prefill_time import prefill_seconds
from kvsim.router.ranges import above, at_least

NS = 1_000_000_000  # whole nanoseconds add up and cancel without a rest


class Estimate(NamedTuple):
    """Parts of the time to first token in seconds, one entry for each worker asked about."""

    queue_s: NDArray[np.float64]
    copy_s: NDArray[np.float64]
    prefill_s: NDArray[np.float64]

    @property
    def ttft_s(self) -> NDArray[np.float64]:
        """Their sum."""
        return self.queue_s + self.copy_s + self.prefill_s


class MooncakeRouter(Router):
    """Keeps the prefills that have no first token yet."""

    told_first_tokens = True

    def __init__(self, parameters: Mooncake, setting: Setting) -> None:
        self._p, self._setting = parameters, setting
        self.cache = View("events", parameters.delay_s)
        self._queued = InFlight(setting.workers)

    def choose(self, arrival: Arrival, workers: Workers) -> int:
        """See `Router`."""
        alive = np.flatnonzero(workers.alive)
        estimate = self.estimate(arrival, workers, alive)
        times = estimate.ttft_s
        if self._p.ttft_slo_s is not None and times.min() > self._p.ttft_slo_s:
            return REJECT
        worker = lowest(times, alive, self._setting.rng)
        seconds = float(estimate.prefill_s[np.searchsorted(alive, worker)])
        self._queued.add(arrival.number, worker, round(seconds * NS))
        return worker

    def estimate(self, arrival: Arrival, workers: Workers, of: NDArray[np.int64]) -> Estimate:
        """What `arrival` would have to wait for at each of the workers `of`. Changes nothing."""
        own = workers.hbm[of] + workers.host[of] + workers.disk[of]
        best = workers.hbm[of] + workers.pool[of]
        far = (best > own) & (best >= self._p.balancing_threshold * own)
        best = np.where(far, best, own)
        prefill_own, prefill_best = prefill_seconds(self._setting, arrival, np.concatenate([own, best])).reshape(2, -1)
        copy = (best - own) * self._setting.copy_s
        copies = copy + prefill_best < prefill_own
        queue = self._queued.counts[of] / NS
        return Estimate(queue, np.where(copies, copy, 0.0), np.where(copies, prefill_best, prefill_own))

    def first_token(self, number: int, at_s: float) -> None:
        """See `Router`."""
        self._queued.remove(number)

    def ended(self, number: int, at_s: float) -> None:
        """See `Router`."""
        self._queued.remove(number)


class DecodeRouter(LoadRouter):
    """Chooses decode nodes by the requests in flight."""

    def pick(self, arrival: Arrival, alive: NDArray[np.int64], loads: NDArray[np.int64]) -> int:
        """See `LoadRouter`."""
        return least_loaded(alive, loads, self.rng)


@ROUTER.register("mooncake", source="Qin et al., Mooncake, arXiv 2407.00079, Algorithm 1")
@dataclass(frozen=True, slots=True)
class Mooncake:
    """The worker with the least estimated time to first token: queue, better prefix from the shared pool, prefill (Mooncake's Conductor).

    `balancing_threshold`: how many times longer than the worker's own prefix the pool's must be to be copied. `ttft_slo_s`: requests
    that no worker could start within so many seconds are rejected; null, never. `delay_s`: age of what it knows of the caches.
    """

    balancing_threshold: float = 1.0
    ttft_slo_s: float | None = None
    delay_s: float = 0.005

    def __post_init__(self) -> None:
        at_least("balancing_threshold", self.balancing_threshold, 1)
        if self.ttft_slo_s is not None:
            above("ttft_slo_s", self.ttft_slo_s, 0, "seconds")
        at_least("delay_s", self.delay_s, 0)

    def build(self, setting: Setting) -> Router:
        """The router of one run."""
        return DecodeRouter(setting) if setting.role == "decode" else MooncakeRouter(self, setting)
