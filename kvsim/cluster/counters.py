"""Running counters of a cluster, and what they say of a window."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from kvsim.engine.vllm import VllmEngine
from kvsim.transfer.channel import Ways


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over ways of one kind, both directions [2]: blocks carried, seconds taken, waits [2, bins]."""

    blocks: NDArray[np.int64]
    busy_s: NDArray[np.float64]
    waits: NDArray[np.int64]

    def minus(self, other: Counters) -> Counters:
        """What was counted since `other`."""
        return Counters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


def count_ways(ways: Iterable[Ways], now_s: float) -> Counters:
    """The sum over `ways`; time that is taken beyond `now_s` doesn't count yet."""
    blocks, busy, waits = np.zeros(2, np.int64), np.zeros(2), None
    for each in ways:
        way = each.way
        beyond = np.maximum(way.free_at - now_s, 0.0)
        blocks += way.blocks.reshape(-1, 2).sum(axis=0)
        busy += (way.busy - np.minimum(beyond, way.busy)).reshape(-1, 2).sum(axis=0)
        found = each.waits.reshape(-1, 2, each.waits.shape[1]).sum(axis=0)
        waits = found if waits is None else waits + found
    assert waits is not None
    return Counters(blocks, busy, waits)


def evictions(engines: Iterable[VllmEngine]) -> tuple[int, int]:
    """Blocks evicted so far from (HBM, host)."""
    pairs = [(int(e.e.pool.meta.evictions[0]), e.connector.evictions(e.e, e.host)) for e in engines]
    return sum(a for a, _ in pairs), sum(b for _, b in pairs)
