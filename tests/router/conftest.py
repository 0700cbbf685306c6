"""Arrivals, workers and settings to show to routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvsim.rng import stream
from kvsim.router import Arrival, Router, Setting, Workers

BLOCK = 16


def arrival(
    number: int, runs: Sequence[tuple[int, int]] = ((0, 4),), *, at_s: float = 0.0, session: str = "s", beyond_tokens: int = 1
) -> Arrival:
    """A prompt of the ids start .. start + length - 1 of each run, and `beyond_tokens` more."""
    start, length = np.array(runs, np.int64).reshape(-1, 2).T.copy()
    return Arrival(number, at_s, session, int(length.sum()) * BLOCK + beyond_tokens, BLOCK, start, length)


def ids_of(request: Arrival) -> list[int]:
    """All block ids of the prompt."""
    return [i for start, length in zip(request.run_start, request.run_length, strict=True) for i in range(start, start + length)]


def workers(n: int, *, alive: Sequence[bool] | None = None, **columns: Sequence[float]) -> Workers:
    """`n` idle workers with nothing cached, but for the `columns` given."""
    kinds = {"alive": np.bool_, "usage": np.float64}
    given: dict[str, Any] = {"alive": [True] * n if alive is None else alive, **columns}
    return Workers(**{name: np.array(given.get(name, [0] * n), kinds.get(name, np.int64)) for name in Workers.__dataclass_fields__})


def setting(n: int, *, seed: int = 1, ids: int = 64, role: Any = "both") -> Setting:
    """`n` workers of 1000 blocks; a token takes 100 us to prefill, a block 1 ms to copy."""
    return Setting(n, role, BLOCK, 1000, 8192, ids, stream(seed, "router"), lambda new, cached: 1e-4 * new, 1e-3)


def build(parameters: Any, n: int, *, seed: int = 1) -> Router:
    """The router of these parameters for `n` workers."""
    router: Router = parameters.build(setting(n, seed=seed))
    return router


def tree_chain(draws: Sequence[int], depth: int) -> list[tuple[int, int]]:
    """Runs of a path through a tree with `depth` nodes of 3 blocks under each of which two hang; `draws` says where to turn."""
    node, runs = 1, []
    for turn in draws[:depth]:
        runs.append((3 * node, 3))
        node = 2 * node + turn
    return runs
