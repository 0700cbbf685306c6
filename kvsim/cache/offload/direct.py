"""A store reached straight from HBM, with no host tier between: a shared pool over the NIC, or an SSD with GPUDirect Storage.

Rules (vLLM 0.33.0 MooncakeStoreConnector with load_async; behaviour, not code):
- blocks confirmed computed before this step, prompt and output, that the store lacks are written; what is left when a request ends is
  written with the next step; HBM blocks being written hold a reference; what finds no room is dropped;
- a hit is the longest readable run behind the HBM hit, at most all tokens but the last; a block still being written is a miss; reads
  start with the step, and what they read can't be evicted for its lease.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.cache.offload import HOOKS, BelowTier, Connector, HostTier, Sizes
from kvsim.cache.offload.jobs import next_completion  # noqa: F401  (a hook, taken by name)
from kvsim.cache.offload.none import log_room  # noqa: F401
from kvsim.cache.pool import NONE, release, touch
from kvsim.cache.store import HIT, MISS, SharedStore, Store, look, make_room, put
from kvsim.cache.store import touch as touch_store
from kvsim.cache.tier import STORED
from kvsim.jit import kernel
from kvsim.transfer.channel import (
    DOWN,
    POOL_READ,
    POOL_WRITE,
    SSD_READ,
    SSD_WRITE,
    UP,
    Transfers,
    Ways,
    new_job,
    next_done,
    retire,
    submit_over,
)

ROW = np.dtype([("tracked", "<i8"), ("cursor", "<i8")], align=True)
META = np.dtype(
    [
        ("pool", "<i8"),  # the store is the pool: over the NICs of `node`
        ("node", "<i8"),
        ("written", "<i8"),  # blocks ever planned: the ring's write position
        ("late", "<i8"),
        ("loads", "<i8"),
        ("store_job", "<i8"),  # 1 + slot of this pass's write
    ],
    align=True,
)


class DirectHost(NamedTuple):
    """The `store`, the `ways` of an SSD, `rows` [requests], a ring of HBM blocks being written, those of ended requests, loads to start."""

    store: Store
    ways: Ways
    rows: Any
    meta: Any
    ring: NDArray[np.int32]
    late: NDArray[np.int32]
    loads: NDArray[np.int32]


@kernel
def joined(e, h, r):  # type: ignore[no-untyped-def]
    """See `none.joined`."""
    h.rows[r].tracked = 0
    h.rows[r].cursor = 0


@kernel
def match(e, h, r, hits):  # type: ignore[no-untyped-def]
    """See `none.match`."""
    request, size = e.requests[r], e.config[0].block_tokens
    reach, end = hits, (request.tokens - 1) // size
    while reach < end and look(h.store, e.ids[request.offset + reach], e.state[0].clock) == HIT:
        reach += 1
    return (reach - hits) * size


@kernel
def allocated(e, h, r, hits, tokens, first):  # type: ignore[no-untyped-def]
    """See `none.allocated`."""
    request, meta = e.requests[r], h.meta[0]
    h.rows[r].tracked = 1
    if tokens == 0:
        return
    upto = hits + tokens // e.config[0].block_tokens
    h.loads[meta.loads] = new_job(e.transfers, POOL_READ if meta.pool else SSD_READ, r, hits, upto, upto - hits)
    meta.loads += 1
    if first and meta.pool:
        request.pool_tokens = request.host_tokens
    elif first:
        request.ssd_tokens = request.host_tokens


@kernel
def write(e, h, r, blocks, out, at):  # type: ignore[no-untyped-def]
    """Hold the blocks of `r` among its first `blocks` that the store lacks, and write them to `out` from `at` on; how many."""
    request, row, now = e.requests[r], h.rows[r], e.state[0].clock
    ready, found = min(blocks, request.computed // e.config[0].block_tokens), 0
    while row.cursor < ready:
        block = e.table[request.offset + row.cursor]
        state = e.pool.blocks[block]
        if state.key != NONE and state.job == 0 and look(h.store, state.key, now) == MISS:
            if make_room(h.store, 1, now) == 1:
                put(h.store, state.key, np.inf)
                state.job = 1
                touch(e.pool, block)
                out[(at + found) % out.shape[0]] = block
                found += 1
            else:
                h.store.meta[0].dropped += 1
        row.cursor += 1
    return found


@kernel
def plan(e, h):  # type: ignore[no-untyped-def]
    """See `none.plan`."""
    state, meta = e.state[0], h.meta[0]
    began = meta.written
    for i in range(state.preempted):
        h.rows[e.preempted[i]].cursor = 0
    for i in range(state.scheduled):
        r = e.scheduled[i]
        if h.rows[r].tracked:
            meta.written += write(e, h, r, e.requests[r].blocks, h.ring, meta.written)
    for i in range(meta.late):
        h.ring[(meta.written + i) % h.ring.shape[0]] = h.late[i]
    meta.written += meta.late
    meta.late = 0
    if meta.written > began:
        blocks = (meta.written - began) * h.store.meta[0].copies
        meta.store_job = 1 + new_job(e.transfers, POOL_WRITE if meta.pool else SSD_WRITE, -1, began, meta.written, blocks)


@kernel
def send(e, h, slot, w):  # type: ignore[no-untyped-def]
    """Submit a job now; when it ends."""
    if h.meta[0].pool:
        submit_over(e.transfers, slot, e.nics, 2 * h.meta[0].node + w, e.state[0].clock)
    else:
        submit_over(e.transfers, slot, h.ways, w, e.state[0].clock)
    return e.transfers.jobs[slot].done


@kernel
def begin(e, h):  # type: ignore[no-untyped-def]
    """See `none.begin`."""
    state, meta = e.state[0], h.meta[0]
    for j in range(meta.loads):
        job = e.transfers.jobs[h.loads[j]]
        done = send(e, h, h.loads[j], UP)
        base = e.requests[job.row].offset
        for i in range(base + job.hi - 1, base + job.lo - 1, -1):
            touch_store(h.store, e.ids[i], max(done, state.clock + h.store.meta[0].lease_s))
        if e.config[0].layerwise:
            state.overlap = max(state.overlap, done)
    meta.loads = 0
    if meta.store_job:
        job = e.transfers.jobs[meta.store_job - 1]
        done = send(e, h, meta.store_job - 1, DOWN)
        for i in range(job.lo, job.hi):
            key = e.pool.blocks[h.ring[i % h.ring.shape[0]]].key
            h.store.rows[key + 1].ready = done
            e.seen[key] |= STORED
        meta.store_job = 0


@kernel
def end(e, h):  # type: ignore[no-untyped-def]
    """See `none.end`."""


@kernel
def ended(e, h, r):  # type: ignore[no-untyped-def]
    """See `none.ended`."""
    size = e.config[0].block_tokens
    if h.rows[r].tracked:
        h.meta[0].late += write(e, h, r, (e.requests[r].computed + size - 1) // size, h.late, h.meta[0].late)
    return True


@kernel
def complete(e, h):  # type: ignore[no-untyped-def]
    """See `none.complete`."""
    while True:
        slot = next_done(e.transfers)
        if slot < 0 or e.transfers.jobs[slot].done > e.state[0].clock:
            return
        job = e.transfers.jobs[slot]
        if job.row >= 0:
            e.requests[job.row].loaded = 1
            e.requests[job.row].load_s += job.done - e.requests[job.row].load_start
        else:
            front = e.pool.meta[0].end
            for i in range(job.lo, job.hi):
                block = h.ring[i % h.ring.shape[0]]
                e.pool.blocks[block].job = 0
                front = release(e.pool, block, front)
        retire(e.transfers, slot)


@kernel
def open_work(e, h):  # type: ignore[no-untyped-def]
    """See `none.open_work`: blocks of ended requests wait to be written, or some job holds a slot."""
    return h.meta[0].late > 0 or e.transfers.meta[0] < e.transfers.jobs.shape[0]


@kernel
def room(e, h):  # type: ignore[no-untyped-def]
    """See `none.room`."""
    return e.transfers.meta[0] >= e.state[0].live + 2


class DirectConnector(Connector):
    """The connector of one engine to the store of `tier`: its pool, or without one its SSD."""

    def __init__(self, tier: BelowTier) -> None:
        super().__init__(HostTier(0, below=tier))
        self.below = tier

    @property
    def parts(self) -> dict[str, Any]:
        """The hooks of this module."""
        return {f"offload_{name}": globals()[name] for name in HOOKS}

    def _store(self, ids: int) -> Store:
        store = self.below.pool or self.below.ssd or SharedStore(ids, 0)
        return store.grow(ids)

    def make_state(self, sizes: Sizes) -> DirectHost:
        """See `Connector.make_state`."""
        meta = np.zeros(1, META).view(np.recarray)
        meta.pool, meta.node = self.below.has_pool, self.below.node
        ring = np.zeros(sizes.hbm_blocks + 1, np.int32)
        rows = np.zeros(sizes.rows, ROW).view(np.recarray)
        return DirectHost(self._store(sizes.ids), self.below.ssd_ways, rows, meta, ring, ring.copy(), np.zeros(sizes.slots, np.int32))

    def grow_ids(self, state: DirectHost, ids: int) -> DirectHost:
        """See `Connector.grow_ids`."""
        return state._replace(store=self._store(ids))

    def grow_rows(self, state: DirectHost, rows: int) -> DirectHost:
        """See `Connector.grow_rows`."""
        return state._replace(rows=grown(state.rows, rows))

    def grow_jobs(self, transfers: Transfers, state: DirectHost) -> tuple[Transfers, DirectHost]:
        """See `Connector.grow_jobs`."""
        transfers, state = super().grow_jobs(transfers, state)
        return transfers, state._replace(loads=grown(state.loads, transfers.jobs.size))

    def hbm_references(self, e: Any, h: DirectHost) -> NDArray[np.int64]:
        """See `Connector.hbm_references`: blocks being written."""
        held = np.zeros(e.pool.blocks.size, np.int64)
        jobs = e.transfers.jobs
        for job in jobs[(jobs.live == 1) & (jobs.row < 0)]:
            np.add.at(held, h.ring[np.arange(int(job.lo), int(job.hi)) % h.ring.size], 1)
        np.add.at(held, h.late[: int(h.meta.late[0])], 1)
        return held
