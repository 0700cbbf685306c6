"""Offload connectors: what goes down to the host tier and when, what comes up, one family a file.

A preset is a frozen dataclass of the parameters its users know, registered under the name they know it by; `connector(...)` makes the
`Connector` for one engine. A family's kernels are linked into the engine under the names of `HOOKS` (signatures: `none.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.log import Log
from kvsim.cache.store import SharedStore, Store
from kvsim.registry import Registry
from kvsim.transfer.channel import Transfers, Ways, grow_transfers, make_transfers, make_ways

OFFLOAD = Registry("offload policy", "kvsim.cache.offload")
HOOKS = ("joined", "match", "allocated", "plan", "begin", "end", "ended", "complete", "open_work", "next_completion", "room",
         "log_room")  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostTier:
    """The host tier of one engine: usable size in blocks, eviction policy by name, and its link in seconds.

    `duplex`: share of the link's rate that is left when both directions run. `sharing` [members, 2]: of the engines whose hosts share one
    memory, this one being `member`; `per_shared`: the rates of its links, down and up, over that memory's. `below`: what lies beneath.
    """

    blocks: int
    eviction: str = "lru"
    latency_s: float = 0.0
    down_s_per_block: float = 0.0
    up_s_per_block: float = 0.0
    duplex: float = 1.0
    sharing: NDArray[np.float64] | None = None
    member: int = 0
    per_shared: tuple[float, float] = (0.0, 0.0)
    below: BelowTier | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BelowTier:
    """What lies below DRAM for one engine: the SSD of its node and the pool of the cluster. `gds`: the SSD is read straight into HBM."""

    ssd: SharedStore | None
    pool: SharedStore | None
    node: int
    gds: bool = False

    @property
    def has_ssd(self) -> bool:
        """Whether there is an SSD."""
        return self.ssd is not None

    @property
    def has_pool(self) -> bool:
        """Whether there is a pool."""
        return self.pool is not None

    @property
    def ssd_ways(self) -> Ways:
        """Writes and reads of the SSD."""
        return self.ssd.ways if self.ssd is not None else make_ways(1)

    def stores(self, ids: int) -> tuple[Store, Store]:
        """(SSD, pool) with room for `ids` keys; one that isn't there holds nothing."""
        nothing = SharedStore(0, 0)
        return (self.ssd.grow(ids) if self.ssd else nothing.state), (self.pool.grow(ids) if self.pool else nothing.state)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of an engine's arrays: keys, request rows, arena entries, transfer-job slots; what it schedules by; whether tiers keep logs."""

    ids: int
    rows: int
    arena: int
    slots: int
    block_tokens: int
    max_batched: int
    logged: bool
    hbm_blocks: int


class NoHost(NamedTuple):
    """No state below HBM."""

    nothing: NDArray[np.int64]


class Connector:
    """What the engine asks of a connector outside its kernels. This one has no tier below HBM."""

    null_blocks: ClassVar[int] = 0  # of `HostTier.blocks`, never used

    def __init__(self, tier: HostTier) -> None:
        self.tier = tier

    @property
    def has_host(self) -> bool:
        """Whether its host tier has any room."""
        return self.tier.blocks > self.null_blocks

    @property
    def parts(self) -> dict[str, Any]:
        """Kernels to link into the engine; none: those of `none.py` stand there already."""
        return {}

    def make_transfers(self, max_num_seqs: int, *, traced: bool) -> Transfers:
        """An idle link with room for the jobs of a few passes."""
        tier = self.tier
        ways = make_ways(1, tier.latency_s, tier.down_s_per_block, tier.up_s_per_block, tier.duplex)
        ways.way.per_shared = tier.per_shared
        if tier.sharing is not None:
            ways = ways._replace(sharing=tier.sharing, own=np.array([tier.member]))
        return make_transfers(4 * max_num_seqs + 256, ways, traced=traced)

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

    def grow_log(self, state: Any) -> Any:
        """Twice the room in the log of the host tier."""
        return state

    def log(self, state: Any) -> Log | None:
        """The host tier's log of keys that come and go."""
        return None

    def peek_below(self, run_start: NDArray[np.int64], run_length: NDArray[np.int64], skip: int, now_s: float) -> tuple[int, int]:
        """(SSD, pool): readable blocks of a chain of runs that follow its first `skip` without a gap."""
        below = self.tier.below
        if below is None:
            return 0, 0
        found = (store.blocks_beyond(run_start, run_length, skip, now_s) if store else 0 for store in (below.ssd, below.pool))
        ssd, pool = found
        return ssd, pool

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
