"""What a tier tells of itself: which keys came and which went, and when. A log of no size records nothing.

The engine stops before a pass that could overfill the log; whoever reads it empties it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.jit import kernel

SPARE = 1 << 16  # entries beyond those one pass can write


class Log(NamedTuple):
    """Entries [n]: `key`, `present` (1: came, 0: went), time `at`; `meta`: entries written, entries a pass may need; `now` [1]: time."""

    key: NDArray[np.int32]
    present: NDArray[np.uint8]
    at: NDArray[np.float64]
    meta: NDArray[np.int64]
    now: NDArray[np.float64]


def make_log(margin: int) -> Log:
    """An empty log for a tier of which one pass changes at most `margin` keys; 0: one that records nothing."""
    size = margin + SPARE if margin else 0
    return Log(np.zeros(size, np.int32), np.zeros(size, np.uint8), np.zeros(size), np.array([0, margin], np.int64), np.zeros(1))


@kernel
def note(log, key, present):  # type: ignore[no-untyped-def]
    """Key `key` came or went now."""
    if log.key.shape[0] == 0:
        return
    i = log.meta[0]
    log.key[i] = key
    log.present[i] = present
    log.at[i] = log.now[0]
    log.meta[0] = i + 1


@kernel
def log_room(log):  # type: ignore[no-untyped-def]
    """Whether one more pass fits."""
    return log.meta[0] + log.meta[1] <= log.key.shape[0]


def grown_log(log: Log) -> Log:
    """The same log with twice the room."""
    size = 2 * log.key.size
    return log._replace(key=grown(log.key, size), present=grown(log.present, size), at=grown(log.at, size))
