"""Power of two choices: the less loaded of two workers drawn at random.

Nearly as even as the least loaded of all, without its herding on stale loads: Mitzenmacher, IEEE TPDS 12(10), 2001.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.router import ROUTER, Arrival, Router, Setting
from kvsim.router.in_flight import LoadRouter, check_poll


class PowerOfTwoRouter(LoadRouter):
    """Draws two different workers; among equals the first drawn."""

    def pick(self, arrival: Arrival, alive: NDArray[np.int64], loads: NDArray[np.int64]) -> int:
        """See `LoadRouter`."""
        if alive.size == 1:
            return int(alive[0])
        first, second = alive[self.rng.choice(alive.size, 2, replace=False)]
        return int(first if loads[first] <= loads[second] else second)


@ROUTER.register("power-of-two", source="sglang-router 0.3.2, power_of_two")
@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """Of two workers drawn at random the one with fewer requests running or waiting.

    `poll_s`: null, the router counts its own requests in flight; else it goes by what workers report every so many seconds.
    """

    poll_s: float | None = None

    def __post_init__(self) -> None:
        check_poll(self.poll_s)

    def build(self, setting: Setting) -> Router:
        """The router of one run."""
        return PowerOfTwoRouter(setting, self.poll_s)
