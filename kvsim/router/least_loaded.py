"""Least-loaded: the worker with the fewest requests.

Load balancers count what they sent and have not seen answered, which is exact as long as there is one of them; others go by what workers
report now and then, and between two reports send everything to the same worker. Both are here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.router import ROUTER, Arrival, Router, Setting
from kvsim.router.in_flight import LoadRouter, check_poll, least_loaded


class LeastLoadedRouter(LoadRouter):
    """Takes the minimum, one at random among equals."""

    def pick(self, arrival: Arrival, alive: NDArray[np.int64], loads: NDArray[np.int64]) -> int:
        """See `LoadRouter`."""
        return least_loaded(alive, loads, self.rng)


@ROUTER.register("least-loaded", source="Dynamo 1.6.1, router mode least-loaded")
@dataclass(frozen=True, slots=True)
class LeastLoaded:
    """The worker with the fewest requests running or waiting, one at random among equals.

    `poll_s`: null, the router counts its own requests in flight; else it goes by what workers report every so many seconds.
    """

    poll_s: float | None = None

    def __post_init__(self) -> None:
        check_poll(self.poll_s)

    def build(self, setting: Setting) -> Router:
        """The router of one run."""
        return LeastLoadedRouter(setting, self.poll_s)
