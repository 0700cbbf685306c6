"""What workers tell of their caches, against sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.router.index import DISK, HBM, HOST, CacheIndex
from tests.router.conftest import arrival, ids_of

IDS = 24
EVENTS = st.tuples(st.integers(0, 1), st.integers(0, 2), st.lists(st.tuples(st.integers(0, IDS - 1), st.integers(0, 1)), max_size=12))


def tell(index: CacheIndex, worker: int, tier: int, events: list[tuple[int, int]]) -> None:
    keys, present = np.array(events, np.int64).reshape(-1, 2).T
    index.tell(worker, tier, keys.astype(np.int32), present.astype(np.uint8))


def naive_match(held: list[set[int]], ids: list[int]) -> tuple[int, int, int]:
    """Leading blocks in tiers 0; 0 or 1; 0, 1 or 2: each walk on its own, then the differences."""
    depth = []
    for tier in range(3):
        within = set().union(*held[: tier + 1])
        depth.append(next((i for i, key in enumerate(ids) if key not in within), len(ids)))
    return depth[0], depth[1] - depth[0], depth[2] - depth[1]


@given(told=st.lists(EVENTS, max_size=20), start=st.integers(0, 8), cut=st.integers(0, 8), forget=st.booleans())
def test_like_the_naive_twin(told: list[tuple[int, int, list[tuple[int, int]]]], start: int, cut: int, forget: bool) -> None:
    index, twin = CacheIndex(2, 3), [[set[int]() for _ in range(3)] for _ in range(2)]
    for worker, tier, events in told:
        tell(index, worker, tier, events)
        for key, present in events:
            (set.add if present else set.discard)(twin[worker][tier], key)
    if forget:
        index.forget(0)
        twin[0] = [set(), set(), set()]
    request = arrival(0, [(start, cut), (start + cut, 4), (40, 1)])
    hbm, host, disk = index.match(request)
    assert [(hbm[w], host[w], disk[w]) for w in range(2)] == [naive_match(twin[w], ids_of(request)) for w in range(2)]


def test_a_gap_ends_a_tier_and_the_next_goes_on() -> None:
    index = CacheIndex(1, 10)
    tell(index, 0, HBM, [(0, 1), (1, 1), (3, 1), (6, 1)])
    tell(index, 0, HOST, [(0, 1), (2, 1)])
    tell(index, 0, DISK, [(4, 1), (5, 1)])
    # 0 and 1 in HBM; 2 in host memory, 3 behind that gap though in HBM; 4, 5 and 6 behind a block on disk; 7 nowhere
    assert [int(tier[0]) for tier in index.match(arrival(0, [(0, 9)]))] == [2, 2, 3]
    tell(index, 0, HBM, [(0, 0)])
    assert [int(tier[0]) for tier in index.match(arrival(0, [(0, 9)]))] == [0, 4, 3]
    tell(index, 0, HOST, [(0, 0), (0, 1), (0, 0)])
    assert [int(tier[0]) for tier in index.match(arrival(0, [(0, 9)]))] == [0, 0, 0]


def test_grows() -> None:
    index = CacheIndex(2, 1)
    tell(index, 1, HOST, [(0, 1)])
    tell(index, 1, HBM, [(500_000, 1)])
    assert [tier.tolist() for tier in index.match(arrival(0, [(0, 1), (500_000, 1), (2_000_000, 1)]))] == [[0, 0], [0, 2], [0, 0]]
    tell(index, 0, HBM, [])
    with pytest.raises(ValueError, match="workers"):
        CacheIndex(0, 1)
