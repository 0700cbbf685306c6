"""Distinct prompt blocks of the requests a router has in flight at each worker: a block that several requests share counts once.

A request uses all blocks of its prompt and an id stands for its whole prefix, so with a block its whole prefix is in use, and the leading
blocks in use are found by bisection.

Ids are many and those in use few: uses stand in pages of 512 ids, and a page without uses is given back.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.jit import kernel
from kvsim.router import Arrival
from kvsim.router.table import widened

BITS = 9
IDS = 1 << BITS


class Uses(NamedTuple):
    """`page` [workers, ids / 512] leads to a row of `uses` [pages, 512], 0 where there is none; the other fields say what is where.

    `held` [pages]: ids of the page in use; `free` [pages]: pages given back; `meta`: how many those are, first page never used;
    `counts` [workers]: blocks in use.
    """

    page: NDArray[np.int32]
    uses: NDArray[np.int32]
    held: NDArray[np.int32]
    free: NDArray[np.int32]
    meta: NDArray[np.int64]
    counts: NDArray[np.int64]


@kernel
def take_page(u):  # type: ignore[no-untyped-def]
    """A page without uses."""
    if u.meta[0] > 0:
        u.meta[0] -= 1
        return u.free[u.meta[0]]
    u.meta[1] += 1
    return u.meta[1] - 1


@kernel
def change_uses(u, worker, run_start, run_length, by):  # type: ignore[no-untyped-def]
    """Add `by` (1 or -1) to the uses of every block of the runs at `worker`."""
    for i in range(run_start.shape[0]):
        key, end = run_start[i], run_start[i] + run_length[i]
        while key < end:
            p = key >> BITS
            if u.page[worker, p] == 0:
                u.page[worker, p] = take_page(u)
            row = u.page[worker, p]
            until, changed = min(end, (p + 1) << BITS), 0
            for at in range(key - (p << BITS), until - (p << BITS)):
                before = u.uses[row, at]
                u.uses[row, at] = before + by
                if before == 0:
                    changed += 1
                elif before + by == 0:
                    changed -= 1
            u.held[row] += changed
            u.counts[worker] += changed
            if u.held[row] == 0:
                u.page[worker, p] = 0
                u.free[u.meta[0]] = row
                u.meta[0] += 1
            key = until


@kernel
def in_use(page, uses, worker, key):  # type: ignore[no-untyped-def]
    """Whether block `key` is in use at `worker`."""
    p = key >> BITS
    return p < page.shape[1] and page[worker, p] != 0 and uses[page[worker, p], key & (IDS - 1)] > 0


@kernel
def leading_of_run(page, uses, worker, start, length):  # type: ignore[no-untyped-def]
    """Leading blocks of one run that are in use at `worker`; all and none, the common answers, are tried first."""
    if length == 0 or in_use(page, uses, worker, start + length - 1):
        return length
    low, high = 0, length - 1
    if high == 0 or not in_use(page, uses, worker, start):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if in_use(page, uses, worker, start + middle - 1):
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def leading_in_use(page, uses, run_start, run_length, leading):  # type: ignore[no-untyped-def]
    """Fill `leading` [workers] with the leading blocks of the runs that are in use at each worker."""
    for worker in range(leading.shape[0]):
        total = 0
        for i in range(run_start.shape[0]):
            found = leading_of_run(page, uses, worker, run_start[i], run_length[i])
            total += found
            if found < run_length[i]:
                break
        leading[worker] = total


class ActiveBlocks:
    """Blocks in use at each of `workers` workers. `ids`: how many block ids to expect; it grows by itself."""

    def __init__(self, workers: int, ids: int) -> None:
        self._u = Uses(
            page=np.zeros((workers, (ids >> BITS) + 1), np.int32),
            uses=np.zeros((1, IDS), np.int32),
            held=np.zeros(1, np.int32),
            free=np.zeros(1, np.int32),
            meta=np.array([0, 1], np.int64),
            counts=np.zeros(workers, np.int64),
        )
        self._of: dict[int, tuple[int, Arrival]] = {}

    @property
    def counts(self) -> NDArray[np.int64]:
        """Blocks in use at each worker [workers]."""
        return self._u.counts

    def potential(self, arrival: Arrival) -> NDArray[np.int64]:
        """Blocks in use at each worker [workers] if it got `arrival` too."""
        leading = np.zeros_like(self.counts)
        leading_in_use(self._u.page, self._u.uses, arrival.run_start, arrival.run_length, leading)
        return self.counts + int(arrival.run_length.sum()) - leading

    def add(self, arrival: Arrival, worker: int) -> None:
        """`arrival` was sent to `worker`."""
        if arrival.run_start.size:
            self._make_room(arrival)
        change_uses(self._u, worker, arrival.run_start, arrival.run_length, 1)
        self._of[arrival.number] = worker, arrival

    def remove(self, number: int) -> None:
        """Request `number` is over; nothing where it was not in flight."""
        if number in self._of:
            worker, arrival = self._of.pop(number)
            change_uses(self._u, worker, arrival.run_start, arrival.run_length, -1)

    def _make_room(self, arrival: Arrival) -> None:
        ends = arrival.run_start + arrival.run_length
        u = self._u._replace(page=widened(self._u.page, (int(ends.max()) >> BITS) + 1))
        pages = int(((ends >> BITS) - (arrival.run_start >> BITS) + 1).sum())
        size, needed = u.held.size, int(u.meta[1] - u.meta[0]) + pages
        if needed > size:
            size = max(2 * size, needed)
            uses = np.zeros((size, IDS), np.int32)
            uses[: u.held.size] = u.uses
            u = u._replace(uses=uses, held=grown(u.held, size), free=grown(u.free, size))
        self._u = u
