"""Transfer channels: worked times, order, conservation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import LawError
from kvsim.jit import bundle
from kvsim.transfer.channel import DOWN, UP, check_transfers, grow_transfers, make_transfers, make_ways, new_job, next_done, retire, submit


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
