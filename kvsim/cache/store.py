"""A store below the host tier, shared by engines: the SSD of a node, or the pool of a cluster.

Law. A key is absent, or held and readable from `ready` on: the end of its write, known when the write is submitted (lookup answers Miss,
Pending, Hit). held = used <= capacity. Above `high` blocks eviction brings the store down to `low`, least recent first; keys that are
being written or read, or whose lease has not run out, stay. What finds no room is dropped. Recency is that of writes and reads; within
a chain the head is the more recent.

Source: Mooncake Store, design and deployment guide (lease, high-water eviction, approximate LRU); an SSD takes the same form with no
lease, high = low = capacity.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.errors import LawError
from kvsim.jit import bundle, kernel
from kvsim.transfer.channel import Ways, make_ways

MISS, PENDING, HIT = range(3)
ROW = np.dtype([("ready", "<f8"), ("lease", "<f8"), ("held", "<i4"), ("prev", "<i4"), ("next", "<i4")], align=True)
META = np.dtype(
    [
        ("capacity", "<i8"),
        ("high", "<i8"),
        ("low", "<i8"),
        ("used", "<i8"),
        ("evictions", "<i8"),
        ("dropped", "<i8"),
        ("closed", "<i8"),  # takes nothing new
        ("copies", "<i8"),  # of each block, to be written
        ("lease_s", "<f8"),
    ],
    align=True,
)


class Store(NamedTuple):
    """`rows` [ids + 1]: a list in order of recency, row 0 is its fence post, row key + 1 a key; `meta` [1]."""

    rows: Any
    meta: Any


@kernel
def look(store, key, now):  # type: ignore[no-untyped-def]
    """MISS, PENDING or HIT. A peek."""
    row = store.rows[key + 1]
    if not row.held:
        return MISS
    return HIT if row.ready <= now else PENDING


@kernel
def unlink(store, at):  # type: ignore[no-untyped-def]
    """Take row `at` out of the list."""
    rows = store.rows
    rows[rows[at].prev].next = rows[at].next
    rows[rows[at].next].prev = rows[at].prev


@kernel
def link_recent(store, at):  # type: ignore[no-untyped-def]
    """Put row `at` at the recent end."""
    rows = store.rows
    last = rows[0].prev
    rows[at].prev = last
    rows[at].next = 0
    rows[last].next = at
    rows[0].prev = at


@kernel
def touch(store, key, until):  # type: ignore[no-untyped-def]
    """A read of `key`, under way until `until`: it is recent, and stays for its lease."""
    row = store.rows[key + 1]
    if row.held:
        unlink(store, key + 1)
        link_recent(store, key + 1)
        row.lease = max(row.lease, until)


@kernel
def remove(store, at):  # type: ignore[no-untyped-def]
    """Row `at` is held no more."""
    unlink(store, at)
    store.rows[at].held = 0
    store.meta[0].used -= 1


@kernel
def make_room(store, wanted, now):  # type: ignore[no-untyped-def]
    """Evict what `wanted` new blocks call for; how many of them there is room for."""
    meta = store.meta[0]
    if meta.closed:
        return 0
    if meta.used + wanted > meta.high:
        target, at = max(min(meta.low, meta.capacity - wanted), 0), store.rows[0].next
        while at != 0 and meta.used > target:
            row = store.rows[at]
            following = row.next
            if row.ready <= now and row.lease <= now:
                remove(store, at)
                meta.evictions += 1
            at = following
    return min(wanted, meta.capacity - meta.used)


@kernel
def put(store, key, ready):  # type: ignore[no-untyped-def]
    """Hold `key`, which is absent, from now on; readable from `ready` on. Room is assumed."""
    row = store.rows[key + 1]
    row.held = 1
    row.ready = ready
    row.lease = 0.0
    link_recent(store, key + 1)
    store.meta[0].used += 1


@kernel
def run_beyond(store, run_start, run_length, skip, now):  # type: ignore[no-untyped-def]
    """Readable blocks of the chain of runs that follow its first `skip` without a gap. A peek."""
    at, found = 0, 0
    for i in range(run_start.shape[0]):
        for k in range(run_length[i]):
            if at >= skip:
                if look(store, run_start[i] + k, now) != HIT:
                    return found
                found += 1
            at += 1
    return found


class SharedStore:
    """A store as an object: `capacity` blocks over `ids` keys, `copies` of each block counting once here and `copies` times on the way.

    `ways`: its own, to write and to read (an SSD); where the NICs of the nodes lead there they stay idle. `high`, `low`: shares of the
    capacity at which eviction starts and stops.
    """

    def __init__(
        self,
        ids: int,
        capacity: int,
        *,
        high: float = 1.0,
        low: float = 1.0,
        lease_s: float = 0.0,
        copies: int = 1,
        ways: Ways | None = None,
    ) -> None:
        meta = np.zeros(1, META).view(np.recarray)
        meta.capacity, meta.high, meta.low, meta.lease_s, meta.copies = capacity, int(capacity * high), int(capacity * low), lease_s, copies
        self.ways = ways if ways is not None else make_ways(1)
        self.state = Store(np.zeros(max(ids, 1) + 1, ROW).view(np.recarray), meta)

    def grow(self, ids: int) -> Store:
        """The state, with room for keys up to `ids` - 1."""
        if ids + 1 > self.state.rows.size:
            self.state = self.state._replace(rows=grown(self.state.rows, ids + 1))
        return self.state

    def close(self, closed: bool) -> None:
        """Whether it takes nothing new."""
        self.state.meta.closed = closed

    def lose(self) -> None:
        """Everything it holds is gone, and it takes nothing new until it is opened again."""
        rows = self.state.rows
        rows.held[:] = 0
        rows.prev[0] = rows.next[0] = 0
        self.state.meta.used = 0
        self.close(True)

    def forget_unwritten(self) -> None:
        """Blocks that were promised by an engine that is gone: those whose write was never submitted."""
        rows = self.state.rows
        for at in np.flatnonzero((rows.held == 1) & np.isinf(rows.ready)):
            remove(bundle(self.state), at)

    @property
    def evictions(self) -> int:
        """Blocks evicted so far."""
        return int(self.state.meta.evictions[0])

    @property
    def capacity(self) -> int:
        """Blocks it can hold."""
        return int(self.state.meta.capacity[0])

    @property
    def used(self) -> int:
        """Blocks held."""
        return int(self.state.meta.used[0])

    def blocks_beyond(self, run_start: NDArray[np.int64], run_length: NDArray[np.int64], skip: int, now_s: float) -> int:
        """See `run_beyond`."""
        return int(run_beyond(bundle(self.state), run_start, run_length, skip, now_s))

    def check(self, name: str) -> None:
        """Recompute the counters from the rows; raises `LawError`."""
        rows, meta = self.state.rows, self.state.meta[0]
        held = int(rows.held[1:].sum())
        if held != meta.used or held > meta.capacity:
            raise LawError(f"{name}: {held} blocks held, {meta.used} counted, capacity {meta.capacity}")
        length, at = 0, int(rows.next[0])
        while at and length <= held:
            length, at = length + 1, int(rows.next[at])
        if length != held:
            raise LawError(f"{name}: {length} blocks in the order of eviction, {held} held")
