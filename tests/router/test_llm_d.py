"""llm-d's scores by hand, how far its prefixes reach, its views."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest

from kvsim.router import View, Workers
from kvsim.router.llm_d import LlmD, LlmDRouter
from tests.router.conftest import arrival, setting, workers

PROMPT = [(0, 10)]


def made(n: int = 3, *, block_tokens: int = 16, **parameters: Any) -> LlmDRouter:
    router = LlmD(**parameters).build(dataclasses.replace(setting(n), block_tokens=block_tokens))
    assert isinstance(router, LlmDRouter)
    return router


def scores(router: LlmDRouter, runs: list[tuple[int, int]], sight: Workers, at_s: float = 0.0) -> list[float]:
    return [round(score, 6) for score in router.scores(arrival(99, runs, at_s=at_s), sight, np.flatnonzero(sight.alive)).tolist()]


def send(router: LlmDRouter, runs: list[tuple[int, int]], worker: int, n: int = 3) -> None:
    assert router.choose(arrival(1, runs), workers(n, alive=[w == worker for w in range(n)])) == worker


def test_queue_and_memory() -> None:
    """Queues of 0, 2, 4 score 1, 0.5, 0, memory in use of 0.5, 0, 0.25 scores 0.5, 1, 0.75; each has weight 2."""
    sight = workers(3, waiting=[0, 2, 4], usage=[0.5, 0.0, 0.25], running=[9, 1, 1])
    assert scores(made(), PROMPT, sight) == [2 + 1, 1 + 2, 0 + 1.5]
    assert scores(made(queue_weight=0.0, kv_weight=1.0), PROMPT, sight) == [0.5, 1, 0.75]


def test_equal_queues_all_score_one() -> None:
    assert scores(made(), PROMPT, workers(3, waiting=[7, 7, 7])) == [4, 4, 4]


def test_only_candidates_set_the_range_of_queues() -> None:
    assert scores(made(), PROMPT, workers(3, alive=[True, False, True], waiting=[1, 50, 3])) == [4, 2]


def test_prefix() -> None:
    """5 of 10 blocks are what worker 1 was sent: 0.5, with weight 3."""
    router = made()
    send(router, [(0, 5), (50, 5)], 1)
    assert scores(router, PROMPT, workers(3)) == [4, 5.5, 4]
    assert router.choose(arrival(2, PROMPT), workers(3, waiting=[0, 1, 1])) == 0  # 4, 3.5, 2
    assert scores(router, PROMPT, workers(3)) == [7, 5.5, 4]  # noted where it went


def test_prompts_that_differ_behind_4096_tokens_look_identical() -> None:
    """Two prompts of 100,096 tokens share 256 blocks: for llm-d all of it, for one that looks at 100,000 tokens 256 of 6250 blocks."""
    one, other = [(0, 256), (1000, 6000)], [(0, 256), (8000, 6000)]
    router = made()
    send(router, one, 2)
    assert scores(router, other, workers(3)) == [4, 4, 7]
    further = made(max_prefix_tokens=100_000)
    send(further, one, 2)
    assert scores(further, other, workers(3)) == [4, 4, round(4 + 3 * 256 / 6250, 6)]
    assert scores(further, one, workers(3)) == [4, 4, 7]


def test_larger_blocks_reach_as_many_tokens() -> None:
    """4096 tokens are 64 blocks of 64 tokens; what goes beyond is not looked at. A block larger than that is looked at all the same."""
    router = made(block_tokens=64)
    send(router, [(0, 64), (500, 20)], 0)
    assert scores(router, [(0, 64), (900, 20)], workers(3)) == [7, 4, 4]
    large = made(block_tokens=8192)
    send(large, [(0, 1), (500, 2)], 0)
    assert scores(large, [(0, 1), (900, 2)], workers(3)) == [7, 4, 4]


def test_each_worker_has_its_own_lru() -> None:
    router = made(lru_tokens=160)  # ten blocks
    send(router, PROMPT, 0)
    send(router, [(20, 6)], 1)
    assert scores(router, PROMPT, workers(3)) == [7, 4, 4]
    send(router, [(40, 5)], 0)  # five old ones go, from the tail
    assert scores(router, PROMPT, workers(3)) == [5.5, 4, 4]
    assert scores(router, [(20, 6)], workers(3)) == [4, 7, 4]


def test_a_worker_that_went_down_is_forgotten() -> None:
    router = made()
    send(router, PROMPT, 0)
    router.lost(0)
    assert scores(router, PROMPT, workers(3)) == [4, 4, 4]


def test_precise_prefixes() -> None:
    """10 in HBM: 10; 10 in DRAM: 8; 4 and 2: 5.6; stretched to 1, 2.4/4.4, 0, and 0 for one that has none. Disk and pool don't count."""
    router = made(4, prefix="precise", queue_weight=0.0, kv_weight=0.0, prefix_weight=1.0)
    sight = workers(4, hbm=[10, 0, 4, 0], host=[0, 10, 2, 0], disk=[0, 0, 0, 5], pool=[0, 9, 5, 9])
    assert scores(router, PROMPT, sight) == [1, round(2.4 / 4.4, 6), 0, 0]


def test_precise_prefixes_all_equal_or_none() -> None:
    router = made(prefix="precise")
    assert scores(router, PROMPT, workers(3, hbm=[0, 1, 1])) == [4, 7, 7]
    assert scores(router, PROMPT, workers(3)) == [4, 4, 4]
    send(router, PROMPT, 0)  # what it sent itself teaches it nothing
    assert scores(router, PROMPT, workers(3)) == [4, 4, 4]


def test_ties_are_broken_uniformly() -> None:
    router = made(prefix="precise")
    counts = Counter(router.choose(arrival(i, PROMPT), workers(3, waiting=[0, 0, 1])) for i in range(2000))
    assert set(counts) == {0, 1}
    assert 900 < counts[0] < 1100


def test_the_filter_avoids_saturated_workers_while_there_are_others() -> None:
    router = made(saturation_filter=True)
    for _ in range(3):
        send(router, PROMPT, 0)
    assert router.choose(arrival(2, PROMPT), workers(3, waiting=[6, 5, 6])) == 1
    assert router.choose(arrival(3, PROMPT), workers(3, usage=[0.81, 0.81, 0.8])) == 2
    assert router.choose(arrival(4, PROMPT), workers(3, alive=[True, False, True], waiting=[0, 0, 9], usage=[0.9, 0, 0])) == 0
    off = made()
    send(off, PROMPT, 0)
    assert off.choose(arrival(2, PROMPT), workers(3, waiting=[6, 5, 6])) == 0


def test_views() -> None:
    assert made().load == View("polled", 0.05)
    assert made().cache is None
    assert made(poll_s=1.0, prefix="precise", delay_s=0.1).load == View("polled", 1.0)
    assert made(prefix="precise", delay_s=0.1).cache == View("events", 0.1)


@pytest.mark.parametrize("parameters", [{"prefix": "exact"}, {"max_prefix_tokens": 0}, {"max_kv_usage": 1.1}, {"lru_tokens": 0}])
def test_ranges(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        LlmD(**parameters)
