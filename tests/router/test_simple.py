"""Routers that look at no cache, and the counts and the ring they share."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.router import Router
from kvsim.router.bounded_hash import BoundedHash
from kvsim.router.in_flight import InFlight
from kvsim.router.least_loaded import LeastLoaded
from kvsim.router.power_of_two import PowerOfTwo
from kvsim.router.ring import Ring, place
from kvsim.router.round_robin import RoundRobin
from kvsim.router.session_hash import SessionHash
from kvsim.router.uniform import Random
from tests.router.conftest import arrival, build, workers


def send(router: Router, n: int, *, of: int, alive: list[bool] | None = None, first: int = 0, session: str | None = None) -> list[int]:
    """The choices for `n` requests in flight together, each of its own session unless one is named."""
    sight = workers(of, alive=alive)
    return [router.choose(arrival(i, session=session or f"s{i}"), sight) for i in range(first, first + n)]


def test_round_robin_goes_around_those_that_are_up() -> None:
    router = build(RoundRobin(), 4)
    assert send(router, 5, of=4) == [0, 1, 2, 3, 0]
    assert send(router, 4, of=4, alive=[True, False, False, True]) == [3, 0, 3, 0]
    assert send(router, 2, of=4) == [1, 2]


def test_random_is_even() -> None:
    counts = Counter(send(build(Random(), 4), 2000, of=4, alive=[True, False, True, True]))
    assert counts.keys() == {0, 2, 3}
    assert max(counts.values()) - min(counts.values()) < 120  # 667 each, standard deviation 21


def test_least_loaded_counts_its_own() -> None:
    router = build(LeastLoaded(), 4)
    assert sorted(send(router, 4, of=4)) == [0, 1, 2, 3]
    second = send(router, 4, of=4, first=4)
    assert sorted(second) == [0, 1, 2, 3]
    router.ended(4 + second.index(2), 0.0)
    assert send(router, 1, of=4, first=8) == [2]


def test_least_loaded_breaks_ties_at_random() -> None:
    first = Counter(build(LeastLoaded(), 3, seed=seed).choose(arrival(0), workers(3)) for seed in range(300))
    assert min(first.values()) > 60


def test_reported_loads_are_polled_and_herd() -> None:
    router = build(LeastLoaded(poll_s=0.1), 3)
    assert (router.load.kind, router.load.seconds) == ("polled", 0.1)
    seen = workers(3, running=[4, 1, 2], waiting=[0, 2, 0])
    assert [router.choose(arrival(i), seen) for i in range(5)] == [2] * 5


def test_power_of_two_never_takes_the_fullest_of_three() -> None:
    router = build(PowerOfTwo(poll_s=1.0), 3)
    seen = workers(3, running=[9, 1, 5])
    counts = Counter(router.choose(arrival(i), seen) for i in range(900))
    assert counts.keys() == {1, 2}
    assert 540 < counts[1] < 660  # two of the three pairs
    assert send(build(PowerOfTwo(), 3), 3, of=3, alive=[False, True, False]) == [1, 1, 1]


def test_power_of_two_is_more_even_than_random() -> None:
    spread = {}
    for parameters in (PowerOfTwo(), Random()):
        counts = Counter(send(build(parameters, 16), 1600, of=16))
        spread[type(parameters)] = max(counts.values()) - min(counts[w] for w in range(16))
    assert spread[PowerOfTwo] <= 6 < spread[Random]


@given(dead=st.sets(st.integers(0, 5), max_size=5))
def test_session_hash_moves_only_the_sessions_of_the_dead(dead: set[int]) -> None:
    router = build(SessionHash(), 6)
    before = send(router, 60, of=6)
    during = send(router, 60, of=6, alive=[w not in dead for w in range(6)])
    assert all(b == d for b, d in zip(before, during, strict=True) if b not in dead)
    assert not dead & set(during)
    assert send(router, 60, of=6) == before


def test_session_hash_shares_are_even_enough() -> None:
    counts = Counter(send(build(SessionHash(), 8), 8000, of=8))
    assert counts.keys() == set(range(8))
    assert max(counts.values()) < 1350  # of 1000: shares of 160 points have a relative deviation of 8%
    assert max(Counter(send(build(SessionHash(virtual_nodes=1), 8), 8000, of=8)).values()) > 1500


def test_the_ring_is_the_same_in_every_process() -> None:
    code = "from kvsim.router.ring import Ring; print(list(Ring(5, 7).walk('a session')))"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "3", "PYTHONPATH": "."}
    )
    assert out.stdout.strip() == str(list(Ring(5, 7).walk("a session")))


@given(session=st.text(max_size=8), n=st.integers(1, 9), nodes=st.integers(1, 4))
def test_a_walk_meets_every_worker_clockwise(session: str, n: int, nodes: int) -> None:
    points = sorted((place(f"{w}/{v}"), w) for w in range(n) for v in range(nodes))
    around = [w for at, w in points if at >= place(session)] + [w for at, w in points if at < place(session)]
    assert list(Ring(n, nodes).walk(session)) == list(dict.fromkeys(around))


@given(
    sessions=st.lists(st.integers(0, 3), max_size=60),
    factor=st.sampled_from([1.0, 1.5, 3.0]),
    ends=st.lists(st.integers(0, 59), max_size=20),
)
def test_bounded_hash_passes_on_along_the_ring_beyond_the_bound(sessions: list[int], factor: float, ends: list[int]) -> None:
    router, ring, loads, at = build(BoundedHash(load_factor=factor), 4), Ring(4, 160), [0, 0, 0, 0], {}
    for i, session in enumerate(sessions):
        worker = router.choose(arrival(i, session=str(session)), workers(4))
        bound = factor * (sum(loads) + 1) / 4
        assert worker == next(w for w in ring.walk(str(session)) if loads[w] <= bound)
        assert loads[worker] + 1 <= bound + 1
        loads[worker] += 1
        at[i] = worker
        if i in ends:
            router.ended(i, 0.0)
            loads[at[i]] -= 1


def test_bounded_hash_by_hand() -> None:
    """One session on 4 workers: with m requests there before, a worker with up to 1.5 (m + 1) / 4 takes the next.

    Bounds 0.4, 0.75, 1.1, 1.5, 1.9, 2.25, 2.6, 3; loads at home and after it 0 0, 1 0, 1 1, 2 1, 2 2, then 2 2 1, 3 2 1, 3 3 1.
    """
    home, after, third, _ = Ring(4, 160).walk("s")
    assert send(build(BoundedHash(), 4), 8, of=4, session="s") == [home, after, home, after, third, home, after, home]
    assert send(build(BoundedHash(min_load_gap=2), 4), 7, of=4, session="s") == [home, home, home, after, after, after, third]
    assert send(build(BoundedHash(), 4), 3, of=4, session="s", alive=[w == third for w in range(4)]) == [third] * 3


def test_in_flight() -> None:
    flying = InFlight(2)
    flying.add(7, 1)
    flying.add(8, 1, weight=5)
    assert flying.counts.tolist() == [0, 6]
    with pytest.raises(ValueError, match="request 7 is in flight already, at worker 1"):
        flying.add(7, 0)
    assert (flying.remove(8), flying.remove(8), flying.remove(9)) == (1, None, None)
    assert flying.counts.tolist() == [0, 1]
    flying.remove(7)
    flying.add(7, 0)
    assert np.array_equal(flying.counts, [1, 0])
