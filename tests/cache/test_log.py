"""Logs of keys that come and go: a twin of a plain list, and room kept for one more pass."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvsim.cache import log as logs
from kvsim.cache.log import grown_log, log_room, make_log, note
from kvsim.cache.pool import NONE, make_pool, register, release, take
from kvsim.jit import bundle


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.integers(0, 2)), max_size=30))
def test_a_log_is_a_list(entries: list[tuple[int, bool, int]]) -> None:
    log, now, want = make_log(1), 0.0, []
    for key, came, later in entries:
        now += later
        log.now[0] = now
        note(bundle(log), key, int(came))
        want.append((key, int(came), now))
    n = int(log.meta[0])
    assert list(zip(log.key[:n].tolist(), log.present[:n].tolist(), log.at[:n].tolist(), strict=True)) == want


def test_no_size_records_nothing() -> None:
    log = make_log(0)
    note(bundle(log), 3, 1)
    assert log.key.size == 0
    assert int(log.meta[0]) == 0


def test_room_for_one_more_pass() -> None:
    """A pass may write 5 entries: with 4 left the log is full; twice the size there is room, and nothing was lost."""
    log = make_log(5)
    assert log.key.size == 5 + logs.SPARE
    log.meta[0] = logs.SPARE
    assert log_room(bundle(log))
    log.now[0] = 2.0
    note(bundle(log), 7, 1)
    assert not log_room(bundle(log))
    more = grown_log(log)
    assert log_room(bundle(more))
    assert (int(more.key[logs.SPARE]), int(more.present[logs.SPARE]), float(more.at[logs.SPARE])) == (7, 1, 2.0)


@given(st.lists(st.integers(0, 5), max_size=40))
def test_a_pool_told_entry_by_entry_is_the_pool(keys: list[int]) -> None:
    """Reading the log from the start gives exactly the keys that are cached, though two blocks may hold one key."""
    pool = make_pool(5, 6, logged=True)
    handle, cached = bundle(pool), set[int]()
    for key in keys:
        pool.log.now[0] += 1
        block = take(handle) if int(pool.meta.free[0]) else NONE
        if block == NONE:
            # all blocks are taken: give the oldest back
            block = 1 + int(pool.log.now[0]) % 4
            pool.blocks.ref[block] = 1
            release(handle, block, int(pool.meta.end[0]))
            block = take(handle)
        register(handle, block, key)
    for key, present in zip(pool.log.key[: pool.log.meta[0]].tolist(), pool.log.present[: pool.log.meta[0]].tolist(), strict=True):
        assert (key in cached) != bool(present)
        (cached.add if present else cached.remove)(key)
    assert cached == {key for key in range(6) if pool.first[key] != NONE}
