"""Stores below the host tier: against a twin of a plain dict, worked examples of leases and water marks, and what `check` notices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.store import HIT, MISS, PENDING, SharedStore, look, make_room, put, run_beyond, touch
from kvsim.errors import LawError
from kvsim.jit import bundle

KEYS = 8


class TwinStore:
    """What a store should do: key -> [ready, lease], the dict's order being that of eviction."""

    def __init__(self, capacity: int, high: int, low: int) -> None:
        self.capacity, self.high, self.low = capacity, high, low
        self.held: dict[int, list[float]] = {}
        self.evictions, self.closed = 0, False

    def look(self, key: int, now: float) -> int:
        if key not in self.held:
            return MISS
        return HIT if self.held[key][0] <= now else PENDING

    def touch(self, key: int, until: float) -> None:
        if key in self.held:
            row = self.held.pop(key)
            self.held[key] = [row[0], max(row[1], until)]

    def make_room(self, wanted: int, now: float) -> int:
        if self.closed:
            return 0
        if len(self.held) + wanted > self.high:
            target = max(min(self.low, self.capacity - wanted), 0)
            for key in [k for k, (ready, lease) in self.held.items() if ready <= now and lease <= now]:
                if len(self.held) > target:
                    del self.held[key]
                    self.evictions += 1
        return min(wanted, self.capacity - len(self.held))

    def put(self, key: int, ready: float) -> None:
        self.held[key] = [ready, 0.0]


def order_of(store: SharedStore) -> list[int]:
    rows, keys = store.state.rows, []
    at = int(rows.next[0])
    while at:
        keys.append(at - 1)
        at = int(rows.next[at])
    return keys


@settings(max_examples=150)
@given(
    capacity=st.integers(0, 6),
    high=st.sampled_from([1.0, 0.8]),
    low=st.sampled_from([1.0, 0.5, 0.0]),
    actions=st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "put", "touch", "ready", "close", "open", "lose", "forget"]),
            st.integers(0, KEYS - 1),
            st.integers(0, 3),
            st.integers(0, 3),
        ),
        max_size=40,
    ),
)
def test_a_store_follows_its_twin(capacity: int, high: float, low: float, actions: list[tuple[str, int, int, int]]) -> None:
    store = SharedStore(KEYS, capacity, high=high, low=low)
    twin, now = TwinStore(capacity, int(capacity * high), int(capacity * low)), 0.0
    handle = bundle(store.state)
    for action, key, later, lasts in actions:
        now += later
        if action == "put" and key not in twin.held:
            room = make_room(handle, 1 + lasts, now)
            assert room == twin.make_room(1 + lasts, now)
            if room > 0:
                ready = math.inf if lasts == 3 else now + lasts
                put(handle, key, ready)
                twin.put(key, ready)
        elif action == "touch":
            touch(handle, key, now + lasts)
            twin.touch(key, now + lasts)
        elif action == "ready" and twin.look(key, now) == PENDING:
            store.state.rows.ready[key + 1] = twin.held[key][0] = now + lasts
        elif action in ("close", "open"):
            store.close(action == "close")
            twin.closed = action == "close"
        elif action == "lose":
            store.lose()
            twin.held, twin.closed = {}, True
        elif action == "forget":
            store.forget_unwritten()
            twin.held = {k: row for k, row in twin.held.items() if row[0] < math.inf}
        assert order_of(store) == list(twin.held)
        assert [look(handle, k, now) for k in range(KEYS)] == [twin.look(k, now) for k in range(KEYS)]
        assert (store.used, store.evictions) == (len(twin.held), twin.evictions)
        store.check("store")


def test_high_water_by_hand() -> None:
    """Ten blocks, eviction above 8 down to 5: the ninth block brings 8 to 5, oldest first; one under lease is passed over."""
    store = SharedStore(20, 10, high=0.8, low=0.5)
    handle = bundle(store.state)
    for key in range(8):
        assert make_room(handle, 1, 0.0) == 1
        put(handle, key, 0.0)
    touch(handle, 1, 7.0)  # now the most recent, and leased until 7 s
    touch(handle, 0, 0.0)
    assert order_of(store) == [2, 3, 4, 5, 6, 7, 1, 0]
    assert make_room(handle, 1, 5.0) == 1
    assert order_of(store) == [5, 6, 7, 1, 0]
    assert store.evictions == 3
    assert make_room(handle, 8, 5.0) == 8  # to 10 - 8 = 2 blocks
    assert order_of(store) == [1, 0]
    assert make_room(handle, 10, 5.0) == 9  # the lease of block 1 has not run out
    assert make_room(handle, 10, 7.0) == 10
    assert order_of(store) == []


def test_what_is_being_written_or_read_stays() -> None:
    store = SharedStore(4, 2)
    handle = bundle(store.state)
    put(handle, 0, 3.0)
    put(handle, 1, 0.0)
    touch(handle, 1, 4.0)
    assert look(handle, 0, 2.9) == PENDING
    assert make_room(handle, 2, 2.9) == 0
    assert make_room(handle, 2, 3.0) == 1
    assert look(handle, 0, 3.0) == MISS
    assert make_room(handle, 2, 4.0) == 2


def test_a_chain_is_readable_up_to_its_first_gap() -> None:
    """Blocks 0-3 and 7 of the chain 0, 1, 2, 3, 7, 8: 5 readable, 3 of them beyond the first 2; not behind one that is being written."""
    store = SharedStore(10, 10)
    handle = bundle(store.state)
    for key in (0, 1, 2, 3, 7):
        put(handle, key, 5.0 if key == 3 else 0.0)
    start, length = np.array([0, 7]), np.array([4, 2])
    assert [run_beyond(handle, start, length, skip, 5.0) for skip in (0, 2, 4, 5, 6)] == [5, 3, 1, 0, 0]
    assert run_beyond(handle, start, length, 2, 4.9) == 1
    assert store.blocks_beyond(start, length, 2, 4.9) == 1
    before = order_of(store)
    assert before == [0, 1, 2, 3, 7]  # a peek


def test_growing_keeps_what_is_held() -> None:
    store = SharedStore(2, 4)
    put(bundle(store.state), 1, 0.0)
    assert store.grow(2) is store.state
    store.grow(9)
    put(bundle(store.state), 8, 0.0)
    assert order_of(store) == [1, 8]
    store.check("store")


def test_check_notices() -> None:
    def broken() -> SharedStore:
        store = SharedStore(4, 3)
        for key in range(3):
            put(bundle(store.state), key, 0.0)
        return store

    store = broken()
    store.state.meta.used[0] = 2
    with pytest.raises(LawError, match="SSD: 3 blocks held, 2 counted, capacity 3"):
        store.check("SSD")
    store = broken()
    store.state.meta.capacity[0] = 2
    with pytest.raises(LawError, match="capacity 2"):
        store.check("SSD")
    store = broken()
    store.state.rows.next[1] = 3
    with pytest.raises(LawError, match="2 blocks in the order of eviction, 3 held"):
        store.check("SSD")
    store = broken()
    store.state.rows.next[3] = 1  # a circle
    with pytest.raises(LawError, match="in the order of eviction"):
        store.check("SSD")
