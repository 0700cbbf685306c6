"""The prefixes a router remembers, against a plain list a worker."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.router import Arrival
from kvsim.router.recent import RecentIndex
from tests.router.conftest import arrival, ids_of, tree_chain

WORKERS = 3


class NaiveRecent:
    """For each worker its blocks from oldest to newest, with the time of the last note."""

    def __init__(self, ttl_s: float | None, max_blocks: int | None) -> None:
        self.ttl_s, self.max_blocks = ttl_s, max_blocks
        self.at: list[dict[int, float]] = [{} for _ in range(WORKERS)]

    def note(self, worker: int, request: Arrival, at_s: float, limit: int | None) -> None:
        for key in reversed(ids_of(request)[:limit]):
            self.at[worker].pop(key, None)
            self.at[worker][key] = at_s
        if self.max_blocks is not None:
            self.trim(worker, self.max_blocks)

    def match(self, request: Arrival, at_s: float, limit: int | None) -> list[int]:
        found = []
        for known in self.at:
            n = 0
            for key in ids_of(request)[:limit]:
                if key not in known or (self.ttl_s is not None and at_s - known[key] >= self.ttl_s):
                    break
                n += 1
            found.append(n)
        return found

    def trim(self, worker: int, blocks: int) -> None:
        while len(self.at[worker]) > blocks:
            del self.at[worker][next(iter(self.at[worker]))]


PATHS = st.lists(st.integers(0, 1), max_size=6).map(lambda turns: tree_chain(turns, 6))
LIMITS = st.none() | st.integers(0, 20)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), st.integers(0, WORKERS - 1), PATHS, LIMITS, st.integers(0, 3)),
        st.tuples(st.just("match"), st.just(0), PATHS, LIMITS, st.integers(0, 3)),
        st.tuples(st.just("trim"), st.integers(0, WORKERS - 1), st.just([]), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("forget"), st.integers(0, WORKERS - 1), st.just([]), st.none(), st.just(0)),
    ),
    max_size=40,
)


@given(steps=STEPS, ttl_s=st.none() | st.integers(1, 8), max_blocks=st.none() | st.integers(1, 25))
def test_like_the_naive_twin(steps: list[tuple[str, int, list[tuple[int, int]], int | None, int]], ttl_s: int, max_blocks: int) -> None:
    index, twin, now = RecentIndex(WORKERS, 4, ttl_s=ttl_s, max_blocks=max_blocks), NaiveRecent(ttl_s, max_blocks), 0.0
    for verb, worker, path, limit, later in steps:
        now += later
        request = arrival(0, path)
        if verb == "note":
            index.note(worker, request, now, limit)
            twin.note(worker, request, now, limit)
        elif verb == "trim":
            assert limit is not None
            index.trim(worker, limit)
            twin.trim(worker, limit)
        elif verb == "forget":
            index.forget(worker)
            twin.at[worker].clear()
        assert index.match(request, now, limit).tolist() == twin.match(request, now, limit)
    for worker in range(WORKERS):
        fresh = [t for t in twin.at[worker].values() if ttl_s is None or now - t < ttl_s]
        index.note(worker, arrival(0, []), now)  # drops what is past its time
        assert index.blocks[worker] == len(fresh)


def test_the_tail_goes_first_then_the_older_request() -> None:
    index = RecentIndex(1, 32, max_blocks=6)
    first, second = arrival(1, [(0, 2), (10, 2)]), arrival(2, [(0, 2), (20, 3)])
    index.note(0, first, 0.0)
    index.note(0, second, 1.0)  # seven blocks: 11, the tail of the first, goes
    assert [index.match(r, 1.0)[0] for r in (first, second)] == [3, 5]
    index.note(0, arrival(3, [(30, 9)]), 2.0)  # more than there is room for: its head stays, nothing else
    assert [index.match(r, 2.0)[0] for r in (first, second, arrival(4, [(30, 9)]))] == [0, 0, 6]


def test_a_look_up_refreshes_nothing() -> None:
    index, request = RecentIndex(1, 8, ttl_s=120.0), arrival(1, [(0, 4)])
    index.note(0, request, 0.0)
    assert index.match(request, 119.9)[0] == 4
    assert index.match(request, 120.0)[0] == 0
    index.note(0, request, 119.0, limit_blocks=1)
    assert index.match(request, 150.0)[0] == 1
    index.note(0, arrival(2, [(20, 3)]), 239.0)
    assert index.blocks[0] == 3  # the head's time was over at 239, too


def test_grows_with_ids_and_blocks() -> None:
    index, far = RecentIndex(2, 1), arrival(1, [(0, 3), (1_000_000, 5000)])
    assert index.match(far, 0.0).tolist() == [0, 0]
    index.note(1, arrival(0, [(0, 3)]), 0.0)
    assert index.match(far, 0.0).tolist() == [0, 3]
    index.note(1, far, 1.0)
    assert index.match(far, 1.0).tolist() == [0, 5003]
    assert index.blocks.tolist() == [0, 5003]


def test_cells_are_used_again() -> None:
    index = RecentIndex(1, 1000, max_blocks=10)
    for i in range(500):
        index.note(0, arrival(i, [(10 * (i % 90), 10)]), float(i))
    assert index._m.key.size < 1100
    assert np.all(index._m.cell[0].nonzero()[0] == np.sort(np.arange(10) + 10 * (499 % 90)))


@pytest.mark.parametrize(("name", "value"), [("ttl_s", 0.0), ("ttl_s", float("nan")), ("max_blocks", 0)])
def test_sizes_are_above_zero(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        RecentIndex(1, 8, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="workers"):
        RecentIndex(0, 8)
    with pytest.raises(ValueError, match="max_blocks"):
        RecentIndex(1, 8).trim(0, -1)
