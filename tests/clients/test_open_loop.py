"""Open-loop clients: recorded and Poisson arrivals."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import TraceError
from kvsim.rng import stream
from kvsim.workload.clients.open_loop import OpenLoop
from kvsim.workload.load import load
from tests.clients.fake import agentx, drive
from tests.clients.test_closed_loop import native

MOONCAKE = Path(__file__).parents[1] / "data" / "mooncake_conversation_200.jsonl.gz"


def test_sessions_begin_as_recorded_and_turns_follow_their_delay(tmp_path: Path) -> None:
    """Sessions at 1 s and 2 s, whatever the answers take (10 s); second turns 5 s after the end of the first: 1 + 10 + 5, 2 + 10 + 5."""
    workload = native(tmp_path, [[(1.0, 40, 3), (5.0, 80, 2)], [(2.0, 40, 3), (5.0, 80, 2)]])
    server = drive(workload, partial(OpenLoop, rng=stream(0, "a")), 10.0)
    assert [(now, turn.row) for now, turn in server.sent] == [(1.0, 0), (2.0, 2), (16.0, 1), (17.0, 3)]
    assert [turn.at_s for _, turn in server.sent] == [1.0, 2.0, 16.0, 17.0]


def test_a_time_scale_of_two_is_half_as_fast(tmp_path: Path) -> None:
    workload = native(tmp_path, [[(1.0, 40, 3), (5.0, 80, 2)], [(2.0, 40, 3)]])
    server = drive(workload, partial(OpenLoop, rng=stream(0, "a"), time_scale=2.0), 1.0)
    assert [(now, turn.row) for now, turn in server.sent] == [(2.0, 0), (4.0, 2), (8.0, 1)]


def test_where_every_request_has_a_time_each_is_sent_at_its_own() -> None:
    workload = load(MOONCAKE, cache=False)
    server = drive(workload, partial(OpenLoop, rng=stream(0, "a"), time_scale=0.5), 1000.0)
    assert len(server.sent) == workload.requests
    for _, turn in server.sent:
        assert turn.at_s == pytest.approx(workload.arrival_s[turn.row] * 0.5, abs=1e-9)


def test_poisson_sessions_come_at_their_rate_the_same_for_a_seed(tmp_path: Path) -> None:
    workload = native(tmp_path, [[(0.0, 40, 3)]] * 7)
    make = partial(OpenLoop, arrivals="poisson", rate=2.0, duration_s=2000.0)
    runs = [drive(workload, partial(make, rng=stream(seed, "a"))) for seed in (1, 1, 2)]
    times = [[turn.at_s for _, turn in run.sent] for run in runs]
    assert times[0] == times[1] != times[2]
    assert len(times[0]) == pytest.approx(4000, abs=4 * np.sqrt(4000))
    gaps = np.diff(times[0])
    assert gaps.std() == pytest.approx(0.5, rel=0.1)
    assert [turn.row for _, turn in runs[0].sent][:9] == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert runs[0].sent[7][1].id_offset == workload.unique_ids


def test_a_window_opens_and_the_run_stops(tmp_path: Path) -> None:
    workload = native(tmp_path, [[(0.0, 40, 3), (50.0, 80, 3)]])
    server = drive(workload, partial(OpenLoop, rng=stream(0, "a"), warmup_s=3.0, duration_s=7.0))
    assert (server.opened, server.stopped) == (3.0, 10.0)


def test_sessions_without_recorded_starts_cannot_be_replayed_as_recorded(tmp_path: Path) -> None:
    workload = agentx(tmp_path, [[(0.0, 64, 5, 2.0)]])
    with pytest.raises(TraceError, match="no recorded starts: replay it with arrivals: poisson"):
        drive(workload, partial(OpenLoop, rng=stream(0, "a")))
