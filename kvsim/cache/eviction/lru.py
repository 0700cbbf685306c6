"""Least recently used, by request: a request's blocks share its recency, the tail of its chain goes before the head.

The victim is the idle key of lowest (request rank, -position). A request takes its rank at its first access and the order is settled
anew, tail first, when it ends: recency is when the last user ended, not when a transfer did. Ranks live in a lazy heap, as keys move
up while they are pinned.

Source: vLLM 0.33.0 `v1/kv_offload/cpu/policies/lru.py` (behaviour).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.cache.eviction import EVICTION
from kvsim.cache.tier import ABSENT, MET_HERE
from kvsim.jit import kernel

POSITIONS = 1 << 22  # more blocks than any chain has
HEAP, RANK, RESIDENT = range(3)


class LruState(NamedTuple):
    """`rank` [ids]; `resident` [capacity], `slot` [ids]: keys in the tier, dense; a heap of (rank, key); `meta`: HEAP, RANK, RESIDENT."""

    rank: NDArray[np.int64]
    slot: NDArray[np.int32]
    resident: NDArray[np.int32]
    heap_rank: NDArray[np.int64]
    heap_key: NDArray[np.int32]
    meta: NDArray[np.int64]


@kernel
def request_rank(e, h, r, k):  # type: ignore[no-untyped-def]
    """Rank of block k of request r while the request lives."""
    meta = h.policy.meta
    if h.rows[r].rank == 0:
        meta[RANK] += 1
        h.rows[r].rank = meta[RANK]
    return h.rows[r].rank * POSITIONS + (POSITIONS - 2 - k)


@kernel
def sift_up(p, i):  # type: ignore[no-untyped-def]
    """Restore the heap above entry i."""
    rank, key = p.heap_rank[i], p.heap_key[i]
    while i > 0 and p.heap_rank[(i - 1) // 2] > rank:
        p.heap_rank[i], p.heap_key[i] = p.heap_rank[(i - 1) // 2], p.heap_key[(i - 1) // 2]
        i = (i - 1) // 2
    p.heap_rank[i], p.heap_key[i] = rank, key


@kernel
def push(e, h, key):  # type: ignore[no-untyped-def]
    """Enter `key` at its present rank; when the heap is full of outdated entries it is rebuilt from the idle keys."""
    p = h.policy
    if p.meta[HEAP] == p.heap_key.shape[0]:
        p.meta[HEAP] = 0
        for i in range(p.meta[RESIDENT]):
            other = p.resident[i]
            if h.keys[other].ref == 0 and other != key:
                n = p.meta[HEAP]
                p.heap_rank[n], p.heap_key[n] = p.rank[other], other
                p.meta[HEAP] += 1
                sift_up(p, n)
    n = p.meta[HEAP]
    p.heap_rank[n], p.heap_key[n] = p.rank[key], key
    p.meta[HEAP] += 1
    sift_up(p, n)


@kernel
def pop(p):  # type: ignore[no-untyped-def]
    """Take the entry of lowest rank: (rank, key)."""
    rank, key = p.heap_rank[0], p.heap_key[0]
    p.meta[HEAP] -= 1
    n = p.meta[HEAP]
    last_rank, last_key = p.heap_rank[n], p.heap_key[n]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and p.heap_rank[child + 1] < p.heap_rank[child]:
            child += 1
        if p.heap_rank[child] >= last_rank:
            break
        p.heap_rank[i], p.heap_key[i] = p.heap_rank[child], p.heap_key[child]
        i = child
    p.heap_rank[i], p.heap_key[i] = last_rank, last_key
    return rank, key


@kernel
def move_to(e, h, key, rank):  # type: ignore[no-untyped-def]
    """Give a resident key a new rank."""
    h.policy.rank[key] = rank
    if h.keys[key].ref == 0:
        push(e, h, key)


@kernel
def access(e, h, r, k):  # type: ignore[no-untyped-def]
    """See the package's contract."""
    key = e.ids[e.requests[r].offset + k]
    rank = request_rank(e, h, r, k)
    if h.keys[key].ref != ABSENT and h.policy.rank[key] < rank:
        move_to(e, h, key, rank)


@kernel
def missed(e, h, key):  # type: ignore[no-untyped-def]
    """LRU keeps no ghosts."""


@kernel
def insert(e, h, r, k):  # type: ignore[no-untyped-def]
    """See the package's contract."""
    p, key = h.policy, e.ids[e.requests[r].offset + k]
    p.rank[key] = request_rank(e, h, r, k)
    p.resident[p.meta[RESIDENT]] = key
    p.slot[key] = p.meta[RESIDENT]
    p.meta[RESIDENT] += 1


@kernel
def idle(e, h, key):  # type: ignore[no-untyped-def]
    """See the package's contract."""
    push(e, h, key)


@kernel
def victims(e, h, n, stamp):  # type: ignore[no-untyped-def]
    """See the package's contract."""
    p, keys, found, spared = h.policy, h.keys, 0, 0
    chosen = h.scratch
    while p.meta[HEAP] > 0 and found < n:
        rank, key = pop(p)
        if keys[key].ref != 0 or p.rank[key] != rank:
            continue
        if keys[key].stamp == stamp:
            spared += 1
            chosen[chosen.shape[0] - spared] = key
            keys[key].ref = ABSENT  # so that an equal entry further down isn't taken again
            continue
        chosen[found] = key
        keys[key].ref = ABSENT
        found += 1
    for i in range(1, spared + 1):
        keys[chosen[chosen.shape[0] - i]].ref = 0
        push(e, h, chosen[chosen.shape[0] - i])
    if found < n:
        for i in range(found):
            keys[chosen[i]].ref = 0
            push(e, h, chosen[i])
        return False
    for i in range(found):
        p.meta[RESIDENT] -= 1
        last = p.resident[p.meta[RESIDENT]]
        p.resident[p.slot[chosen[i]]] = last
        p.slot[last] = p.slot[chosen[i]]
    return True


@kernel
def finished(e, h, r):  # type: ignore[no-untyped-def]
    """See the package's contract."""
    request, p = e.requests[r], h.policy
    for k in range(request.tokens // e.config[0].block_tokens - 1, -1, -1):
        key = e.ids[request.offset + k]
        if h.flags[request.offset + k] & MET_HERE and h.keys[key].ref != ABSENT:
            p.meta[RANK] += 1
            move_to(e, h, key, p.meta[RANK] * POSITIONS + POSITIONS - 1)


@EVICTION.register("lru", source="vLLM 0.33.0, v1/kv_offload/cpu/policies/lru.py")
@dataclass(frozen=True, slots=True)
class Lru:
    """Least recently used, tail of a chain before its head."""

    parts: ClassVar[dict[str, Any]] = {
        "evict_access": access,
        "evict_missed": missed,
        "evict_insert": insert,
        "evict_idle": idle,
        "evict_victims": victims,
        "evict_finished": finished,
    }

    def make_state(self, capacity: int, ids: int) -> LruState:
        """Empty state for `capacity` blocks over keys 0..ids-1."""
        size = 4 * capacity + 64
        return LruState(
            np.zeros(ids, np.int64),
            np.zeros(ids, np.int32),
            np.zeros(capacity, np.int32),
            np.zeros(size, np.int64),
            np.zeros(size, np.int32),
            np.zeros(3, np.int64),
        )

    def grow_ids(self, state: LruState, ids: int) -> LruState:
        """The same state over more keys."""
        return state._replace(rank=grown(state.rank, ids), slot=grown(state.slot, ids))
