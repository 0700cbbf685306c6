"""Eviction policies of a bounded tier, one a file.

A policy is a frozen dataclass (its parameters) with `make_state(capacity, ids)` -> NamedTuple of arrays, `grow_ids(state, ids)` and
`parts`, the kernels linked into the tier under these names (host: the tier's state, `host.policy` the policy's own):

- `evict_access(e, r, k)`   request r met block k of its chain for the first time (resident or not); recency only, no frequency;
- `evict_missed(e, key)`    a key about to be stored is absent: ghosts may learn from it;
- `evict_insert(e, r, k)`   block k of request r enters;
- `evict_idle(e, key)`      the key can be evicted from now on (no transfer holds it);
- `evict_victims(e, n, stamp)`  remove exactly n idle keys whose stamp isn't `stamp`; False, and nothing changed, if there aren't n;
- `evict_finished(e, r)`    request r ended: its accesses count as one.
"""

from kvsim.registry import Registry

EVICTION = Registry("eviction policy", "kvsim.cache.eviction")
