"""The block pool against a twin of plain lists and dicts, and hand-worked orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.pool import NONE, check_pool, longest_run, make_pool, register, release, take, touch
from kvsim.errors import LawError
from kvsim.jit import bundle


class TwinPool:
    """What the pool should do, with the queue as a list (front first) and the index as lists of blocks."""

    def __init__(self, blocks: int) -> None:
        self.queue = list(range(1, blocks))
        self.key: dict[int, int] = {}
        self.index: dict[int, list[int]] = {}
        self.ref = dict.fromkeys(range(1, blocks), 0)
        self.evictions = 0

    def take(self) -> int:
        block = self.queue.pop(0)
        if block in self.key:
            self.evictions += 1
            key = self.key.pop(block)
            self.index[key].remove(block)
        self.ref[block] = 1
        return block

    def touch(self, block: int) -> None:
        if self.ref[block] == 0:
            self.queue.remove(block)
        self.ref[block] += 1

    def register(self, block: int, key: int) -> None:
        self.key[block] = key
        self.index.setdefault(key, []).append(block)

    def release(self, blocks: list[int]) -> None:
        front = []
        for block in blocks:
            self.ref[block] -= 1
            if self.ref[block] == 0:
                (self.queue if block in self.key else front).append(block)
        self.queue[:0] = front

    def first(self, key: int) -> int:
        return self.index[key][0] if self.index.get(key) else NONE


def queue_of(pool) -> list[int]:  # type: ignore[no-untyped-def]
    order, block, end = [], int(pool.blocks.next[int(pool.meta.end[0])]), int(pool.meta.end[0])
    while block != end:
        order.append(block)
        block = int(pool.blocks.next[block])
    return order


def release_all(handle, blocks: list[int]) -> None:  # type: ignore[no-untyped-def]
    front = int(handle.meta.end[0]) if hasattr(handle, "meta") else int(handle.fields[2].end[0])
    for block in blocks:
        front = release(handle, block, front)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_pool_follows_its_twin(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 9), label="blocks")
    pool, twin = make_pool(n, 5), TwinPool(n)
    handle = bundle(pool)
    for _ in range(data.draw(st.integers(0, 40))):
        held = sorted(b for b, r in twin.ref.items() if r > 0)
        bare = [b for b in held if b not in twin.key]
        actions = [a for a, can in (("take", twin.queue), ("touch", twin.key), ("register", bare), ("release", held)) if can]
        action = data.draw(st.sampled_from(actions)) if actions else "none"
        if action == "take":
            assert take(handle) == twin.take()
        elif action == "touch":
            block = data.draw(st.sampled_from(sorted(twin.key)))
            touch(handle, block)
            twin.touch(block)
        elif action == "register":
            block, key = data.draw(st.sampled_from(bare)), data.draw(st.integers(0, 4))
            register(handle, block, key)
            twin.register(block, key)
        elif action == "release":
            blocks = data.draw(st.lists(st.sampled_from(held), unique=True, min_size=1))
            release_all(handle, blocks)
            twin.release(blocks)
        assert queue_of(pool) == twin.queue
        assert [int(pool.first[k]) for k in range(5)] == [twin.first(k) for k in range(5)]
        assert int(pool.meta.evictions[0]) == twin.evictions
        check_pool(pool, "pool")


def test_order_by_hand() -> None:
    """Four blocks: two keyed and one bare are released tail first; the bare one is reused first, then the tail, then the head."""
    pool = make_pool(5, 3)
    handle = bundle(pool)
    a, b, c = take(handle), take(handle), take(handle)
    assert (a, b, c) == (1, 2, 3)
    register(handle, a, 0)
    register(handle, b, 1)
    release_all(handle, [c, b, a])
    assert queue_of(pool) == [3, 4, 2, 1]
    out = np.zeros(3, np.int32)
    assert longest_run(handle, np.array([0, 1, 2], np.int32), 3, out) == 2
    assert list(out[:2]) == [1, 2]
    assert [take(handle) for _ in range(3)] == [3, 4, 2]
    assert longest_run(handle, np.array([0, 1, 2], np.int32), 3, out) == 1


def test_check_notices_a_lost_block() -> None:
    pool = make_pool(4, 2)
    take(bundle(pool))
    pool.blocks.ref[1] = 0
    with pytest.raises(LawError, match="free \\+ held"):
        check_pool(pool, "HBM")
    pool = make_pool(4, 2)
    pool.meta.free[0] = 7
    with pytest.raises(LawError, match="3 blocks in the free queue, 7 counted"):
        check_pool(pool, "HBM")
