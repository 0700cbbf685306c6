"""Dynamo's KV router: its cost by hand, its predicted load, its views.

Unless said otherwise a prompt has 10 full blocks of 16 tokens and one token more: 161 tokens, 161/16 = 10.0625 blocks to prefill on an
idle worker that has none of them, and 10 blocks to decode.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.router import Arrival, View
from kvsim.router.active_blocks import ActiveBlocks
from kvsim.router.dynamo_kv import DynamoKv, DynamoKvRouter
from tests.router.conftest import arrival, ids_of, setting, tree_chain, workers

PROMPT = [(0, 10)]


def made(n: int = 2, *, role: Any = "both", seed: int = 1, **parameters: Any) -> DynamoKvRouter:
    router = DynamoKv(**parameters).build(setting(n, role=role, seed=seed))
    assert isinstance(router, DynamoKvRouter)
    return router


def send(router: DynamoKvRouter, number: int, runs: list[tuple[int, int]], worker: int, *, n: int = 2, **columns: Any) -> None:
    """A request that only one worker is alive to take."""
    sight = workers(n, alive=[w == worker for w in range(n)], **columns)
    assert router.choose(arrival(number, runs), sight) == worker


def test_credit_by_tier() -> None:
    """4 blocks in HBM, 2 more in DRAM, 4 more on SSD: 4 + 0.75 * 2 + 0.25 * 4 = 6.5; 10.0625 - 6.5 + 10 = 13.5625."""
    sight = workers(2, hbm=[4, 0], host=[2, 0], disk=[4, 0], pool=[6, 10])
    assert made().costs(arrival(1, PROMPT), sight).tolist() == [13.5625, 20.0625]
    assert made().choose(arrival(1, PROMPT), sight) == 0


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"overlap_score_credit": 0.5}, 10.0625 - (2 + 1.5 + 1) + 10),
        ({"overlap_score_credit": 0.0}, 10.0625 - (1.5 + 1) + 10),
        ({"host_cache_hit_weight": 0.0}, 10.0625 - (4 + 1) + 10),
        ({"disk_cache_hit_weight": 1.0}, 10.0625 - (4 + 1.5 + 4) + 10),
        ({"shared_cache_multiplier": 0.5}, 10.0625 - (6.5 + 0.5 * 6) + 10),
        ({"shared_cache_multiplier": 1.0}, 10.0),  # 12.5 blocks of credit: no less than nothing to prefill
        ({"prefill_load_scale": 2.0}, 2 * 3.5625 + 10),
        ({"prefill_load_scale": 0.0}, 10.0),
    ],
)
def test_weights(parameters: dict[str, Any], expected: float) -> None:
    sight = workers(2, hbm=[4, 0], host=[2, 0], disk=[4, 0], pool=[6, 0])
    assert made(**parameters).costs(arrival(1, PROMPT), sight)[0] == expected


def test_predicted_load_from_dispatch_to_first_token_to_end() -> None:
    """The first leaves 161 - 6.5 * 16 = 57 tokens to prefill and 10 blocks; the second shares 6 of its 10 blocks with it.

    Worker 0: (57 + 161)/16 - 6 + (10 + 4) = 21.625; after the first token 10.0625 - 6 + 14 = 18.0625; after the end 14.0625.
    """
    router, second = made(), arrival(2, [(0, 6), (100, 4)])
    send(router, 1, PROMPT, 0, hbm=[4, 0], host=[2, 0], disk=[4, 0])
    sight = workers(2, hbm=[6, 0])
    assert router.costs(second, sight).tolist() == [21.625, 20.0625]
    router.first_token(1, 0.1)
    assert router.costs(second, sight).tolist() == [18.0625, 20.0625]
    router.ended(1, 0.2)
    assert router.costs(second, sight).tolist() == [14.0625, 20.0625]


def test_an_end_without_first_token_leaves_nothing() -> None:
    router = made()
    before = router.costs(arrival(2, PROMPT), workers(2)).tolist()
    send(router, 1, PROMPT, 0)
    router.ended(1, 0.2)
    router.first_token(1, 0.3)
    assert router.costs(arrival(2, PROMPT), workers(2)).tolist() == before


def test_active_requests() -> None:
    router = made(decode_active_request_weight=3.0)
    send(router, 1, [], 1)  # a prompt of one token: 1/16 block to prefill, no full block
    assert router.costs(arrival(2, PROMPT), workers(2)).tolist() == [20.0625, 20.0625 + 1 / 16 + 3]


def test_decay_of_the_credit() -> None:
    """57 active tokens over the least are 3.5625 blocks; the prompt has ceil(161/16) = 11. At 1, a credit of 6 / (1 + 3.5625/11)."""
    router = made(overlap_score_credit_decay=1.0)
    send(router, 1, PROMPT, 0, hbm=[4, 0], host=[2, 0], disk=[4, 0])
    sight = workers(2, hbm=[6, 0], host=[1, 0])
    expected = 13.625 - 6 / (1 + 3.5625 / 11) - 0.75 + 14
    assert router.costs(arrival(2, [(0, 6), (100, 4)]), sight)[0] == pytest.approx(expected)
    alone = dataclasses.replace(sight, alive=workers(2, alive=[True, False]).alive)  # the least loaded is itself now
    assert router.costs(arrival(2, [(0, 6), (100, 4)]), alone)[0] == 13.625 - 6.75 + 14


def test_shared_blocks_count_once_while_any_request_uses_them() -> None:
    router = made()
    for number in (1, 2):
        send(router, number, PROMPT, 0)
        router.first_token(number, 0.0)
    costs = [float(router.costs(arrival(3, [(50, 5)]), workers(2))[0])]
    for number in (1, 2):
        router.ended(number, 1.0)
        costs.append(float(router.costs(arrival(3, [(50, 5)]), workers(2))[0]))
    assert costs == [5.0625 + 15, 5.0625 + 15, 5.0625 + 5]


def test_prefill_nodes_count_no_decode_blocks() -> None:
    router = made(role="prefill")
    assert router.cache == View("events", 0.005)
    send(router, 1, PROMPT, 0)
    assert router.costs(arrival(2, PROMPT), workers(2, hbm=[0, 3])).tolist() == [2 * 10.0625, 7.0625]


def test_decode_nodes_by_load_alone() -> None:
    router = made(role="decode", decode_active_request_weight=2.0)
    assert router.cache is None
    send(router, 1, PROMPT, 0)
    send(router, 2, PROMPT, 0)  # not shared with the first
    sight = workers(2, hbm=[10, 0])
    assert router.costs(arrival(3, PROMPT), sight).tolist() == [30 + 4, 10]
    router.ended(1, 1.0)
    assert router.costs(arrival(3, PROMPT), sight).tolist() == [20 + 2, 10]


def test_decode_nodes_with_a_credit() -> None:
    router = made(role="decode", overlap_score_credit=1.0)
    assert router.cache == View("events", 0.005)
    sight = workers(2, hbm=[10, 2], host=[0, 4])
    assert router.costs(arrival(1, PROMPT), sight).tolist() == [0, 10 - 2 - 3]
    assert made(role="decode", overlap_score_credit=2.0).costs(arrival(1, PROMPT), sight).tolist() == [0, 10 - 4 - 3]


def test_ties_are_broken_uniformly() -> None:
    router, counts = made(4), Counter[int]()
    sight = workers(4, hbm=[5, 0, 5, 5])
    for number in range(3000):
        counts[router.choose(arrival(number, PROMPT), sight)] += 1
        router.ended(number, 0.0)
    assert set(counts) == {0, 2, 3}
    assert all(900 < count < 1100 for count in counts.values())


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 0.7311), (0.5, 0.8808), (1e-9, 1.0)])
def test_temperature(temperature: float, share: float) -> None:
    """Costs 10.0625 and 20.0625, scaled to 0 and 1: the better one gets 1 / (1 + exp(-1 / temperature)) of the requests."""
    router, hits = made(temperature=temperature), 0
    for number in range(4000):
        hits += router.choose(arrival(number, PROMPT), workers(2, hbm=[0, 10])) == 1
        router.ended(number, 0.0)
    assert hits / 4000 == pytest.approx(share, abs=0.025)


def test_temperature_without_differences() -> None:
    router = made(temperature=0.5)
    picks = [router.choose(arrival(number, PROMPT), workers(2)) for number in range(2)]
    assert sorted(picks) == [0, 1]  # the second finds the first one's load


def test_views() -> None:
    assert made().cache == View("events", 0.005)
    assert made(delay_s=0.5).cache == View("events", 0.5)
    assert made(view="oracle").cache == View("oracle")
    assert made(view="approximate").cache is None


def test_approximate_forgets_after_the_ttl_and_with_the_worker() -> None:
    router = made(view="approximate")
    send(router, 1, PROMPT, 0)
    router.ended(1, 1.0)
    for at_s, credit in ((119.9, 10), (120.0, 0)):
        assert router.costs(arrival(2, PROMPT, at_s=at_s), workers(2, hbm=[9, 9]))[0] == 20.0625 - credit
    router.lost(0)
    assert router.costs(arrival(2, PROMPT, at_s=2.0), workers(2))[0] == 20.0625


def test_approximate_takes_its_own_hits_off_the_prefill() -> None:
    router = made(view="approximate")
    send(router, 1, PROMPT, 0)
    router.ended(1, 1.0)
    send(router, 2, PROMPT, 0)  # all 10 blocks cached: one token left
    assert router.costs(arrival(3, [(50, 5)]), workers(2)).tolist() == [82 / 16 + 15, 81 / 16 + 5]


def test_affinity_holds_while_the_session_is_not_idle_too_long() -> None:
    router = made(session_affinity_ttl_s=60.0)
    assert router.choose(arrival(1, PROMPT, session="a"), workers(2, alive=[True, False])) == 0
    for number in range(2, 5):
        send(router, number, [(100 * number, 50)], 0)  # other sessions load the worker
    for number, at_s, worker in ((11, 59.0, 0), (12, 118.0, 0), (13, 178.0, 1), (14, 200.0, 1)):
        assert router.choose(arrival(number, PROMPT, at_s=at_s, session="a"), workers(2)) == worker
        router.ended(number, at_s)


def test_affinity_ends_with_the_worker() -> None:
    router = made(session_affinity_ttl_s=60.0)
    assert router.choose(arrival(1, PROMPT, session="a"), workers(2, alive=[True, False])) == 0
    router.ended(1, 1.0)
    assert router.choose(arrival(2, PROMPT, at_s=2.0, session="a"), workers(2, alive=[False, True])) == 1
    assert router.choose(arrival(3, PROMPT, at_s=3.0, session="a"), workers(2)) == 1  # stays where it went
    router.lost(1)
    router.ended(2, 4.0)
    router.ended(3, 4.0)
    assert router.choose(arrival(4, PROMPT, at_s=5.0, session="a"), workers(2, hbm=[3, 0])) == 0  # back, but with nothing: free to choose


class NaiveActive:
    """For each worker the prompts in flight."""

    def __init__(self) -> None:
        self.of: dict[int, tuple[int, list[int]]] = {}

    def used(self, worker: int) -> set[int]:
        return {key for at, ids in self.of.values() if at == worker for key in ids}


def stretched(turns: list[int]) -> list[tuple[int, int]]:
    """Runs of 450 blocks, so that pages end within them."""
    return [(150 * start, 150 * length) for start, length in tree_chain(turns, 6)]


PATHS = st.lists(st.integers(0, 1), max_size=6).map(stretched)


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 2), PATHS), max_size=30))
def test_active_blocks_like_the_naive_twin(steps: list[tuple[bool, int, list[tuple[int, int]]]]) -> None:
    active, twin = ActiveBlocks(3, 4), NaiveActive()
    for number, (leaves, worker, path) in enumerate(steps):
        request: Arrival = arrival(number, path)
        new = set(ids_of(request))
        assert active.potential(request).tolist() == [len(twin.used(w) | new) for w in range(3)]
        active.add(request, worker)
        twin.of[number] = worker, ids_of(request)
        if leaves:
            gone = next(iter(twin.of))
            active.remove(gone)
            del twin.of[gone]
        assert active.counts.tolist() == [len(twin.used(w)) for w in range(3)]
    for number in range(len(steps)):
        active.remove(number)
    assert active.counts.tolist() == [0, 0, 0]


def test_active_blocks_within_a_run() -> None:
    """A prompt that ends within a run leaves the rest of it unused, at every place of a page."""
    for blocks in (1, 2, 511, 512, 513, 1300):
        active = ActiveBlocks(1, 4)
        active.add(arrival(1, [(100, blocks)]), 0)
        assert active.potential(arrival(2, [(100, 2000), (9000, 3)])).tolist() == [2003]
        assert active.potential(arrival(2, [(100, blocks), (9000, 3)])).tolist() == [blocks + 3]
        assert active.potential(arrival(2, [(100, 0)])).tolist() == [blocks]


def test_active_blocks_keep_no_pages_of_what_is_over() -> None:
    active = ActiveBlocks(2, 4)
    for number in range(300):
        active.add(arrival(number, [(0, 600), (1000 + 900 * number, 800)]), number % 2)
        active.remove(number - 4)
    assert active.counts.tolist() == [600 + 2 * 800] * 2
    assert active._u.uses.shape[0] < 64


@pytest.mark.parametrize(
    "parameters", [{"view": "polled"}, {"ttl_s": 0.0}, {"session_affinity_ttl_s": 0.0}, {"overlap_score_credit": -0.1}]
)
def test_ranges(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(parameters))):
        DynamoKv(**parameters)
