"""Adaptive replacement: T1 holds keys used by one request, T2 by several; ghosts B1 and B2 move the target size of T1.

A ghost hit in B1 raises the target by max(1, |B2| / |B1|), in B2 lowers it by max(1, |B1| / |B2|). The victim comes from T1 while
|T1| >= int(target), else from T2, else from the other. A request's reuse counts once, when it ends; new keys enter T1.

Source: Megiddo and Modha, ARC, FAST 2003; with the bookkeeping by request of vLLM 0.33.0 `v1/kv_offload/cpu/policies/arc.py` (behaviour).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.eviction import EVICTION
from kvsim.cache.tier import ABSENT, INSERTED_HERE, MET_HERE, REUSED_HERE
from kvsim.jit import kernel

T1, T2, B1, B2, NOWHERE = range(5)
FENCES = 4  # nodes 0..3 are the lists' fence posts, node key + FENCES is a key


class ArcState(NamedTuple):
    """Four linked lists over nodes [ids + 4], front first out; `where` the list of a node; `size` [4]; `target` [1] of T1."""

    prev: NDArray[np.int32]
    next: NDArray[np.int32]
    where: NDArray[np.int8]
    size: NDArray[np.int64]
    target: NDArray[np.float64]


@kernel
def drop(p, node):  # type: ignore[no-untyped-def]
    """Unlink a node from the list it is in."""
    p.next[p.prev[node]] = p.next[node]
    p.prev[p.next[node]] = p.prev[node]
    p.size[p.where[node]] -= 1
    p.where[node] = NOWHERE


@kernel
def append(p, which, node):  # type: ignore[no-untyped-def]
    """Put a node, taken out of where it was, at the back of list `which`."""
    if p.where[node] != NOWHERE:
        drop(p, node)
    last = p.prev[which]
    p.prev[node] = last
    p.next[node] = which
    p.next[last] = node
    p.prev[which] = node
    p.where[node] = which
    p.size[which] += 1


@kernel
def access(e, h, r, k):  # type: ignore[no-untyped-def]
    """Counts when the request ends."""


@kernel
def missed(e, h, key):  # type: ignore[no-untyped-def]
    """See the package's contract."""
    p, node = h.policy, key + FENCES
    if p.where[node] == B1:
        p.target[0] = min(p.target[0] + max(1.0, p.size[B2] / p.size[B1]), h.meta[0].capacity)
        append(p, B1, node)
    elif p.where[node] == B2:
        p.target[0] = max(p.target[0] - max(1.0, p.size[B1] / p.size[B2]), 0.0)
        append(p, B2, node)


@kernel
def insert(e, h, r, k):  # type: ignore[no-untyped-def]
    """See the package's contract."""
    append(h.policy, T1, e.ids[e.requests[r].offset + k] + FENCES)


@kernel
def idle(e, h, key):  # type: ignore[no-untyped-def]
    """Victims are looked for among the idle; nothing to note."""


@kernel
def next_idle(e, h, node, stamp):  # type: ignore[no-untyped-def]
    """The first idle key without `stamp` from `node` on; a fence post if there is none."""
    while node >= FENCES and (h.keys[node - FENCES].ref != 0 or h.keys[node - FENCES].stamp == stamp):
        node = h.policy.next[node]
    return node


@kernel
def victims(e, h, n, stamp):  # type: ignore[no-untyped-def]
    """See the package's contract."""
    p, chosen = h.policy, h.scratch
    size = p.size[T1]
    a, b = p.next[T1], p.next[T2]
    for i in range(n):
        node = T1
        if size >= int(p.target[0]):
            a = next_idle(e, h, a, stamp)
            node = a
        if node < FENCES:
            b = next_idle(e, h, b, stamp)
            node = b
        if node < FENCES:
            a = next_idle(e, h, a, stamp)
            node = a
        if node < FENCES:
            return False
        if p.where[node] == T1:
            a = p.next[node]
            size -= 1
        else:
            b = p.next[node]
        chosen[i] = node
    for i in range(n):
        node = chosen[i]
        h.keys[node - FENCES].ref = ABSENT
        append(p, B1 if p.where[node] == T1 else B2, node)
    for ghost in (B1, B2):
        while p.size[ghost] > h.meta[0].capacity:
            drop(p, p.next[ghost])
    return True


@kernel
def finished(e, h, r):  # type: ignore[no-untyped-def]
    """See the package's contract."""
    request, p = e.requests[r], h.policy
    for k in range(request.tokens // e.config[0].block_tokens - 1, -1, -1):
        flags = h.flags[request.offset + k]
        node = e.ids[request.offset + k] + FENCES
        if not flags & MET_HERE or p.where[node] > T2:
            continue
        if flags & REUSED_HERE:
            append(p, T2, node)
        elif flags & INSERTED_HERE:
            append(p, p.where[node], node)


@EVICTION.register("arc", source="Megiddo and Modha, FAST 2003; vLLM 0.33.0, v1/kv_offload/cpu/policies/arc.py")
@dataclass(frozen=True, slots=True)
class Arc:
    """Adaptive replacement cache between recency and frequency."""

    parts: ClassVar[dict[str, Any]] = {
        "evict_access": access,
        "evict_missed": missed,
        "evict_insert": insert,
        "evict_idle": idle,
        "evict_victims": victims,
        "evict_finished": finished,
    }

    def make_state(self, capacity: int, ids: int) -> ArcState:
        """Empty lists over keys 0..ids-1."""
        fences = np.arange(ids + FENCES, dtype=np.int32)
        return ArcState(fences.copy(), fences.copy(), np.full(ids + FENCES, NOWHERE, np.int8), np.zeros(4, np.int64), np.zeros(1))

    def grow_ids(self, state: ArcState, ids: int) -> ArcState:
        """The same lists over more keys."""
        fresh = self.make_state(0, ids)
        for name in ("prev", "next", "where"):
            old = getattr(state, name)
            getattr(fresh, name)[: old.size] = old
        return fresh._replace(size=state.size, target=state.target)
