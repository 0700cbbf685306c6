"""The AgentX benchmark's rules on hand-made sessions whose timeline is worked out here, and on the recorded corpus."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import TraceError
from kvsim.workload.clients.agentx import PRIMER_NUMBERS, AgentX, recorded_starts
from kvsim.workload.clients.plan import SessionPlan
from kvsim.workload.load import load
from tests.clients.fake import FakeServer, agentx, drive
from tests.clients.test_closed_loop import native

# Requests start at 0, 10, ... 90 s and take 2 s each: a turn comes 8 s after the end of the one before.
TEN = [(10.0 * i, 64 * (i + 1), 5, 2.0) for i in range(10)]
MIDDLE: dict[str, Any] = {"seed": 0, "start_between": (0.5, 0.5)}  # t* = half of the last start


def replay(workload: Any, lanes: int = 1, answer_s: float = 1.0, **more: Any) -> FakeServer:
    return drive(workload, partial(AgentX, lanes=lanes, **{**MIDDLE, **more}), answer_s)


def test_a_lane_starts_in_the_middle_with_primers_and_ten_requests(tmp_path: Path) -> None:
    """t* = 45 s: row 4 (40 s) is the primer. Answers take 1 s, the primer and ten requests 11 s. Row 5 (50 s) is the lane's first, so it is
    due when the window opens; row 6 comes 8 s after its end, at 9 s, row 7 at 18 s ...; at 37 s the lane begins anew."""
    server = replay(agentx(tmp_path, [TEN]), duration_s=40.0)
    warm = [(now, turn) for now, turn in server.sent if turn.number >= PRIMER_NUMBERS]
    assert [(now, turn.row, turn.output) for now, turn in warm] == [(float(i), 4, 1) for i in range(11)]
    assert server.opened == 11.0
    assert server.in_window == [(0.0, 0, 5, 5), (9.0, 0, 6, 5), (18.0, 0, 7, 5), (27.0, 0, 8, 5), (36.0, 0, 9, 5), (37.0, 1, 0, 5)]
    assert server.stopped == 51.0


def test_lanes_begin_spread_as_recorded(tmp_path: Path) -> None:
    """Two lanes at t* = 45 s and 25 s: their next requests were recorded 5 s and 15 s after t*; less the minimum, 0 s and 10 s."""
    other = [(20.0 * i, 64 * (i + 1), 5, 2.0) for i in range(3)] + [(50.0, 256, 5, 2.0)]
    server = replay(agentx(tmp_path, [TEN, other]), lanes=2, duration_s=20.0)
    first = {instance: when for when, instance, *_ in reversed(server.in_window)}
    assert first == {0: 0.0, 1: 10.0}


def test_the_start_follows_from_seed_session_and_lane(tmp_path: Path) -> None:
    workload = agentx(tmp_path, [TEN])
    digest = hashlib.sha256(b"42:s0:0").digest()
    share = np.random.default_rng(int.from_bytes(digest[:8], "big")).uniform(0.25, 0.75)
    server = drive(workload, partial(AgentX, lanes=1, seed=42, duration_s=1.0))
    assert server.sent[0][1].row == int(share * 90.0 // 10)
    assert 0.25 <= share <= 0.75


def test_a_lane_takes_the_next_session_from_its_first_turn(tmp_path: Path) -> None:
    """Rows 1 of sessions 0 and 1 are left at t*; the sampler is shared: the lane that ends first takes session 2, the other session 0."""
    two = [(0.0, 64, 5, 2.0), (10.0, 128, 5, 2.0)]
    slow = [(0.0, 64, 5, 2.0), (16.0, 128, 5, 2.0)]
    server = replay(agentx(tmp_path, [two, slow, two]), lanes=2, duration_s=20.0)
    begun = {}
    for when, instance, row, _ in server.in_window:
        begun.setdefault(instance, (when, row))
    # Lane 0: row 1 at 0 s, ends at 1; session 2 (rows 4, 5) begins then. Lane 1: row 3 was 8 s after its t*, lane 0's 5 s: at 3 s.
    assert begun == {0: (0.0, 1), 2: (1.0, 4), 1: (3.0, 3), 3: (4.0, 0), 4: (11.0, 2), 5: (14.0, 4)}
    lanes = {turn.instance: turn.lane for _, turn in server.sent if turn.number < PRIMER_NUMBERS}
    assert lanes == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0, 5: 1}


def test_no_two_trees_share_an_id(tmp_path: Path) -> None:
    workload = agentx(tmp_path, [TEN, TEN])
    server = replay(workload, lanes=3, duration_s=900.0)
    used: dict[int, set[int]] = {}
    for _, turn in server.sent:
        used.setdefault(turn.instance, set()).update((workload.chain(turn.row) + turn.id_offset).tolist())
    assert len(used) > 6
    seen = [key for ids in used.values() for key in ids]
    assert len(seen) == len(set(seen))


def test_sub_agents_spawn_join_and_take_no_lane(tmp_path: Path) -> None:
    """t* = 20 s, between the main turns of 0 and 40 s. The sub-agent (its requests at 4 and 30 s) is alive there: two primers. Main turn 2
    (40 s) waits for the sub-agent: 30 s comes first, at the opening (0 s), ends at 1 s; the join has no delay and the main turn before is
    past: main turn 2 at 1 s."""
    session = [(0.0, 64, 5, 2.0), {"t": 1.0, "duration": 31.0, "requests": [(4.0, 64, 5, 2.0), (30.0, 128, 5, 2.0)]}, (40.0, 128, 5, 2.0)]
    workload = agentx(tmp_path, [session])
    server = replay(workload, duration_s=5.0)
    main = [int(i) for i in np.flatnonzero(workload.stream == 0)]
    agent = [int(i) for i in np.flatnonzero(workload.stream == 1)]
    primers = [turn.row for _, turn in server.sent if turn.number >= PRIMER_NUMBERS]
    assert primers[:2] == [main[0], agent[0]]
    assert len(primers) == 12
    assert server.in_window[:2] == [(0.0, 0, agent[1], 5), (1.0, 0, main[1], 5)]


def test_idle_time_is_cut(tmp_path: Path) -> None:
    """Alone, a lane never waits more than 10 s, however long the gap; beside a busy lane it waits 300 s of its 2,000."""
    gaps = [(0.0, 64, 5, 2.0), (10.0, 128, 5, 2.0), (2012.0, 192, 5, 2.0), (2024.0, 256, 5, 2.0)]
    alone = replay(agentx(tmp_path, [gaps]), duration_s=30.0, start_between=(0.001, 0.001))
    assert [when for when, *_ in alone.in_window] == [0.0, 11.0, 22.0, 23.0]  # the last one begins anew
    busy = [(5.0 * i, 64, 5, 1.0) for i in range(400)]
    both = replay(agentx(tmp_path, [gaps, busy]), lanes=2, duration_s=400.0, start_between=(0.001, 0.001))
    mine = [when for when, instance, *_ in both.in_window if instance == 0]
    # t* = 2.024 s: row 1 was 7.976 s away, the busy lane's next 3.005 s (t* = 1.995 s).
    assert mine[0] == pytest.approx(7.976 - 3.005)
    assert mine[1] == pytest.approx(mine[0] + 1 + 300)


def test_the_warm_up_is_drained_for_half_an_hour_at_most(tmp_path: Path) -> None:
    server = replay(agentx(tmp_path, [TEN]), answer_s=700.0, duration_s=100.0)
    assert server.opened == 1800.0
    assert server.stopped == 1900.0


def test_the_window_is_an_hour(tmp_path: Path) -> None:
    server = replay(agentx(tmp_path, [TEN]))
    assert server.opened is not None
    assert server.stopped == server.opened + 3600.0


def test_sessions_that_exceed_the_context_are_left_out_first(tmp_path: Path) -> None:
    small, large = [(0.0, 64, 5, 2.0), (9.0, 128, 5, 2.0)], [(0.0, 640, 5, 2.0), (9.0, 128, 5, 2.0)]
    workload = agentx(tmp_path, [large, small, small, small])
    server = replay(workload, duration_s=60.0, max_context_tokens=600, max_sessions=2)
    assert {int(workload.session[turn.row]) for _, turn in server.sent} == {1, 2}
    with pytest.raises(TraceError, match="every session exceeds the context of 100 tokens"):
        replay(workload, max_context_tokens=100)


def test_zero_output_is_one_token(tmp_path: Path) -> None:
    workload = agentx(tmp_path, [[(0.0, 64, 5, 2.0), (9.0, 128, 0, 2.0)]])
    server = replay(workload, duration_s=5.0)
    assert server.in_window[0] == (0.0, 0, 1, 1)


def test_starts_without_recorded_times_follow_the_delays(tmp_path: Path) -> None:
    workload = native(tmp_path, [[(1.0, 40, 3), (5.0, 80, 2), (7.0, 120, 2)]])
    import dataclasses

    unknown = dataclasses.replace(workload, recorded_start_s=np.full(3, np.nan))
    begin = float(SessionPlan.of(unknown).start_s[0])
    assert recorded_starts(unknown, SessionPlan.of(unknown)).tolist() == [begin, begin + 5.0, begin + 12.0]


def test_an_hour_of_the_corpus(shared: Path) -> None:
    """64 lanes of recorded sessions, answers of 5 s: 64 live trees from the opening on, nothing sent twice, no wait beyond the caps."""
    workload = load(shared / "traces" / "agentx-v8-dev.jsonl.xz")
    server = drive(workload, partial(AgentX, lanes=64, seed=42), 5.0)
    assert server.opened is not None
    assert server.stopped == server.opened + 3600.0
    primers = [turn for _, turn in server.sent if turn.number >= PRIMER_NUMBERS]
    alive = len({(turn.instance, turn.row) for turn in primers})
    assert len(primers) == alive + 10 * 64
    numbers = [turn.number for _, turn in server.sent]
    assert len(numbers) == len(set(numbers))
    assert server.client is not None
    assert len(server.client.trees) == 64  # type: ignore[attr-defined]
    assert {turn.lane for _, turn in server.sent} == set(range(64))
    times = sorted(when for when, *_ in server.in_window)
    assert max(np.diff(times)) <= 10.0 + 5.0 + 1e-6
    assert len(server.in_window) > 5000
