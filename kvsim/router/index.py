"""What a router knows of the caches of workers, from what they tell of them.

A router that hears of blocks as they come and go sees them as they were when it was last told. A hit ends at the first gap: blocks of a
prompt behind a missing one count for nothing. Source of the tiers' order: Dynamo 1.6.1, lib/kv-router (device, host, disk).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsim.jit import kernel
from kvsim.router import Arrival
from kvsim.router.table import widened

HBM, HOST, DISK = 0, 1, 2


@kernel
def apply_events(held, worker, bit, keys, present):  # type: ignore[no-untyped-def]
    """Set (present 1) or clear (0) `bit` of each key of `worker`, in order."""
    for i in range(keys.shape[0]):
        if present[i]:
            held[worker, keys[i]] |= bit
        else:
            held[worker, keys[i]] &= 255 - bit


@kernel
def match_tiers(held, run_start, run_length, depth):  # type: ignore[no-untyped-def]
    """Fill `depth` [tiers, workers]: leading blocks of the runs that each worker has in a tier or in one above it."""
    for worker in range(held.shape[0]):
        total, tier = 0, 0
        for i in range(run_start.shape[0]):
            for key in range(run_start[i], run_start[i] + run_length[i]):
                bits = held[worker, key] if key < held.shape[1] else 0
                while tier < depth.shape[0] and bits & ((2 << tier) - 1) == 0:
                    depth[tier, worker] = total
                    tier += 1
                if tier == depth.shape[0]:
                    break
                total += 1
            if tier == depth.shape[0]:
                break
        while tier < depth.shape[0]:
            depth[tier, worker] = total
            tier += 1


class CacheIndex:
    """The blocks that each of `workers` workers told of, by tier. `ids`: how many block ids to expect; it grows by itself."""

    def __init__(self, workers: int, ids: int) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self._held = np.zeros((workers, max(ids, 1)), np.uint8)

    def tell(self, worker: int, tier: int, keys: NDArray[np.int32], present: NDArray[np.uint8]) -> None:
        """Blocks `keys` came to (present 1) or went from (0) `tier` (`HBM`, `HOST` or `DISK`) of `worker`, in this order."""
        if keys.size:
            self._held = widened(self._held, int(keys.max()) + 1)
            apply_events(self._held, worker, np.uint8(1 << tier), keys, present)

    def forget(self, worker: int) -> None:
        """`worker` has nothing any more."""
        self._held[worker] = 0

    def match(self, arrival: Arrival) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Leading blocks of `arrival` in HBM, those that follow without a gap in host memory, then on disk; each [workers].

        A block counts for the slowest tier reached so far, even where it is in a faster one too: behind a gap in HBM there are no HBM hits.
        """
        depth = np.zeros((3, self._held.shape[0]), np.int64)
        match_tiers(self._held, arrival.run_start, arrival.run_length, depth)
        return depth[HBM], depth[HOST] - depth[HBM], depth[DISK] - depth[HOST]
