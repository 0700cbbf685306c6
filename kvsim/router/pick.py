"""Picking a worker by its cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def lowest(costs: NDArray[np.float64], workers: NDArray[np.int64], rng: np.random.Generator) -> int:
    """The one of `workers` with the least of the `costs`, each at its own place; among equals one uniformly at random."""
    equals = workers[costs == costs.min()]
    return int(equals[0]) if equals.size == 1 else int(equals[rng.integers(equals.size)])
