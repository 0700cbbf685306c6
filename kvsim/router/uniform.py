"""Random: any worker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.router import ROUTER, Arrival, Router, Setting, Workers


class RandomRouter(Router):
    """Draws among the workers that are up."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, arrival: Arrival, workers: Workers) -> int:
        """See `Router`."""
        alive = np.flatnonzero(workers.alive)
        return int(alive[self._rng.integers(alive.size)])


@ROUTER.register("random", source="sglang-router 0.3.2 and Dynamo 1.6.1, random")
@dataclass(frozen=True, slots=True)
class Random:
    """A worker at random, all alike."""

    def build(self, setting: Setting) -> Router:
        """The router of one run."""
        return RandomRouter(setting.rng)
