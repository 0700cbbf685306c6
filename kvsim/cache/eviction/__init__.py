"""Eviction policies of a bounded tier, one a file.

A policy is a frozen dataclass (its parameters) with `make_state(capacity, ids)` -> NamedTuple of arrays, `grow_ids(state, ids)` and
`parts`, the kernels linked into the tier under these names (e: the engine's state, h: the tier's, `h.policy` the policy's own):

- `evict_access(e, h, r, k)`   request r met block k of its chain for the first time (resident or not); recency only, no frequency;
- `evict_missed(e, h, key)`    a key about to be stored is absent: ghosts may learn from it;
- `evict_insert(e, h, r, k)`   block k of request r enters;
- `evict_idle(e, h, key)`      the key can be evicted from now on (no transfer holds it);
- `evict_victims(e, h, n, stamp)`  remove exactly n idle keys whose stamp isn't `stamp`; False, and nothing changed, if there aren't n;
- `evict_finished(e, h, r)`    request r ended: its accesses count as one.
"""

from kvsim.registry import Registry

EVICTION = Registry("eviction policy", "kvsim.cache.eviction")
