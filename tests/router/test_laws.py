"""What holds for every registered router."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.rng import stream
from kvsim.router import REJECT, ROUTER, Arrival, Router, View, Workers
from tests.router.conftest import arrival, build, setting, tree_chain, workers

N = 4
ROUTERS = sorted(ROUTER)
NUMBERS = [
    (name, field.name, hint)
    for name in ROUTERS
    for field in dataclasses.fields(ROUTER[name])
    for hint in [get_type_hints(ROUTER[name])[field.name]]
    if hint in (int, float, int | None, float | None)
]
PATHS = st.lists(st.integers(0, 1), max_size=5).map(lambda turns: tree_chain(turns, 5))


def any_workers(alive: list[bool], seed: int) -> Workers:
    """Workers in any state."""
    rng = stream(seed, "workers")
    columns = {name: rng.integers(0, 10, N).tolist() for name in ("running", "waiting", "hbm", "host", "disk", "pool")}
    return workers(N, alive=alive, usage=rng.random(N).tolist(), **columns)


ALIVE = st.lists(st.booleans(), min_size=N, max_size=N).filter(any)
SIGHTS = st.builds(any_workers, ALIVE, st.integers(0, 1000))
REQUESTS = st.lists(st.tuples(PATHS, st.integers(0, 3), st.integers(0, 90), SIGHTS, st.booleans()), min_size=1, max_size=15)


def play(router: Router, requests: list[Any]) -> list[int]:
    """The choices for `requests`: path, session, seconds since the one before, workers, and whether an older one ends before the next."""
    chosen, flying, now = [], list[int](), 0.0
    for number, (path, session, later, sight, ends) in enumerate(requests):
        now += later
        choice = router.choose(arrival(number, path, at_s=now, session=str(session)), sight)
        chosen.append(choice)
        if choice != REJECT:
            flying.append(number)
        if ends and flying:
            first = flying.pop(0)
            if router.told_first_tokens:
                router.first_token(first, now)
            router.ended(first, now)
    return chosen


@pytest.mark.parametrize("name", ROUTERS)
def test_is_listed_with_a_source_and_built_from_defaults(name: str) -> None:
    entry = ROUTER.entry(name)
    assert entry.source
    assert entry.summary.endswith(".")
    assert dataclasses.is_dataclass(entry.value)
    assert entry.value.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for role in ("both", "prefill", "decode"):
        router = entry.value().build(setting(N, role=role))
        assert isinstance(router, Router)
        assert isinstance(router.load, View)
        assert router.cache is None or isinstance(router.cache, View)


@pytest.mark.parametrize("name", ROUTERS)
@settings(max_examples=20)
@given(requests=REQUESTS)
def test_chooses_a_worker_that_is_alive(name: str, requests: list[Any]) -> None:
    choices = play(build(ROUTER[name](), N), requests)
    assert all(choice == REJECT or requests[i][3].alive[choice] for i, choice in enumerate(choices))
    assert all(type(choice) is int for choice in choices)


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("survivor", range(N))
def test_the_last_worker_alive_serves_all(name: str, survivor: int) -> None:
    router = build(ROUTER[name](), N)
    sight = workers(N, alive=[w == survivor for w in range(N)])
    assert {router.choose(arrival(i, [(4 * i, 4)], session=str(i)), sight) for i in range(20)} == {survivor}


@pytest.mark.parametrize("name", ROUTERS)
@settings(max_examples=20)
@given(requests=REQUESTS)
def test_peeks_only(name: str, requests: list[Any]) -> None:
    before = copy.deepcopy(requests)
    router = build(ROUTER[name](), N)
    play(router, requests)
    for (*_, sight, _), (*_, old, _) in zip(requests, before, strict=True):
        assert all(np.array_equal(getattr(sight, f), getattr(old, f)) for f in Workers.__dataclass_fields__)
    request = arrival(1000, [(0, 3), (9, 2)])
    runs = request.run_start.copy(), request.run_length.copy()
    router.choose(request, workers(N))
    assert np.array_equal(request.run_start, runs[0])
    assert np.array_equal(request.run_length, runs[1])


@pytest.mark.parametrize("name", ROUTERS)
@settings(max_examples=20)
@given(requests=REQUESTS, seed=st.integers(0, 5))
def test_same_seed_same_choices(name: str, requests: list[Any], seed: int) -> None:
    assert play(build(ROUTER[name](), N, seed=seed), requests) == play(build(ROUTER[name](), N, seed=seed), requests)


@pytest.mark.parametrize("name", ROUTERS)
def test_two_runs_never_meet(name: str) -> None:
    one, other = build(ROUTER[name](), N), build(ROUTER[name](), N)
    requests: list[Arrival] = [arrival(i, [(0, 3), (4 * i + 3, 3)], session=str(i % 3)) for i in range(30)]
    alone = [one.choose(request, workers(N)) for request in requests]
    third = build(ROUTER[name](), N)
    between = []
    for request in requests:
        between.append(other.choose(request, workers(N)))
        third.choose(request, workers(N, alive=[False, True, False, True]))
    assert alone == between


@pytest.mark.parametrize("name", ROUTERS)
def test_a_request_lost_with_its_worker_is_chosen_for_again(name: str) -> None:
    router = build(ROUTER[name](), N)
    request = arrival(7, [(0, 6)], session="a")
    for attempt in range(3 * N):
        sight = workers(N)
        first = router.choose(dataclasses.replace(request, at_s=float(attempt)), sight)
        assert 0 <= first < N
        router.lost(first)
        router.ended(7, attempt + 0.5)
        without = workers(N, alive=[w != first for w in range(N)])
        again = router.choose(dataclasses.replace(request, at_s=attempt + 0.5), without)
        assert again not in (first, REJECT)
        if router.told_first_tokens:
            router.first_token(7, attempt + 0.7)
        router.ended(7, attempt + 0.8)


@pytest.mark.parametrize("name", ROUTERS)
def test_an_idle_router_forgets_its_load(name: str) -> None:
    """What ended weighs nothing: of many requests one after the other none is ever turned away."""
    router = build(ROUTER[name](), N)
    for i in range(300):
        choice = router.choose(arrival(i, [(0, 2), (10 * i + 5, 8)], at_s=float(i), session=str(i)), workers(N))
        assert choice != REJECT
        router.ended(i, i + 0.5)


@pytest.mark.parametrize("name", ROUTERS)
def test_prompts_shorter_than_a_block(name: str) -> None:
    router = build(ROUTER[name](), N)
    assert all(0 <= router.choose(arrival(i, [], beyond_tokens=1), workers(N)) < N for i in range(10))


@pytest.mark.parametrize(("name", "parameter", "hint"), NUMBERS)
def test_parameters_out_of_range_are_named(name: str, parameter: str, hint: Any) -> None:
    for value in (-1, math.nan) if float in (hint, *getattr(hint, "__args__", ())) else (-1,):
        with pytest.raises(ValueError, match=parameter):
            ROUTER[name](**{parameter: value})


def test_the_presets_people_ask_for_are_there() -> None:
    assert {"round-robin", "random", "least-loaded", "power-of-two", "session-hash", "bounded-hash", "prefix"} <= set(ROUTERS)
