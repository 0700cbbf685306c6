"""Bounded hash: a session stays on one worker until that has far more than its share of the requests.

Law. A worker is within bounds while its requests in flight are at most `load_factor` times the mean over the workers that are up, the
request to be sent counted in the mean. The least loaded worker always is, so no request moves further than it must.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.router import ROUTER, Arrival, Router, Setting
from kvsim.router.in_flight import LoadRouter
from kvsim.router.ring import Ring


class BoundedHashRouter(LoadRouter):
    """The first worker on the ring that is up and within bounds; home is the first that is up."""

    def __init__(self, parameters: BoundedHash, setting: Setting) -> None:
        super().__init__(setting)
        self._parameters = parameters
        self._ring = Ring(setting.workers, parameters.virtual_nodes)

    def pick(self, arrival: Arrival, alive: NDArray[np.int64], loads: NDArray[np.int64]) -> int:
        """See `LoadRouter`."""
        up = set(alive.tolist())
        of = loads[alive]
        bound = self._parameters.load_factor * (int(of.sum()) + 1) / alive.size
        walk = [worker for worker in self._ring.walk(arrival.session) if worker in up]
        if loads[walk[0]] - of.min() <= self._parameters.min_load_gap:
            return walk[0]
        return next(worker for worker in walk if loads[worker] <= bound)


@ROUTER.register("bounded-hash", source="sglang-router 0.3.2, bounded_consistent_hashing; Mirrokni et al., SODA 2018")
@dataclass(frozen=True, slots=True)
class BoundedHash:
    """Consistent hashing of the session's name; a worker with over `load_factor` times the mean load passes requests on along the ring.

    `min_load_gap`: nothing is passed on by a worker with at most so many requests more than the least loaded one (2 in later
    versions of the router, so that affinity holds at low load). `virtual_nodes`: points of a worker on the ring.
    """

    load_factor: float = 1.5
    min_load_gap: int = 0
    virtual_nodes: int = 160

    def __post_init__(self) -> None:
        if not self.load_factor >= 1:
            raise ValueError(f"load_factor must be at least 1, not {self.load_factor}")
        if self.min_load_gap < 0:
            raise ValueError(f"min_load_gap must be at least 0, not {self.min_load_gap}")
        if self.virtual_nodes < 1:
            raise ValueError(f"virtual_nodes must be at least 1, not {self.virtual_nodes}")

    def build(self, setting: Setting) -> Router:
        """The router of one run."""
        return BoundedHashRouter(self, setting)
