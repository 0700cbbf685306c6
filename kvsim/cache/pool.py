"""A paged pool of cache blocks as vLLM v1 keeps it: one free queue in eviction order, and an index from key to block.

Law. free + referenced = usable blocks; a block is in the free queue exactly when nobody references it; a free block stays cached
(its key stays in the index) until it is popped. Order of events: allocation pops the front (popping a keyed block is the eviction);
a hit takes a block out of the middle; release appends keyed blocks at the back, in the order given, and puts blocks without a key at
the front, the first given foremost. Two blocks may hold one key (computed concurrently): a lookup finds the one registered first.

Source: vLLM 0.33.0 `v1/core/block_pool.py` and `FreeKVCacheBlockQueue` (behaviour, not code). Block 0 is vLLM's null block: never used.
The twin in plain Python is in the tests.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.log import Log, make_log, note
from kvsim.errors import LawError
from kvsim.jit import bundle, kernel

NONE = -1

BLOCK = np.dtype(
    [
        ("prev", "<i4"),
        ("next", "<i4"),
        ("ref", "<i4"),
        ("key", "<i4"),
        ("twin_prev", "<i4"),
        ("twin_next", "<i4"),
        ("job", "<i4"),  # 1 + the transfer job that still reads this block (0: none); meaning set by the connector
        ("batch", "<i4"),  # last scheduler pass that handed the block to a request
    ],
    align=True,
)
META = np.dtype([("free", "<i8"), ("end", "<i8"), ("evictions", "<i8")], align=True)


class Pool(NamedTuple):
    """`blocks` [n + 1] (the last row is the queue's fence post), `first` [ids]: key -> block registered first, `meta` [1], `log`."""

    blocks: Any
    first: NDArray[np.int32]
    meta: Any
    log: Log


def make_pool(n_blocks: int, n_ids: int, *, logged: bool = False) -> Pool:
    """An empty pool of `n_blocks` blocks, the null block included, over keys 0..n_ids-1; the queue is in block order.

    `logged`: it tells which keys come and go.
    """
    blocks = np.zeros(n_blocks + 1, BLOCK).view(np.recarray)
    blocks.key = blocks.twin_prev = blocks.twin_next = NONE
    order = np.arange(n_blocks + 1, dtype=np.int32)
    blocks.prev, blocks.next = order - 1, order + 1
    blocks.prev[1], blocks.next[n_blocks] = n_blocks, 1
    if n_blocks == 1:
        blocks.prev[1] = blocks.next[1] = 1
    blocks.prev[0] = blocks.next[0] = NONE
    meta = np.zeros(1, META).view(np.recarray)
    meta.free, meta.end = n_blocks - 1, n_blocks
    # In one pass a block is evicted and gets a new key once, and may be loaded into and released besides.
    return Pool(blocks, np.full(n_ids, NONE, np.int32), meta, make_log(4 * n_blocks if logged else 0))


@kernel
def enqueue(pool, block, after):  # type: ignore[no-untyped-def]
    """Put `block` into the free queue behind `after`."""
    blocks = pool.blocks
    following = blocks[after].next
    blocks[block].prev = after
    blocks[block].next = following
    blocks[after].next = block
    blocks[following].prev = block
    pool.meta[0].free += 1


@kernel
def dequeue(pool, block):  # type: ignore[no-untyped-def]
    """Take `block` out of the free queue, wherever it stands."""
    blocks = pool.blocks
    before, following = blocks[block].prev, blocks[block].next
    blocks[before].next = following
    blocks[following].prev = before
    blocks[block].prev = NONE
    blocks[block].next = NONE
    pool.meta[0].free -= 1


@kernel
def forget(pool, block):  # type: ignore[no-untyped-def]
    """Take the key off `block`; the index moves on to the block registered next under it, if there is one."""
    row = pool.blocks[block]
    if row.key == NONE:
        return
    if row.twin_prev == NONE:
        pool.first[row.key] = row.twin_next
        if row.twin_next == NONE:
            note(pool.log, row.key, 0)
    else:
        pool.blocks[row.twin_prev].twin_next = row.twin_next
    if row.twin_next != NONE:
        pool.blocks[row.twin_next].twin_prev = row.twin_prev
    row.key = NONE
    row.twin_prev = NONE
    row.twin_next = NONE


@kernel
def register(pool, block, key):  # type: ignore[no-untyped-def]
    """Give `block`, which has none, the key `key`; behind the blocks that already hold it."""
    row = pool.blocks[block]
    row.key = key
    last = pool.first[key]
    if last == NONE:
        pool.first[key] = block
        note(pool.log, key, 1)
        return
    while pool.blocks[last].twin_next != NONE:
        last = pool.blocks[last].twin_next
    pool.blocks[last].twin_next = block
    row.twin_prev = last


@kernel
def take(pool):  # type: ignore[no-untyped-def]
    """Pop the front of the free queue, evicting what it caches; the caller holds the only reference. Room is assumed."""
    block = pool.blocks[pool.meta[0].end].next
    dequeue(pool, block)
    if pool.blocks[block].key != NONE:
        pool.meta[0].evictions += 1
        forget(pool, block)
    pool.blocks[block].ref = 1
    return block


@kernel
def touch(pool, block):  # type: ignore[no-untyped-def]
    """One more reference to `block`; a free block leaves the queue."""
    if pool.blocks[block].ref == 0:
        dequeue(pool, block)
    pool.blocks[block].ref += 1


@kernel
def release(pool, block, front):  # type: ignore[no-untyped-def]
    """One reference less. At none: a keyed block joins the back of the queue, another goes behind `front`.

    Returns the `front` for the next block of the same release: start with the fence post (`meta[0].end`).
    """
    row = pool.blocks[block]
    row.ref -= 1
    if row.ref > 0:
        return front
    if row.key == NONE:
        enqueue(pool, block, front)
        return block
    enqueue(pool, block, pool.blocks[pool.meta[0].end].prev)
    return front


@kernel
def longest_run(pool, keys, limit, out):  # type: ignore[no-untyped-def]
    """Write to `out` the blocks of the longest cached run keys[0:limit]; return its length. A peek: nothing moves."""
    for i in range(limit):
        block = pool.first[keys[i]]
        if block == NONE:
            return i
        out[i] = block
    return limit


@kernel
def walk(pool, queued):  # type: ignore[no-untyped-def]
    """Mark the blocks of the free queue; returns its length, or minus the block behind which its links don't fit."""
    blocks, end = pool.blocks, pool.meta[0].end
    length, block = 0, blocks[end].next
    while block != end:
        if queued[block] or blocks[blocks[block].next].prev != block:
            return -block
        queued[block] = True
        length += 1
        block = blocks[block].next
    return length


def check_pool(pool: Pool, name: str) -> None:
    """Recompute the pool's counters from its raw arrays; raises `LawError`."""
    blocks, end = pool.blocks, int(pool.meta.end[0])
    queued = np.zeros(end + 1, np.bool_)
    length = walk(bundle(pool), queued)
    if length < 0:
        raise LawError(f"{name}: the free queue is broken at block {-length}")
    if length != int(pool.meta.free[0]):
        raise LawError(f"{name}: {length} blocks in the free queue, {int(pool.meta.free[0])} counted")
    idle = blocks.ref[1:end] == 0
    if (blocks.ref[1:end] < 0).any() or (idle != queued[1:end]).any():
        raise LawError(f"{name}: blocks free + held != capacity {end - 1}")
    keyed = np.flatnonzero(blocks.key[:end] != NONE)
    heads = pool.first[blocks.key[keyed]]
    if (heads == NONE).any() or (pool.first != NONE).sum() != np.unique(blocks.key[keyed]).size:
        raise LawError(f"{name}: index and residency differ")
