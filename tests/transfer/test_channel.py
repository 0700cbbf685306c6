"""Transfer channels: worked times, order, conservation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import LawError
from kvsim.jit import bundle
from kvsim.transfer.channel import (
    DOWN,
    SSD_READ,
    SSD_WRITE,
    UP,
    Ways,
    check_transfers,
    grow_transfers,
    make_transfers,
    make_ways,
    new_job,
    next_done,
    retire,
    submit,
    submit_over,
    travel,
    travel_both,
)


def test_times_by_hand() -> None:
    """Latency 1 s, 0.5 s a block down: 4 blocks at t=0 end at 3, 2 blocks at t=1 wait until 3 and end at 5; up is free meanwhile."""
    t = make_transfers(8, make_ways(1, 1.0, 0.5, 0.25))
    handle = bundle(t)
    a = new_job(handle, DOWN, 0, 0, 4, 4)
    b = new_job(handle, DOWN, 0, 4, 6, 2)
    c = new_job(handle, UP, 1, 0, 4, 4)
    submit(handle, a, 0.0)
    submit(handle, b, 1.0)
    submit(handle, c, 1.0)
    assert [float(t.jobs.done[s]) for s in (a, b, c)] == [3.0, 5.0, 3.0]
    ended = []
    while (slot := next_done(handle)) >= 0:
        ended.append(int(slot))
        retire(handle, slot)
    assert ended == [a, c, b]
    assert t.link.way.blocks.tolist() == [6, 4]
    assert t.link.way.busy.tolist() == [5.0, 2.0]
    check_transfers(t)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9), st.floats(0, 5)), max_size=40))
def test_channels_follow_their_twin(jobs: list[tuple[int, int, float]]) -> None:
    t = make_transfers(4, make_ways(1, 0.25, 0.5, 1.0))
    free, now, want = [0.0, 0.0], 0.0, []
    handle = bundle(t)
    for n, (channel, blocks, gap) in enumerate(jobs):
        now += gap
        if t.meta[0] == 0:
            t = grow_transfers(t, 2 * t.jobs.size)
            handle = bundle(t)
        submit(handle, new_job(handle, channel, n, 0, blocks, blocks), now)
        free[channel] = max(now, free[channel]) + 0.25 + blocks * (0.5, 1.0)[channel]
        want.append((free[channel], n))
    got = []
    while (slot := next_done(handle)) >= 0:
        got.append((float(t.jobs.done[slot]), int(t.jobs.row[slot])))
        retire(handle, slot)
    assert got == sorted(want)
    assert int(t.link.way.blocks.sum()) == sum(b for _, b, _ in jobs)
    assert int(t.link.waits.sum()) == len(jobs)
    check_transfers(t)


def test_check_notices_a_lost_job() -> None:
    t = make_transfers(4, make_ways(1, 0.0, 1.0, 1.0))
    new_job(bundle(t), DOWN, 0, 0, 1, 1)
    t.jobs.live[:] = 0
    with pytest.raises(LawError, match="transfer jobs"):
        check_transfers(t)
    assert np.isinf(t.jobs.done[0])


def test_duplex_by_hand() -> None:
    """A block takes 1 s each way, half the rate while the other way is busy: 4 up from 0 to 4; 2 down at 1 take 4 s; 2 at 5 take 2 s."""
    ways = make_ways(1, 0.0, 1.0, 1.0, duplex=0.5)
    handle = bundle(ways)
    assert travel(handle, UP, 4, 0.0) == 4.0
    assert travel(handle, DOWN, 2, 1.0) == 5.0
    assert travel(handle, DOWN, 2, 5.0) == 7.0
    assert travel(handle, UP, 1, 7.0) == 8.0  # down is free at 7: not busy any more
    assert ways.way.blocks.tolist() == [4, 5]
    assert ways.way.busy.tolist() == [6.0, 5.0]


def test_a_slow_way_by_hand() -> None:
    """Three times as long, latency apart, for what starts while it is slow."""
    ways = make_ways(1, 0.5, 1.0, 1.0)
    handle = bundle(ways)
    assert travel(handle, DOWN, 2, 0.0) == 2.5
    ways.way.slow[DOWN] = 3.0
    assert travel(handle, DOWN, 2, 0.0) == 2.5 + 0.5 + 6.0
    assert travel(handle, UP, 2, 0.0) == 2.5
    ways.way.slow[DOWN] = 1.0
    assert travel(handle, DOWN, 2, 100.0) == 102.5


def mates(per_shared: float) -> list[Ways]:
    """The host links of two GPUs behind one memory, a block taking 1 s alone."""
    sharing, out = np.zeros((2, 2)), []
    for member in range(2):
        ways = make_ways(1, 0.0, 1.0, 1.0)
        ways.way.per_shared = per_shared
        out.append(ways._replace(sharing=sharing, own=np.array([member])))
    return out


@pytest.mark.parametrize(
    ("per_shared", "alone", "second"),
    [
        (0.5, 4.0, 4.0),  # the memory feeds both links
        (0.75, 4.0, 6.0),  # two ask 1.5 times what it gives
        (2.0, 8.0, 16.0),  # it gives half of what one link could take
    ],
)
def test_a_shared_memory_by_hand(per_shared: float, alone: float, second: float) -> None:
    """Four blocks of the first at 0, of the second at 1 while the first still moves; the opposite direction is not in the way."""
    a, b = (bundle(ways) for ways in mates(per_shared))
    assert travel(a, DOWN, 4, 0.0) == alone
    assert travel(b, UP, 4, 1.0) == 1.0 + alone
    assert travel(b, DOWN, 4, 1.0) == 1.0 + second
    assert travel(a, DOWN, 4, 100.0) == 100.0 + alone


def test_both_ends_by_hand() -> None:
    """Out of node 0 (1 s a block) into node 1 (2 s a block): 3 blocks take 6 s of both; the next waits for the later of its two ways."""
    ways = make_ways(3, 0.0, 1.0, 1.0)
    ways.way.per_block[3] = 2.0
    ways.way.latency[3] = 0.5
    handle = bundle(ways)
    assert travel_both(handle, 0, 3, 3, 1.0) == 7.5
    assert travel_both(handle, 4, 3, 1, 2.0) == 10.0
    assert travel_both(handle, 0, 5, 1, 3.0) == 8.5
    assert travel_both(handle, 2, 1, 1, 3.0) == 4.0  # the opposite ways were idle
    assert ways.way.blocks.tolist() == [4, 1, 1, 4, 1, 1]
    assert ways.way.busy.tolist() == [7.5, 1.0, 1.0, 9.0, 2.5, 1.0]
    assert ways.waits.sum(axis=1).tolist() == [2, 1, 1, 2, 1, 1]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9), st.floats(0, 5), st.sampled_from([1.0, 2.5])), max_size=40),
    st.sampled_from([1.0, 0.5]),
)
def test_ways_of_nodes_follow_their_twin(jobs: list[tuple[int, int, int, float, float]], duplex: float) -> None:
    ways = make_ways(3, 0.25, 0.5, 1.0, duplex)
    handle, free, busy, now = bundle(ways), [0.0] * 6, [0.0] * 6, 0.0
    for giver, taker, blocks, gap, slow in jobs:
        now += gap
        ways.way.slow = slow
        used = (2 * giver, 2 * taker + 1) if giver != taker else (2 * giver,)
        start = max(now, *(free[w] for w in used), 0.0)
        pace = max((0.5, 1.0)[w % 2] * (slow / duplex if free[w ^ 1] > start else slow) for w in used)
        done = start + 0.25 + blocks * pace
        got = travel_both(handle, *used, blocks, now) if giver != taker else travel(handle, used[0], blocks, now)
        assert got == done
        for w in used:
            free[w], busy[w] = done, busy[w] + (done - start)
    assert ways.way.free_at.tolist() == free
    assert ways.way.busy.tolist() == busy


def test_engines_queue_on_the_drives_of_their_node() -> None:
    """A read takes 1 s a block, whoever asks: the second engine's waits for the first one's; each takes in its own."""
    drives, a, b = make_ways(1, 0.0, 2.0, 1.0), make_transfers(4, make_ways(1)), make_transfers(4, make_ways(1), traced=True)
    way, first, second = bundle(drives), bundle(a), bundle(b)
    submit_over(first, new_job(first, SSD_READ, 0, 0, 3, 3), way, UP, 1.0)
    submit_over(second, new_job(second, SSD_READ, 0, 0, 2, 2), way, UP, 2.0)
    submit_over(second, new_job(second, SSD_WRITE, 0, 0, 2, 2), way, DOWN, 2.0)
    assert float(a.jobs.done[next_done(first)]) == 4.0
    assert sorted(b.jobs.done[b.jobs.live == 1].tolist()) == [6.0, 6.0]
    assert int(b.jobs.channel[next_done(second)]) == SSD_READ  # ties: the older job
    moves = b.moves[: int(b.meta[2])]
    assert [(m["start"], m["end"], m["channel"], m["blocks"]) for m in moves] == [(4.0, 6.0, SSD_READ, 2), (2.0, 6.0, SSD_WRITE, 2)]
    for transfers in (a, b):
        check_transfers(transfers)
