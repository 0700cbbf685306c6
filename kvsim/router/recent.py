"""What a router remembers of where it sent prefixes. It never learns what the workers evict.

Law. With every block its whole prefix is remembered, and is no older: a request is noted from its last block to its first, and the oldest
go first. So the leading blocks that a worker has are found by bisection.

Each worker has a list of its blocks from the oldest to the newest, linked through cells; `cell` [workers, ids] leads from a block to
its cell (0: not remembered). Cells 0 to workers - 1 are the ends of the lists: `after` of an end is the oldest block, `before` the newest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.jit import kernel
from kvsim.router import Arrival
from kvsim.router.table import widened

FIRST_CELLS = 1 << 10


class Memory(NamedTuple):
    """`cell` [workers, ids]; neighbours, id and time of the last note [cells]; `blocks` [workers]; `meta`: first free and unused cell."""

    cell: NDArray[np.int32]
    before: NDArray[np.int32]
    after: NDArray[np.int32]
    key: NDArray[np.int32]
    at: NDArray[np.float64]
    blocks: NDArray[np.int64]
    meta: NDArray[np.int64]


@kernel
def unlink(m, c):  # type: ignore[no-untyped-def]
    """Take cell `c` out of its list."""
    m.after[m.before[c]] = m.after[c]
    m.before[m.after[c]] = m.before[c]


@kernel
def link_newest(m, worker, c):  # type: ignore[no-untyped-def]
    """Cell `c` becomes the newest of `worker`."""
    newest = m.before[worker]
    m.before[c] = newest
    m.after[c] = worker
    m.after[newest] = c
    m.before[worker] = c


@kernel
def take_cell(m):  # type: ignore[no-untyped-def]
    """A free cell."""
    c = m.meta[0]
    if c == 0:
        c = m.meta[1]
        m.meta[1] += 1
    else:
        m.meta[0] = m.after[c]
    return c


@kernel
def drop_oldest(m, worker):  # type: ignore[no-untyped-def]
    """Forget the oldest block of `worker`."""
    c = m.after[worker]
    unlink(m, c)
    m.cell[worker, m.key[c]] = 0
    m.after[c] = m.meta[0]
    m.meta[0] = c
    m.blocks[worker] -= 1


@kernel
def drop_beyond(m, worker, blocks):  # type: ignore[no-untyped-def]
    """Forget the oldest blocks of `worker` until at most `blocks` are left."""
    while m.blocks[worker] > blocks:
        drop_oldest(m, worker)


@kernel
def drop_expired(m, worker, since):  # type: ignore[no-untyped-def]
    """Forget the blocks of `worker` last noted at `since` or before."""
    while m.blocks[worker] > 0 and m.at[m.after[worker]] <= since:
        drop_oldest(m, worker)


@kernel
def note_blocks(m, worker, run_start, run_length, beyond, at_s):  # type: ignore[no-untyped-def]
    """Note all blocks of the runs but the last `beyond`, from the last to the first."""
    for i in range(run_start.shape[0] - 1, -1, -1):
        cut = min(beyond, run_length[i])
        beyond -= cut
        for key in range(run_start[i] + run_length[i] - cut - 1, run_start[i] - 1, -1):
            c = m.cell[worker, key]
            if c == 0:
                c = take_cell(m)
                m.cell[worker, key] = c
                m.key[c] = key
                m.blocks[worker] += 1
            else:
                unlink(m, c)
            m.at[c] = at_s
            link_newest(m, worker, c)


@kernel
def remembers(m, worker, key, since):  # type: ignore[no-untyped-def]
    """Whether block `key` was noted for `worker` after `since`."""
    if key >= m.cell.shape[1]:
        return False
    c = m.cell[worker, key]
    return c != 0 and m.at[c] > since


@kernel
def match_blocks(m, run_start, run_length, limit, since, matched):  # type: ignore[no-untyped-def]
    """Fill `matched` [workers] with the leading blocks of the runs, `limit` at most, that each worker remembers."""
    for worker in range(matched.shape[0]):
        total = 0
        for i in range(run_start.shape[0]):
            low, high = 0, min(run_length[i], limit - total)
            middle = high
            while low < high:
                if remembers(m, worker, run_start[i] + middle - 1, since):
                    low = middle
                else:
                    high = middle - 1
                middle = (low + high + 1) // 2
            total += low
            if low < run_length[i]:
                break
        matched[worker] = total


class RecentIndex:
    """Blocks a router noted for each of `workers` workers, forgotten `ttl_s` seconds after the last note, at most `max_blocks` a worker.

    What goes beyond `max_blocks` goes in the order of the last note, of one request the tail before the head. `ids`: how many block
    ids to expect; it grows by itself. Times must not go back from note to note. Raises ValueError for sizes and times not above zero.
    """

    def __init__(self, workers: int, ids: int, *, ttl_s: float | None = None, max_blocks: int | None = None) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        if ttl_s is not None and not ttl_s > 0:
            raise ValueError(f"ttl_s must be above 0 seconds, not {ttl_s}")
        if max_blocks is not None and max_blocks < 1:
            raise ValueError(f"max_blocks must be at least 1, not {max_blocks}")
        cells = workers + FIRST_CELLS
        ends = np.arange(cells, dtype=np.int32)
        self._m = Memory(
            cell=np.zeros((workers, max(ids, 1)), np.int32),
            before=ends.copy(),
            after=ends,
            key=np.zeros(cells, np.int32),
            at=np.zeros(cells),
            blocks=np.zeros(workers, np.int64),
            meta=np.array([0, workers], np.int64),
        )
        self._ttl_s, self._max_blocks = ttl_s, max_blocks

    @property
    def blocks(self) -> NDArray[np.int64]:
        """Blocks remembered for each worker [workers], a copy; those past their time count until the next note for the worker."""
        return self._m.blocks.copy()

    def note(self, worker: int, arrival: Arrival, at_s: float, limit_blocks: int | None = None) -> None:
        """`arrival` was sent to `worker` at `at_s`: remember its leading blocks, `limit_blocks` at most."""
        total = int(arrival.run_length.sum())
        blocks = total if limit_blocks is None else min(total, limit_blocks)
        self._make_room(arrival, blocks)
        if self._ttl_s is not None:
            drop_expired(self._m, worker, at_s - self._ttl_s)
        note_blocks(self._m, worker, arrival.run_start, arrival.run_length, total - blocks, at_s)
        if self._max_blocks is not None:
            drop_beyond(self._m, worker, self._max_blocks)

    def match(self, arrival: Arrival, at_s: float, limit_blocks: int | None = None) -> NDArray[np.int64]:
        """Leading blocks of `arrival`, `limit_blocks` at most, remembered for each worker at `at_s` [workers]. Changes nothing."""
        matched = np.zeros(self._m.blocks.size, np.int64)
        limit = int(arrival.run_length.sum()) if limit_blocks is None else limit_blocks
        since = -np.inf if self._ttl_s is None else at_s - self._ttl_s
        match_blocks(self._m, arrival.run_start, arrival.run_length, limit, since, matched)
        return matched

    def forget(self, worker: int) -> None:
        """Forget all of `worker`."""
        drop_beyond(self._m, worker, 0)

    def trim(self, worker: int, max_blocks: int) -> None:
        """Forget the oldest blocks of `worker` until at most `max_blocks` are left. Raises ValueError below 0."""
        if max_blocks < 0:
            raise ValueError(f"max_blocks must be at least 0, not {max_blocks}")
        drop_beyond(self._m, worker, max_blocks)

    def _make_room(self, arrival: Arrival, blocks: int) -> None:
        m = self._m
        if arrival.run_start.size:
            m = m._replace(cell=widened(m.cell, int((arrival.run_start + arrival.run_length).max())))
        size, used = m.key.size, m.blocks.size + int(m.blocks.sum())
        if used + blocks > size:
            size = max(2 * size, used + blocks)
            m = m._replace(before=grown(m.before, size), after=grown(m.after, size), key=grown(m.key, size), at=grown(m.at, size))
        self._m = m
