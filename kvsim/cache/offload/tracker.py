"""Counts how often a block was offered to the host tier, in an LRU table of bounded size.

Source: vLLM 0.33.0 `kv_offload/cpu/manager.py`, `store_threshold` and `max_tracker_size` (behaviour).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.jit import kernel

TRACKED = 64_000


class Tracker(NamedTuple):
    """A linked list over nodes [ids + 1] (0 is the fence post, key + 1 a key), least recent first; `meta`: length, bound, stamp."""

    prev: NDArray[np.int32]
    next: NDArray[np.int32]
    stamp: NDArray[np.int64]
    meta: NDArray[np.int64]


def make_tracker(ids: int, bound: int = TRACKED) -> Tracker:
    """An empty table over keys 0..ids-1."""
    return Tracker(np.zeros(ids + 1, np.int32), np.zeros(ids + 1, np.int32), np.zeros(ids + 1, np.int64), np.array([0, bound, 0], np.int64))


@kernel
def unlink(t, node):  # type: ignore[no-untyped-def]
    """Take a node out of the list."""
    before, following = t.prev[node], t.next[node]
    t.next[before] = following
    t.prev[following] = before
    t.meta[0] -= 1


@kernel
def link_last(t, node):  # type: ignore[no-untyped-def]
    """Put a node at the recent end."""
    last = t.prev[0]
    t.prev[node] = last
    t.next[node] = 0
    t.next[last] = node
    t.prev[0] = node
    t.meta[0] += 1


@kernel
def offer(t, keys, ids, lo, hi):  # type: ignore[no-untyped-def]
    """Count an offer of the blocks `ids[lo:hi]`; blocks of the same offer don't push each other out of the table."""
    t.meta[2] += 1
    kept = 0
    for i in range(lo, hi):
        if keys[ids[i]].offers > 0:
            unlink(t, ids[i] + 1)
            link_last(t, ids[i] + 1)
            keys[ids[i]].offers += 1
            t.stamp[ids[i] + 1] = t.meta[2]
            kept += 1
    outside = t.meta[0] - kept
    for i in range(lo, hi):
        if t.stamp[ids[i] + 1] == t.meta[2]:
            continue
        if t.meta[0] >= t.meta[1]:
            if outside == 0:
                continue
            oldest = t.next[0]
            keys[oldest - 1].offers = 0
            unlink(t, oldest)
            outside -= 1
        link_last(t, ids[i] + 1)
        keys[ids[i]].offers = 1
