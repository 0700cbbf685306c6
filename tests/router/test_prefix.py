"""The cache_aware router: affinity, its thresholds, its tree."""

from __future__ import annotations

import pytest

from kvsim.router import Router
from kvsim.router.prefix import Prefix, block_at
from tests.router.conftest import BLOCK, arrival, build, ids_of, workers


def choose(
    router: Router, number: int, runs: list[tuple[int, int]], *, at_s: float = 0.0, of: int = 3, alive: list[bool] | None = None
) -> int:
    return router.choose(arrival(number, runs, at_s=at_s, beyond_tokens=0), workers(of, alive=alive))


def fill(router: Router, worker: int, n: int, first: int, of: int = 3) -> None:
    """`n` requests with nothing in common are in flight at `worker`."""
    for i in range(first, first + n):
        choose(router, i, [(1000 * i, 1)], of=of, alive=[w == worker for w in range(of)])


def test_follows_the_prefix_against_the_load() -> None:
    router = build(Prefix(), 3)
    home = choose(router, 1, [(0, 10)])
    fill(router, home, 20, first=10)
    assert choose(router, 2, [(0, 10), (50, 20)]) == home  # 10 of 30 blocks: a share of 0.33
    assert choose(router, 3, [(0, 10), (90, 24)]) != home  # 10 of 34: 0.29, so the least loaded


def test_a_share_equal_to_the_threshold_is_not_enough() -> None:
    for more, stays in ((9, True), (10, False)):
        router = build(Prefix(cache_threshold=0.5), 2)
        home = choose(router, 1, [(0, 10)], of=2)
        fill(router, home, 3, first=10, of=2)
        assert (choose(router, 2, [(0, 10), (50, more)], of=2) == home) is stays


def test_imbalance_needs_both_thresholds() -> None:
    for others, home_load, moves in ((0, 64, False), (0, 65, True), (130, 195, False), (130, 196, True), (128, 193, True)):
        router = build(Prefix(), 2)
        fill(router, 1, others, first=5000, of=2)
        assert choose(router, 1, [(0, 10)], of=2, alive=[True, False]) == 0
        fill(router, 0, home_load - 1, first=10, of=2)
        assert choose(router, 2, [(0, 10)], of=2) == (1 if moves else 0), (others, home_load)


def test_the_prefix_is_noted_wherever_it_went() -> None:
    router = build(Prefix(balance_abs_threshold=2, balance_rel_threshold=1.0), 2)
    assert choose(router, 1, [(0, 10)], of=2, alive=[True, False]) == 0
    fill(router, 0, 2, first=10, of=2)
    assert choose(router, 2, [(0, 10), (40, 5)], of=2) == 1  # out of balance
    for number in (1, 10, 11):
        router.ended(number, 1.0)
    fill(router, 1, 1, first=20, of=2)
    assert choose(router, 3, [(0, 10), (40, 5)], of=2) == 1  # the longest prefix is now there


def test_the_tree_is_cut_every_interval_and_never_before() -> None:
    parameters = Prefix(max_tree_size=4 * BLOCK * 6, eviction_interval_s=60.0)  # six blocks a worker
    router = build(parameters, 2)
    assert choose(router, 1, [(0, 6)], of=2, alive=[True, False]) == 0
    assert choose(router, 2, [(100, 5)], at_s=1.0, of=2, alive=[True, False]) == 0
    assert choose(router, 3, [(0, 6)], at_s=59.0, of=2) == 0  # eleven blocks are held; it is the newer prefix now
    assert choose(router, 4, [(100, 5)], at_s=61.0, of=2) == 1  # cut: forgotten
    assert choose(router, 5, [(0, 6)], at_s=62.0, of=2) == 0


def test_a_worker_that_went_down_starts_empty() -> None:
    router, prompt = build(Prefix(), 2), [(0, 7)]
    assert choose(router, 1, prompt, of=2, alive=[True, False]) == 0
    assert choose(router, 2, prompt, of=2, alive=[False, True]) == 1
    assert choose(router, 3, prompt, of=2) == 0  # of two equals, by the last block
    router.lost(0)
    router.ended(1, 1.0)
    router.ended(3, 1.0)
    assert choose(router, 4, prompt, of=2) == 1  # though 0 is idle


def test_equal_prefixes_go_to_one_worker_each_and_not_all_to_the_same() -> None:
    router = build(Prefix(), 2)
    for worker in range(2):
        for i in range(4):
            choose(router, 10 * worker + i, [(10 * i, 3 + i)], of=2, alive=[w == worker for w in range(2)])
    picks = [[choose(router, 100 + 10 * i + k, [(10 * i, 3 + i)], of=2) for k in range(3)] for i in range(4)]
    assert all(len(set(pick)) == 1 for pick in picks)
    assert {pick[0] for pick in picks} == {0, 1}


def test_block_at() -> None:
    request = arrival(1, [(5, 2), (9, 0), (20, 3)])
    assert [block_at(request, i) for i in range(5)] == ids_of(request) == [5, 6, 20, 21, 22]


@pytest.mark.parametrize("parameters", [{"cache_threshold": 1.1}, {"balance_rel_threshold": 0.9}, {"max_tree_size": 0}])
def test_ranges(parameters: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        Prefix(**parameters)  # type: ignore[arg-type]
