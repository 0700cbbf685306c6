"""Requests a router has sent and not seen end: its own idea of the load of workers, older than no poll and blind to other routers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsim.router import Arrival, Router, Setting, View, Workers


class InFlight:
    """`counts` [workers]: the weights of the requests in flight at each worker, by default 1 each."""

    def __init__(self, workers: int) -> None:
        self.counts: NDArray[np.int64] = np.zeros(workers, np.int64)
        self._of: dict[int, tuple[int, int]] = {}

    def add(self, number: int, worker: int, weight: int = 1) -> None:
        """Request `number` was sent to `worker`. Raises ValueError for one that is in flight already."""
        if number in self._of:
            raise ValueError(f"request {number} is in flight already, at worker {self._of[number][0]}")
        self._of[number] = worker, weight
        self.counts[worker] += weight

    def remove(self, number: int) -> int | None:
        """Request `number` is over: the worker it was at, None for one that was not in flight."""
        worker, weight = self._of.pop(number, (None, 0))
        if worker is not None:
            self.counts[worker] -= weight
        return worker


class LoadRouter(Router):
    """A router that goes by load: the requests it has in flight, or (`poll_s`) running + waiting as workers last reported them."""

    def __init__(self, setting: Setting, poll_s: float | None = None) -> None:
        self.rng = setting.rng
        self.in_flight = InFlight(setting.workers)
        self._reported = poll_s is not None
        if poll_s is not None:
            self.load = View("polled", poll_s)

    def choose(self, arrival: Arrival, workers: Workers) -> int:
        """See `Router`."""
        loads = workers.running + workers.waiting if self._reported else self.in_flight.counts
        worker = self.pick(arrival, np.flatnonzero(workers.alive), loads)
        self.in_flight.add(arrival.number, worker)
        return worker

    def pick(self, arrival: Arrival, alive: NDArray[np.int64], loads: NDArray[np.int64]) -> int:
        """One of the workers `alive`, their numbers in rising order; `loads` [workers] are all workers' and stay as they are."""
        raise NotImplementedError

    def ended(self, number: int, at_s: float) -> None:
        """See `Router`."""
        self.in_flight.remove(number)


def check_poll(poll_s: float | None) -> None:
    """Raises ValueError for a time between polls that is not above 0."""
    if poll_s is not None and not poll_s > 0:
        raise ValueError(f"poll_s must be above 0 seconds, or null for the router's own count, not {poll_s}")


def least_loaded(alive: NDArray[np.int64], loads: NDArray[np.int64], rng: np.random.Generator) -> int:
    """The worker with the least load of those `alive`, one at random among equals."""
    of = loads[alive]
    equals = alive[of == of.min()]
    return int(equals[rng.integers(equals.size)])
