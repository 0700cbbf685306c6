"""Offload connectors: what goes down to the host tier and when, what comes up, one family a file.

A preset is a frozen dataclass of the parameters its users know, registered under the name they know it by; `connector(...)` makes the
`Connector` for one engine. A family's kernels are linked into the engine under the names of `HOOKS` (signatures: `none.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.registry import Registry
from kvsim.transfer.channel import Transfers, grow_transfers, make_transfers

OFFLOAD = Registry("offload policy", "kvsim.cache.offload")
HOOKS = ("joined", "match", "allocated", "plan", "begin", "end", "ended", "complete", "open_work", "next_completion", "room")


@dataclass(frozen=True, slots=True)
class HostTier:
    """The host tier of one engine: usable size in blocks, eviction policy by name, and its two channels in seconds."""

    blocks: int
    eviction: str = "lru"
    latency_s: float = 0.0
    down_s_per_block: float = 0.0
    up_s_per_block: float = 0.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of an engine's arrays: keys, request rows, arena entries, transfer-job slots; and what it schedules by."""

    ids: int
    rows: int
    arena: int
    slots: int
    block_tokens: int
    max_batched: int


class NoHost(NamedTuple):
    """No state below HBM."""

    nothing: NDArray[np.int64]


class Connector:
    """What the engine asks of a connector outside its kernels. This one has no tier below HBM."""

    has_host = False

    def __init__(self, tier: HostTier) -> None:
        self.tier = tier

    @property
    def parts(self) -> dict[str, Any]:
        """Kernels to link into the engine; none: those of `none.py` stand there already."""
        return {}

    def make_transfers(self, max_num_seqs: int) -> Transfers:
        """Idle channels with room for the jobs of a few passes."""
        return make_transfers(4 * max_num_seqs + 256, self.tier.latency_s, self.tier.down_s_per_block, self.tier.up_s_per_block)

    def make_state(self, sizes: Sizes) -> Any:
        """The connector's arrays."""
        return NoHost(np.zeros(1, np.int64))

    def grow_ids(self, state: Any, ids: int) -> Any:
        """The same state over more keys."""
        return state

    def grow_rows(self, state: Any, rows: int) -> Any:
        """The same state over more request rows."""
        return state

    def grow_arena(self, state: Any, arena: int) -> Any:
        """The same state over a larger arena."""
        return state

    def grow_jobs(self, transfers: Transfers, state: Any) -> tuple[Transfers, Any]:
        """Twice the room for transfer jobs."""
        return grow_transfers(transfers, 2 * transfers.jobs.size), state

    def hbm_references(self, e: Any, h: Any) -> NDArray[np.int64]:
        """References the connector itself holds on each HBM block."""
        return np.zeros(e.pool.blocks.size, np.int64)

    def evictions(self, e: Any, h: Any) -> int:
        """Blocks evicted from the host tier so far."""
        return 0

    def used_blocks(self, e: Any, h: Any) -> int:
        """Blocks of the host tier in use."""
        return 0

    def check(self, e: Any, h: Any) -> None:
        """Recompute the tier's counters from raw arrays; raises `LawError`."""
