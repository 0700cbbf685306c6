"""Mooncake's estimates by hand.

A token takes 0.1 ms to prefill, a block of 16 tokens 1 ms to copy from the pool. A prompt has 10 blocks and one token: 16.1 ms.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest

from kvsim.router import REJECT, Arrival, Setting, View, Workers
from kvsim.router.mooncake import Mooncake, MooncakeRouter
from tests.router.conftest import arrival, setting, workers

PROMPT = [(0, 10)]


def made(n: int = 2, *, given: Setting | None = None, **parameters: Any) -> MooncakeRouter:
    router = Mooncake(**parameters).build(given or setting(n))
    assert isinstance(router, MooncakeRouter)
    return router


def times_ms(router: MooncakeRouter, request: Arrival, sight: Workers) -> list[float]:
    return [round(1000 * t, 6) for t in router.estimate(request, sight, np.flatnonzero(sight.alive)).ttft_s.tolist()]


def test_local_prefix_or_the_pool() -> None:
    """Worker 0 has 4: 97 tokens, 9.7 ms; the pool has 8: 4 copied and 33 tokens, 4 + 3.3. Worker 1 has none: 8 + 3.3, not 16.1."""
    assert times_ms(made(), arrival(1, PROMPT), workers(2, hbm=[4, 0], pool=[4, 8])) == [7.3, 11.3]
    assert times_ms(made(), arrival(1, PROMPT), workers(2, hbm=[4, 0])) == [9.7, 16.1]


def test_its_own_lower_tiers_count_as_local() -> None:
    """4 + 3 of its own, 49 tokens: 4.9 ms; one more from the pool: 1 + 3.3. What the pool has no more of than it, is not copied."""
    assert times_ms(made(1), arrival(1, PROMPT), workers(1, hbm=[4], host=[2], disk=[1], pool=[4])) == [4.3]
    assert times_ms(made(1), arrival(1, PROMPT), workers(1, hbm=[4], host=[2], disk=[1], pool=[3])) == [4.9]


@pytest.mark.parametrize(("threshold", "expected"), [(1.9, 7.3), (2.0, 7.3), (2.1, 9.7)])
def test_threshold_of_the_ratio(threshold: float, expected: float) -> None:
    """8 blocks in the pool are 2 times the worker's own 4."""
    router = made(balancing_threshold=threshold)
    assert times_ms(router, arrival(1, PROMPT), workers(2, hbm=[4, 0], pool=[4, 8])) == [expected, 11.3]


def test_a_slow_pool_is_not_used() -> None:
    slow = dataclasses.replace(setting(1), copy_s=2e-3)
    assert times_ms(made(given=slow), arrival(1, PROMPT), workers(1, hbm=[4], pool=[6])) == [9.7]


def test_one_token_is_computed_at_least() -> None:
    assert times_ms(made(1), arrival(1, PROMPT, beyond_tokens=0), workers(1, hbm=[10])) == [0.1]


def test_queue_until_the_first_token() -> None:
    """The first waits for nothing and takes 9.7 ms at worker 0; the next would wait for it: 9.7 + 9.7 > 16.1."""
    router, sight = made(), workers(2, hbm=[4, 0])
    assert router.choose(arrival(1, PROMPT), sight) == 0
    assert times_ms(router, arrival(2, PROMPT), sight) == [19.4, 16.1]
    assert router.choose(arrival(2, PROMPT), sight) == 1
    assert times_ms(router, arrival(3, PROMPT), sight) == [19.4, 32.2]
    router.first_token(1, 0.0097)
    assert times_ms(router, arrival(3, PROMPT), sight) == [9.7, 32.2]
    router.ended(2, 0.02)  # lost with its worker before its first token
    router.ended(1, 0.02)
    assert times_ms(router, arrival(3, PROMPT), sight) == [9.7, 16.1]


def test_copying_queues_nobody_behind_it() -> None:
    router = made(1)
    assert router.choose(arrival(1, PROMPT), workers(1, pool=[8])) == 0
    assert times_ms(router, arrival(2, PROMPT), workers(1)) == [round(3.3 + 16.1, 6)]


def test_rejects_what_no_worker_can_start_in_time() -> None:
    router = made(ttft_slo_s=0.0165)
    assert router.choose(arrival(1, PROMPT), workers(2)) != REJECT
    assert router.choose(arrival(2, PROMPT), workers(2)) != REJECT
    assert router.choose(arrival(3, PROMPT), workers(2)) == REJECT
    assert router.choose(arrival(4, PROMPT), workers(2)) == REJECT  # the rejected one queues nowhere
    router.first_token(1, 0.017)
    assert router.choose(arrival(5, PROMPT), workers(2)) != REJECT
    assert made().choose(arrival(1, [(0, 60_000)]), workers(2)) != REJECT  # 96 s, but no objective


def test_ties_are_broken_uniformly() -> None:
    router, counts = made(3), Counter[int]()
    for number in range(2000):
        counts[router.choose(arrival(number, PROMPT), workers(3, hbm=[2, 0, 2]))] += 1
        router.ended(number, 0.0)
    assert set(counts) == {0, 2}
    assert 900 < counts[0] < 1100


def test_asks_for_each_different_prefill_once() -> None:
    asked: list[tuple[int, int]] = []

    def prefill_s(new: int, cached: int) -> float:
        asked.append((new, cached))
        return 1e-4 * new

    router = made(given=dataclasses.replace(setting(64), prefill_s=prefill_s))
    router.choose(arrival(1, PROMPT), workers(64, hbm=[4] * 2 + [0] * 62, pool=[4] * 2 + [8] * 62))
    assert sorted(asked) == [(33, 128), (97, 64), (161, 0)]


def test_decode_nodes_by_requests() -> None:
    router = Mooncake().build(setting(2, role="decode"))
    assert router.cache is None
    picks = [router.choose(arrival(i, PROMPT), workers(2, hbm=[10, 0])) for i in range(4)]
    assert Counter(picks) == {0: 2, 1: 2}


def test_view() -> None:
    assert made().cache == View("events", 0.005)
    assert made(delay_s=1.0).cache == View("events", 1.0)


@pytest.mark.parametrize("parameters", [{"balancing_threshold": 0.9}, {"ttft_slo_s": 0.0}])
def test_ranges(parameters: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        Mooncake(**parameters)
