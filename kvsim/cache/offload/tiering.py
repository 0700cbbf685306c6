"""Tiers below the host, under the native connector: the node's SSD and the cluster's pool, as in vLLM's TieringOffloadingSpec.

Rules (vLLM 0.33.0, `v1/kv_offload/tiering/`; behaviour, not code):
- write-through: once a block has been stored in the host it goes on to every tier below that lacks it; until it is there the host's copy
  is pinned; a tier that finds no room drops it;
- a block that the host lacks and a tier below has is lifted: the host takes a block for it at once (which may evict), the request is
  asked again in a later pass, one read a tier and request is submitted with the step, and from the host the block is loaded as any
  other. With no room in the host it is a miss;
- with GPUDirect Storage blocks of the SSD are loaded into HBM in one hop, without a block of the host.

Reads and writes of engines of one node share its drives, those of the pool its NICs, in the order of their passes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.cache.eviction.lru import idle as evict_idle
from kvsim.cache.eviction.lru import insert as evict_insert
from kvsim.cache.eviction.lru import missed as evict_missed
from kvsim.cache.log import note
from kvsim.cache.offload import BelowTier, Sizes
from kvsim.cache.offload.below import DIRECT, LIFT, NOT_BELOW
from kvsim.cache.offload.native import arrived, take_room
from kvsim.cache.store import HIT, MISS, Store, look, make_room, put, touch
from kvsim.cache.tier import ABSENT, FROM_POOL, FROM_SSD, INSERTED_HERE, MET_HERE, MISSED_HERE, STRAIGHT, WRITING
from kvsim.jit import kernel
from kvsim.transfer.channel import DOWN, POOL_READ, POOL_WRITE, SSD_READ, SSD_WRITE, UP, Ways, new_job, submit_over

META = np.dtype([("ssd", "<i8"), ("pool", "<i8"), ("gds", "<i8"), ("node", "<i8"), ("planned", "<i8")], align=True)


class Below(NamedTuple):
    """The stores (of size 0 where there is none), the ways to the SSD, per arena entry 1 + the job that writes it down, `planned` jobs."""

    ssd: Store
    ssd_ways: Ways
    pool: Store
    meta: Any
    to_ssd: NDArray[np.int32]
    to_pool: NDArray[np.int32]
    planned: NDArray[np.int32]


@kernel
def where(e, h, key):  # type: ignore[no-untyped-def]
    """See `below.where`."""
    meta, now = h.below.meta[0], e.state[0].clock
    if meta.ssd and look(h.below.ssd, key, now) == HIT:
        return DIRECT if meta.gds else LIFT
    if meta.pool and look(h.below.pool, key, now) == HIT:
        return LIFT
    return NOT_BELOW


@kernel
def plan_job(e, h, channel, r, lo, hi, blocks):  # type: ignore[no-untyped-def]
    """A job of request r that is submitted with the step; its slot."""
    slot = new_job(e.transfers, channel, r, lo, hi, blocks)
    h.below.planned[h.below.meta[0].planned] = slot
    h.below.meta[0].planned += 1
    h.rows[r].jobs += 1
    return slot


@kernel
def on_ssd(e, h, key):  # type: ignore[no-untyped-def]
    """Whether the SSD has `key`."""
    return h.below.meta[0].ssd and look(h.below.ssd, key, e.state[0].clock) == HIT


@kernel
def lift(e, h, r, lo, hi):  # type: ignore[no-untyped-def]
    """See `below.lift`."""
    base, meta = e.requests[r].offset, h.meta[0]
    meta.stamp += 1
    wanted = 0
    for i in range(base + lo, base + hi):
        h.keys[e.ids[i]].stamp = meta.stamp
        wanted += h.keys[e.ids[i]].ref == ABSENT and where(e, h, e.ids[i]) == LIFT
    room = min(wanted, meta.capacity - meta.used + meta.idle)
    if room > 0 and not take_room(e, h, r, lo, hi, room):
        room = 0
    reach, from_ssd, from_pool, left = lo, 0, 0, room
    while reach < hi:
        key = e.ids[base + reach]
        if h.keys[key].ref == ABSENT and where(e, h, key) == LIFT:
            if left == 0:
                break
            left -= 1
            if on_ssd(e, h, key):
                from_ssd += 1
            else:
                from_pool += 1
        reach += 1
    ssd_job = plan_job(e, h, SSD_READ, r, lo, reach, from_ssd) if from_ssd else -1
    pool_job = plan_job(e, h, POOL_READ, r, lo, reach, from_pool) if from_pool else -1
    for k in range(lo, reach):
        key = e.ids[base + k]
        if h.keys[key].ref != ABSENT or where(e, h, key) != LIFT:
            continue
        from_here = on_ssd(e, h, key)
        if not h.flags[base + k] & MISSED_HERE:
            evict_missed(e, h, key)
        evict_insert(e, h, r, k)
        h.keys[key].ref = WRITING
        h.flags[base + k] |= MET_HERE | MISSED_HERE | INSERTED_HERE | (FROM_SSD if from_here else FROM_POOL)
        h.stored_by[base + k] = 1 + (ssd_job if from_here else pool_job)
        meta.used += 1
    return reach


@kernel
def fetch(e, h, r, lo, hi):  # type: ignore[no-untyped-def]
    """See `below.fetch`."""
    base, count = e.requests[r].offset, 0
    for i in range(base + lo, base + hi):
        if h.keys[e.ids[i]].ref == ABSENT:
            h.flags[i] |= FROM_SSD | STRAIGHT
            count += 1
    if count > 0:
        job = e.transfers.jobs[plan_job(e, h, SSD_READ, r, 0, 0, count)]
        h.rows[r].loads += 1
        for i in range(base + hi - 1, base + lo - 1, -1):
            if h.flags[i] & STRAIGHT:
                touch(h.below.ssd, e.ids[i], job.done)
    return count


@kernel
def came_from(e, h, r, lo, hi):  # type: ignore[no-untyped-def]
    """See `below.came_from`."""
    ssd, pool = 0, 0
    for i in range(e.requests[r].offset + lo, e.requests[r].offset + hi):
        ssd += h.flags[i] & FROM_SSD != 0
        pool += h.flags[i] & FROM_POOL != 0
    return ssd, pool


@kernel
def write_down(e, h, slot, store, marks, channel):  # type: ignore[no-untyped-def]
    """Plan to write what store job `slot` brought to the host into a store that lacks it."""
    job, meta, now = e.transfers.jobs[slot], h.meta[0], e.state[0].clock
    base, missing = e.requests[job.row].offset, 0
    for i in range(base + job.lo, base + job.hi):
        missing += h.stored_by[i] == slot + 1 and look(store, e.ids[i], now) == MISS
    room = make_room(store, missing, now) if missing else 0
    store.meta[0].dropped += missing - room
    if room <= 0:
        return
    down = plan_job(e, h, channel, job.row, job.lo, job.hi, room * store.meta[0].copies)
    for i in range(base + job.lo, base + job.hi):
        if room > 0 and h.stored_by[i] == slot + 1 and look(store, e.ids[i], now) == MISS:
            marks[i] = down + 1
            room -= 1
            if h.keys[e.ids[i]].ref == 0:
                meta.idle -= 1
            h.keys[e.ids[i]].ref += 1
    for i in range(base + job.hi - 1, base + job.lo - 1, -1):
        if marks[i] == down + 1:
            put(store, e.ids[i], np.inf)


@kernel
def cascade(e, h, slot):  # type: ignore[no-untyped-def]
    """See `below.cascade`."""
    if h.below.meta[0].ssd:
        write_down(e, h, slot, h.below.ssd, h.below.to_ssd, SSD_WRITE)
    if h.below.meta[0].pool:
        write_down(e, h, slot, h.below.pool, h.below.to_pool, POOL_WRITE)


@kernel
def begin(e, h):  # type: ignore[no-untyped-def]
    """See `below.begin`."""
    below, state = h.below, e.state[0]
    for j in range(below.meta[0].planned):
        slot = below.planned[j]
        job = e.transfers.jobs[slot]
        w = DOWN if job.channel == SSD_WRITE or job.channel == POOL_WRITE else UP
        if job.channel == SSD_READ or job.channel == SSD_WRITE:
            submit_over(e.transfers, slot, below.ssd_ways, w, state.clock)
            settle(e, h, slot, below.ssd, below.to_ssd, w)
        else:
            submit_over(e.transfers, slot, e.nics, 2 * below.meta[0].node + w, state.clock)
            settle(e, h, slot, below.pool, below.to_pool, w)
        if job.hi == job.lo and e.config[0].layerwise:
            state.overlap = max(state.overlap, job.done)
    below.meta[0].planned = 0


@kernel
def settle(e, h, slot, store, marks, w):  # type: ignore[no-untyped-def]
    """The end of a submitted job is known: what it writes is readable then, what it reads stays until then."""
    job = e.transfers.jobs[slot]
    base = e.requests[job.row].offset
    for i in range(base + job.hi - 1, base + job.lo - 1, -1):
        if w == DOWN and marks[i] == slot + 1:
            store.rows[e.ids[i] + 1].ready = job.done
        elif w == UP and h.stored_by[i] == slot + 1:
            touch(store, e.ids[i], max(job.done, e.state[0].clock + store.meta[0].lease_s))


@kernel
def complete(e, h, slot):  # type: ignore[no-untyped-def]
    """See `below.complete`."""
    job, meta = e.transfers.jobs[slot], h.meta[0]
    base = e.requests[job.row].offset
    up = job.channel == SSD_READ or job.channel == POOL_READ
    marks = h.stored_by if up else (h.below.to_ssd if job.channel == SSD_WRITE else h.below.to_pool)
    if job.hi == job.lo:
        arrived(e, h, job.row, slot)
    for i in range(base + job.lo, base + job.hi):
        if marks[i] != slot + 1:
            continue
        marks[i] = 0
        key = h.keys[e.ids[i]]
        if up:
            key.ref = 0
            note(h.log, e.ids[i], 1)
        else:
            key.ref -= 1
        if key.ref == 0:
            meta.idle += 1
            evict_idle(e, h, e.ids[i])


PARTS: dict[str, Any] = {
    "below_where": where,
    "below_lift": lift,
    "below_fetch": fetch,
    "below_came_from": came_from,
    "below_cascade": cascade,
    "below_begin": begin,
    "below_complete": complete,
}


def make_below(tier: BelowTier, sizes: Sizes) -> Below:
    """What one engine sees of the stores of `tier`."""
    meta = np.zeros(1, META).view(np.recarray)
    meta.ssd, meta.pool, meta.gds, meta.node = tier.has_ssd, tier.has_pool, tier.gds, tier.node
    entries = np.zeros(sizes.arena, np.int32)
    ssd, pool = tier.stores(sizes.ids)
    return Below(ssd, tier.ssd_ways, pool, meta, entries, entries.copy(), np.zeros(sizes.slots, np.int32))


def grow_below(below: Below, tier: BelowTier, *, ids: int = 0, arena: int = 0, slots: int = 0) -> Below:
    """The same with more room."""
    if ids:
        ssd, pool = tier.stores(ids)
        below = below._replace(ssd=ssd, pool=pool)
    if arena:
        below = below._replace(to_ssd=grown(below.to_ssd, arena), to_pool=grown(below.to_pool, arena))
    if slots:
        below = below._replace(planned=grown(below.planned, slots))
    return below
