"""Block ids of a trace, read from JSON text and interned: any integers to dense int32 in first-seen order, kept as runs.

An id must stand for its whole prefix: it always follows the same id. That is checked while interning, for a trace whose ids are not
chained would show hits where no engine has any.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.errors import Problem, TraceError
from kvsim.jit import kernel

MAX_ID = 2**63 - 1
UNSEEN = -1
OPEN, CLOSE, COMMA, ZERO, NINE = 91, 93, 44, 48, 57
OK, NOT_A_LIST, NOT_AN_ID, TOO_LARGE, TWO_PREFIXES = range(5)


@kernel
def slot_of(keys, values, key):  # type: ignore[no-untyped-def]
    """Where `key` is, or would go, in an open-addressing table whose size is a power of two."""
    mask = keys.size - 1
    folded = (key ^ (key >> 31)) & 0x7FFFFFFF
    slot = ((folded * 0x9E3779B1) >> 20) & mask
    while values[slot] != UNSEEN and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@kernel
def rehash(keys, values, new_keys, new_values):  # type: ignore[no-untyped-def]
    """Move every entry of one table into a larger, empty one."""
    for old in range(keys.size):
        if values[old] != UNSEEN:
            slot = slot_of(new_keys, new_values, keys[old])
            new_keys[slot] = keys[old]
            new_values[slot] = values[old]


@kernel
def is_space(byte):  # type: ignore[no-untyped-def]
    """Whether `byte` is JSON white space."""
    return byte == 32 or byte == 10 or byte == 13 or byte == 9


@kernel
def intern_list(text, keys, values, parents, count, run_start, run_length, used):  # type: ignore[no-untyped-def]
    """Read the JSON list of ids in `text`, append it as runs of dense ids at `used`.

    Returns (problem, item, ids listed, distinct ids, runs used). `parents` [dense id] is the dense id before it, -1 at the start.
    """
    first_run = used
    listed = 0
    previous = np.int64(-1)
    at = 0
    size = text.size
    while at < size and is_space(text[at]):
        at += 1
    if at == size or text[at] != OPEN:
        return NOT_A_LIST, 0, 0, count, first_run
    at += 1
    while at < size:
        byte = np.int64(text[at])
        if is_space(byte) or byte == COMMA:
            at += 1
            continue
        if byte == CLOSE:
            return OK, 0, listed, count, used
        if byte < ZERO or byte > NINE:
            return NOT_AN_ID, listed, 0, count, first_run
        key = np.int64(0)
        while ZERO <= byte <= NINE:
            digit = byte - ZERO
            if key > (MAX_ID - digit) // 10:
                return TOO_LARGE, listed, 0, count, first_run
            key = key * 10 + digit
            at += 1
            byte = np.int64(text[at])
        if byte != COMMA and byte != CLOSE and not is_space(byte):
            return NOT_AN_ID, listed, 0, count, first_run
        slot = slot_of(keys, values, key)
        dense = np.int64(values[slot])
        if dense == UNSEEN:
            dense = count
            keys[slot] = key
            values[slot] = dense
            parents[dense] = previous
            count += 1
        elif parents[dense] != previous:
            return TWO_PREFIXES, listed, 0, count, first_run
        if used > first_run and run_start[used - 1] + run_length[used - 1] == dense:
            run_length[used - 1] += 1
        else:
            run_start[used] = dense
            run_length[used] = 1
            used += 1
        previous = dense
        listed += 1
    return NOT_A_LIST, 0, 0, count, first_run


_WHY = {
    NOT_A_LIST: "expected a list of block ids",
    NOT_AN_ID: "a block id is a non-negative integer",
    TOO_LARGE: "the block id is larger than 2^63-1",
    TWO_PREFIXES: "this block id followed another prefix before; an id must stand for its whole prefix",
}


class Interner:
    """Dense ids of one scope and the runs of every list added, in order.

    `count` distinct ids so far in this scope; runs are `run_start[:used]`, `run_length[:used]` (int32, over all scopes).
    """

    def __init__(self) -> None:
        self.count = 0
        self.used = 0
        self.run_start: NDArray[np.int32] = np.empty(1024, np.int32)
        self.run_length: NDArray[np.int32] = np.empty(1024, np.int32)
        self._keys: NDArray[np.int64] = np.zeros(1024, np.int64)
        self._values: NDArray[np.int32] = np.full(1024, UNSEEN, np.int32)
        self._parents: NDArray[np.int32] = np.empty(1024, np.int32)

    def new_scope(self) -> None:
        """Forget every id: the same number means another block from here on."""
        self.count = 0
        self._values.fill(UNSEEN)

    def add(self, text: Any) -> int:
        """Append the ids of a JSON list (bytes-like). Returns how many it listed; raises `TraceError` with the item as path."""
        array = np.frombuffer(text, np.uint8)
        self._reserve(array.size // 2 + 1)
        problem, item, listed, count, used = intern_list(
            array, self._keys, self._values, self._parents, self.count, self.run_start, self.run_length, self.used
        )
        if problem != OK:
            raise TraceError(Problem(_WHY[problem], "" if problem == NOT_A_LIST else f"[{item}]"))
        self.count, self.used = int(count), int(used)
        return int(listed)

    def cut(self, blocks: int) -> int:
        """Drop the last `blocks` ids of the last list. Returns the first one dropped, -1 for none."""
        dropped = -1
        while blocks > 0:
            last = self.used - 1
            part = min(blocks, int(self.run_length[last]))
            self.run_length[last] -= part
            dropped = int(self.run_start[last] + self.run_length[last])
            blocks -= part
            if self.run_length[last] == 0:
                self.used = last
        return dropped

    def _reserve(self, ids: int) -> None:
        if self.used + ids > self.run_start.size:
            size = 2 * (self.used + ids)
            self.run_start, self.run_length = grown(self.run_start, size), grown(self.run_length, size)
        if self.count + ids > self._parents.size:
            self._parents = grown(self._parents, 2 * (self.count + ids))
        if 2 * (self.count + ids) > self._keys.size:
            size = 1 << (2 * (self.count + ids)).bit_length()
            keys, values = np.zeros(size, np.int64), np.full(size, UNSEEN, np.int32)
            rehash(self._keys, self._values, keys, values)
            self._keys, self._values = keys, values
