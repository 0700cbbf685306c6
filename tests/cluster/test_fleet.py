"""Engines in one kernel call do what each would do alone; none runs past what could still change its batch; and few calls are made."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvsim.engine import fleet
from kvsim.engine.vllm import VllmEngine
from kvsim.jit import bundles, link
from kvsim.workload.workload import Workload
from tests.cluster.conftest import TIERS, Session, Shape, growing, run, workload_of

SESSIONS = st.lists(
    st.lists(st.tuples(st.floats(0, 6), st.integers(1, 100), st.integers(1, 20)), min_size=1, max_size=3), min_size=2, max_size=8
).map(growing)
UNTIL = 1000.0


def submit(engine: VllmEngine, w: Workload, rows: list[int]) -> None:
    """All turns of these rows arrive at their delay since time 0, whenever the ones before end."""
    at_s = np.where(w.turn == 0, w.arrival_s, w.delay_s)
    for row in rows:
        engine.send(row, row, 0, int(w.input_tokens[row]), int(w.output_tokens[row]), float(at_s[row]))


def play(engines: list[VllmEngine], groups: NDArray[np.int64], horizons: list[float]) -> tuple[list[NDArray[Any]], int]:
    """Run engines together up to each horizon; (their rows in the order of their ends, kernel calls). Nothing starts at or after one."""
    advance, told = link(fleet.advance, engines[0].parts), np.full(len(engines) + 1, math.inf)
    out: list[list[NDArray[Any]]] = [[] for _ in engines]
    calls = 0
    for until in horizons:
        while True:
            handles = [engine.handles() for engine in engines]
            calls += 1
            stopped = int(advance(bundles([e for e, _ in handles]), bundles([h for _, h in handles]), groups, until, told))
            if engines[stopped // fleet.N_REASONS].make_room(stopped % fleet.N_REASONS):
                continue
            for engine in engines:
                if engine.e.state.flushes[0] == 0:  # a pass that waits for a flush is made before, its step begins after
                    starts = np.asarray(engine.e.trace.steps)["start"][: int(engine.e.trace.meta[0])]
                    assert (starts < min(until, told[-1])).all()
            if told[-1] == math.inf or told[-1] > until:
                break
            at = told[-1]
            for i in np.flatnonzero(told[:-1] <= at).tolist():
                out[i].append(engines[i].harvest())
                assert (out[i][-1]["finish"] == at).all()
                told[i] = math.inf
            told[-1] = told[:-1].min()
    for engine in engines:
        engine.check()
    return [np.concatenate([rows[:0] for rows in pieces] + pieces) if pieces else np.zeros(0) for pieces in out], calls


def fleet_of(shape: Shape, w: Workload) -> list[VllmEngine]:
    make = shape.maker(w, shape.commons(w), logged=False)
    return [make(i) for i in range(shape.nodes)]


@pytest.mark.slow_without_jit
@pytest.mark.parametrize("tiers", ["none", "native-lru", "simple-lazy", "native+ssd", "gds"])
@settings(max_examples=10)
@given(
    raw=SESSIONS,
    horizons=st.lists(st.floats(0, 60), max_size=4),
    owners=st.lists(st.integers(0, 2), min_size=24, max_size=24),
    step=st.sampled_from([(1.0, 0.0, 0.0, 0.0), (0.25, 0.01, 0.001, 0.0)]),
)
def test_together_as_alone(
    tiers: str, raw: list[Session], horizons: list[float], owners: list[int], step: tuple[float, float, float, float]
) -> None:
    """Three engines that share nothing but the clock; what was met anywhere is common, so each has sessions of its own."""
    w = workload_of(raw)
    shape = Shape(TIERS[tiers], nodes=3, hbm=40, step=step, traced=True, host_s=(0.1, 0.2))
    mine = [[row for row in range(w.requests) if owners[int(w.session[row])] == i] for i in range(3)]
    alone = np.array([[0, 1], [1, 2], [2, 3]])
    together = fleet_of(shape, w)
    for engine, rows in zip(together, mine, strict=True):
        submit(engine, w, rows)
    got, _ = play(together, alone, [*sorted(horizons), UNTIL])
    for i, rows in enumerate(mine):
        engine = fleet_of(shape, w)[i]
        submit(engine, w, rows)
        (want,), _ = play([engine], alone[:1], [UNTIL])
        assert got[i].tobytes() == want.tobytes()
        assert len(want) == len(rows)


@pytest.mark.slow_without_jit
@pytest.mark.parametrize("tiers", ["none", "native-lru", "simple-eager"])
@settings(max_examples=15)
@given(raw=SESSIONS, owners=st.lists(st.integers(0, 1), min_size=24, max_size=24))
def test_a_group_steps_as_one(tiers: str, raw: list[Session], owners: list[int]) -> None:
    """Ranks in lockstep: steps of the two begin and end at the same times; where one waits for a flush the other does too."""
    w = workload_of(raw)
    shape = Shape(TIERS[tiers], nodes=2, hbm=34, host_s=(0.5, 0.25), step=(0.25, 0.01, 0.001, 0.0), prompt_only=False, traced=True)
    engines = fleet_of(shape, w)
    for i, engine in enumerate(engines):
        submit(engine, w, [row for row in range(w.requests) if owners[int(w.session[row])] == i])
    play(engines, np.array([[0, 2], [0, 2]]), [UNTIL])
    spans = [{(s["start"].item(), s["end"].item()) for s in np.asarray(e.e.trace.steps)[: int(e.e.trace.meta[0])]} for e in engines]
    ends = dict[float, float]()
    for start, end in sorted(spans[0] | spans[1]):
        assert ends.setdefault(start, end) == end
        assert start >= max((e for s, e in ends.items() if s < start), default=0.0)


def test_steps_by_hand() -> None:
    """Engine 0 has a request of 3 steps from 0, engine 1 one of 2 from 0.5. Up to 2 nobody has anything to tell; at 2.5 engine 1 has."""
    w = workload_of([[(0.0, 40, 3)], [(0.5, 40, 2)]])
    engines = fleet_of(Shape(nodes=2, traced=True), w)
    submit(engines[0], w, [0])
    submit(engines[1], w, [1])
    told = np.full(3, math.inf)
    handles = [engine.handles() for engine in engines]
    packed = bundles([e for e, _ in handles]), bundles([h for _, h in handles])
    advance, groups = link(fleet.advance, engines[0].parts), np.array([[0, 1], [1, 2]])
    advance(*packed, groups, 0.0, told)
    assert [int(engine.e.state.steps[0]) for engine in engines] == [0, 0]
    advance(*packed, groups, 2.0, told)
    # A step that begins before 2 goes to its end, and what that brings is known: engine 1 ends a request at 2.5.
    assert [int(engine.e.state.steps[0]) for engine in engines] == [2, 2]
    assert told.tolist() == [math.inf, 2.5, 2.5]
    advance(*packed, groups, 9.0, told)
    # Engine 0 begins a step at 2, before what is to be told, and ends a request at 3.
    assert [int(engine.e.state.steps[0]) for engine in engines] == [3, 2]
    assert told.tolist() == [3.0, 2.5, 2.5]


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("output", [2, 40])
def test_kernel_calls_are_those_of_requests(nodes: int, output: int) -> None:
    """Two a request at most (when it arrives, when it ends) and two more, whatever the number of nodes and of steps."""
    w = workload_of([[(1.5 * s, 40, output)] for s in range(20)])
    cluster, _ = run(Shape(nodes=nodes, hbm=200), w)
    assert cluster.calls <= 2 * w.requests + 2
    steps = sum(int(engine.e.state.steps[0]) for engine in cluster.engines)
    assert output == 2 or steps > 3 * cluster.calls / nodes


def test_calls_of_a_split_are_three_a_request() -> None:
    """One more for each end of a prefill and each handover."""
    w = workload_of([[(1.5 * s, 40, 30)] for s in range(20)])
    cluster, _ = run(replace(Shape(nodes=4, split=2, hbm=200), nic_s=(0.01, 0.01)), w)
    assert cluster.calls <= 4 * w.requests + 2
