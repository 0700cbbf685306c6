"""Interning: any integers to dense ids in first-seen order, as runs, against a dictionary."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import TraceError
from kvsim.workload.intern import Interner


def expanded(ids: Interner, first: int = 0) -> list[int]:
    return [b for a, n in zip(ids.run_start[first : ids.used], ids.run_length[first : ids.used], strict=True) for b in range(a, a + n)]


@st.composite
def prefix_lists(draw: st.DrawFn) -> list[list[int]]:
    """Lists in which an id always follows the same id: paths of a random tree whose nodes have random numbers."""
    size = draw(st.integers(1, 40))
    numbers = draw(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 60), min_size=size, max_size=size, unique=True))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    paths = []
    for node in draw(st.lists(st.integers(0, size - 1), max_size=12)):
        path = []
        while node >= 0:
            path.append(numbers[node])
            node = parents[node]
        paths.append(path[::-1])
    return paths


@settings(max_examples=60)
@given(prefix_lists(), st.sampled_from([None, 1]))
def test_dense_ids_in_first_seen_order(paths: list[list[int]], indent: int | None) -> None:
    ids = Interner()
    dense: dict[int, int] = {}
    want: list[int] = []
    for path in paths:
        assert ids.add(json.dumps(path, indent=indent).encode()) == len(path)
        want += [dense.setdefault(number, len(dense)) for number in path]
    assert expanded(ids) == want
    assert ids.count == len(dense)


def test_many_ids_outgrow_the_first_table() -> None:
    ids = Interner()
    for first in range(0, 9000, 3000):
        ids.add(json.dumps([*range(0, first * 1024, 1024), *range(first * 1024, (first + 3000) * 1024, 1024)]).encode())
    assert ids.count == 9000
    assert expanded(ids, 0) == [*range(3000), *range(6000), *range(9000)]
    assert ids.used == 3


def test_a_new_scope_forgets_ids() -> None:
    ids = Interner()
    ids.add(b"[7,8,9]")
    ids.new_scope()
    assert ids.add(b"[9,7]") == 2
    assert expanded(ids, 1) == [0, 1]


@pytest.mark.parametrize("blocks", range(6))
def test_cut_drops_the_last_ids(blocks: int) -> None:
    ids = Interner()
    ids.add(b"[1,2,3]")
    ids.add(b"[1,2,4,5,6]")
    assert ids.cut(blocks) == ([*[0, 1, 3, 4, 5], -1][5 - blocks])
    assert expanded(ids) == [0, 1, 2, *[0, 1, 3, 4, 5][: 5 - blocks]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"null", "expected a list of block ids"),
        (b"7", "expected a list of block ids"),
        (b"{}", "expected a list of block ids"),
        (b"[1, -2]", "[1]: a block id is a non-negative integer"),
        (b"[1.5]", "[0]: a block id is a non-negative integer"),
        (b"[1e3]", "[0]: a block id is a non-negative integer"),
        (b'[4, 5, "6"]', "[2]: a block id is a non-negative integer"),
        (b"[[1]]", "[0]: a block id is a non-negative integer"),
        (b"[9223372036854775808]", "[0]: the block id is larger than 2^63-1"),
        (b"[1, 2, 2]", "[2]: this block id followed another prefix before"),
        (b"[2]", "[0]: this block id followed another prefix before"),
    ],
)
def test_what_is_no_list_of_ids(text: bytes, message: str) -> None:
    ids = Interner()
    ids.add(b"[1, 2]")
    with pytest.raises(TraceError) as caught:
        ids.add(text)
    assert str(caught.value).startswith(message)
