"""Tables [workers, ids] that grow with the ids, and cost memory only where something stands in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.jit import kernel


@kernel
def copy_entries(source, target):  # type: ignore[no-untyped-def]
    """Copy what is not zero, so that pages of `target` nobody wrote to stay unallocated."""
    for worker in range(source.shape[0]):
        for i in range(source.shape[1]):
            if source[worker, i] != 0:
                target[worker, i] = source[worker, i]


def widened(table: Any, ids: int) -> Any:
    """`table` [workers, ids] with room for at least `ids` ids, the new entries zero; itself where there is room."""
    workers, size = table.shape
    if ids <= size:
        return table
    out = np.zeros((workers, max(ids, 2 * size)), table.dtype)
    copy_entries(table, out)
    return out
