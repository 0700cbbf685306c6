"""Preble's two rules, its costs by hand, its window.

A token takes 0.1 ms to prefill. A prompt of 10 blocks of 16 tokens and one token takes 0.0161 s, and brings 6.75 s of decode.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kvsim.router.preble import Preble, PrebleRouter
from tests.router.conftest import arrival, setting, workers

PROMPT = [(0, 10)]


def made(n: int = 2, *, hbm_blocks: int = 1000, **parameters: Any) -> PrebleRouter:
    router = Preble(**parameters).build(dataclasses.replace(setting(n), hbm_blocks=hbm_blocks))
    assert isinstance(router, PrebleRouter)
    return router


def send(router: PrebleRouter, number: int, runs: list[tuple[int, int]], worker: int, *, at_s: float = 0.0, n: int = 2) -> None:
    assert router.choose(arrival(number, runs, at_s=at_s), workers(n, alive=[w == worker for w in range(n)])) == worker


def costs(router: PrebleRouter, runs: list[tuple[int, int]], at_s: float = 0.0) -> list[float]:
    return [round(c, 6) for c in router.costs(arrival(99, runs, at_s=at_s), workers(2)).tolist()]


def test_load_and_missed_prefill() -> None:
    """Worker 0 has 6.75 + 0.0161 s to do; it misses 81 tokens of one that shares 5 blocks, the other worker 161."""
    router = made()
    assert costs(router, PROMPT) == [0.0161, 0.0161]
    send(router, 1, PROMPT, 0)
    assert costs(router, [(0, 5), (50, 5)]) == [6.7742, 0.0161]
    assert costs(made(decode_s=0.0), PROMPT) == [0.0161, 0.0161]


def test_exploits_where_more_is_cached_than_not() -> None:
    """Sharing 6 of 161 tokens' blocks: 96 cached, 65 not. Sharing 5: 80 and 81. 80 of 160: not more."""
    for shared, more_tokens, exploits in ((6, 1, True), (5, 1, False), (5, 0, False)):
        router = made()
        send(router, 1, PROMPT, 0)
        request = arrival(2, [(0, shared), (50, 10 - shared)], beyond_tokens=more_tokens)
        assert (router.choose(request, workers(2)) == 0) is exploits


def test_the_least_loaded_holder() -> None:
    router = made(3)
    send(router, 1, PROMPT, 0, n=3)
    send(router, 2, PROMPT, 1, n=3)
    send(router, 3, [(100, 2)], 0, n=3)
    assert router.choose(arrival(4, PROMPT), workers(3)) == 1  # not 2, which is idle
    assert router.choose(arrival(5, [*PROMPT, (70, 1)]), workers(3, alive=[True, False, True])) == 0


def test_only_workers_with_the_longest_prefix_are_holders() -> None:
    router = made()
    send(router, 1, [(0, 7)], 0)
    send(router, 2, PROMPT, 1)
    send(router, 3, [(100, 2)], 1)
    assert router.choose(arrival(4, PROMPT), workers(2)) == 1


def test_load_leaves_with_the_window_and_the_prefix_stays() -> None:
    router = made()
    send(router, 1, PROMPT, 0)
    assert costs(router, [(50, 10)], at_s=179.9) == [6.7822, 0.0161]
    assert costs(router, [(50, 10)], at_s=180.0) == [0.0161, 0.0161]
    assert router.choose(arrival(2, PROMPT, at_s=1000.0), workers(2)) == 0


def test_cost_of_eviction() -> None:
    """Worker 0 of 20 blocks holds 10 and was sent 20 blocks, 10 of them hits. 15 new ones push out 5: 80 tokens, 8 ms, half of it counts.

    Load: 6.75 + 0.0161 and 6.75 + 0.0001 (one token is computed at least). Missed: 241 tokens.
    """
    router = made(hbm_blocks=20)
    send(router, 1, PROMPT, 0)
    send(router, 2, PROMPT, 0)
    assert costs(router, [(50, 15)]) == [round(13.5162 + 0.004 + 0.0241, 6), 0.0241]
    assert costs(router, [(50, 10)]) == [round(13.5162 + 0.0161, 6), 0.0161]  # there is room for ten
    assert costs(router, [(50, 15)], at_s=180.0) == [0.0241, 0.0241]  # nobody used them in the window


def test_the_tree_holds_what_fits_into_hbm() -> None:
    router = made(hbm_blocks=12)
    send(router, 1, PROMPT, 0)
    send(router, 2, [(50, 8)], 0)  # leaves 4 blocks of the first
    assert costs(router, PROMPT, at_s=500.0) == [0.0097, 0.0161]


def test_rebalances_from_the_most_loaded_once_settled() -> None:
    router = made(rebalance_min_requests=1)
    send(router, 1, PROMPT, 0)
    assert router.choose(arrival(2, PROMPT), workers(2)) == 0  # one request sent for two workers: not settled
    assert router.choose(arrival(3, PROMPT), workers(2)) == 1
    assert router.choose(arrival(4, PROMPT), workers(2)) == 1  # a holder now too, and the less loaded


@pytest.mark.parametrize(("ratio", "moves"), [(1.9, True), (2.1, False)])
def test_rebalances_above_the_ratio(ratio: float, moves: bool) -> None:
    """Loads of two requests and of one: 13.51 and 6.77 s, a ratio of 1.998."""
    router = made(rebalance_ratio=ratio, rebalance_min_requests=0)
    send(router, 1, PROMPT, 0)
    send(router, 2, PROMPT, 0)
    send(router, 3, [(50, 10)], 1)
    assert (router.choose(arrival(4, PROMPT), workers(2)) == 1) is moves


def test_a_worker_that_went_down_starts_empty() -> None:
    router = made()
    send(router, 1, PROMPT, 0)
    send(router, 2, [(50, 10)], 1)
    router.lost(0)
    assert costs(router, PROMPT) == [0.0161, 6.7661 + 0.0161]
    router.lost(1)
    assert costs(router, PROMPT) == [0.0161, 0.0161]
    assert costs(router, PROMPT, at_s=1000.0) == [0.0161, 0.0161]  # what was dropped is not dropped again


def test_asks_no_worker() -> None:
    assert made().cache is None


@pytest.mark.parametrize("parameters", [{"window_s": 0.0}, {"rebalance_ratio": 0.9}])
def test_ranges(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        Preble(**parameters)
