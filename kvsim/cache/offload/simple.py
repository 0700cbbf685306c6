"""vLLM's SimpleCPUOffloadConnector: the host tier is a second block pool with the same free queue.

Rules (vLLM 0.33.0, `v1/simple_kv_offload/manager.py`; behaviour, not code):
- eager: blocks confirmed computed before this step, prompt and output, that the host doesn't hold, are copied; what is left when a
  request ends is copied with the next step's job; the host's free blocks are the limit, the store position never goes back;
- lazy: a cursor walks the HBM free queue from its eviction end and copies cached blocks the host doesn't hold, until twice the blocks
  of a full token budget are free or copied;
- one store job and one load job at most a step; a store starts at the step's end, a load at its start; HBM blocks being copied hold a
  reference; a preemption waits for every transfer in flight;
- host recency moves with host hits and stores only: an HBM hit doesn't refresh it. Found host blocks are pinned from look-up to load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.cache.log import Log, grown_log
from kvsim.cache.log import log_room as pool_log_room
from kvsim.cache.offload import HOOKS, OFFLOAD, Connector, HostTier, Sizes
from kvsim.cache.offload.jobs import next_completion  # noqa: F401  (a hook, taken by name)
from kvsim.cache.offload.order import scatter
from kvsim.cache.pool import NONE, Pool, check_pool, make_pool, register, release, take, touch
from kvsim.cache.tier import STORED
from kvsim.errors import LawError
from kvsim.jit import kernel
from kvsim.transfer.channel import DOWN, UP, new_job, retire, submit

ROW = np.dtype([("lo", "<i8"), ("count", "<i8"), ("pinned", "<i8"), ("tracked", "<i8"), ("cursor", "<i8"), ("next", "<i8")], align=True)
META = np.dtype(
    [
        ("lazy", "<i8"),
        ("target", "<i8"),  # lazy: blocks to keep free or copied
        ("cursor", "<i8"),  # lazy: last block visited
        ("pairs", "<i8"),  # copies ever planned: the ring's write position
        ("late", "<i8"),
        ("first_load", "<i8"),  # 1 + row of the first load of this pass, chained by ROW.next
        ("last_load", "<i8"),
        ("load_blocks", "<i8"),
        ("store_job", "<i8"),  # 1 + slot of this pass's store
        ("load_job", "<i8"),
        ("dropped", "<i8"),
    ],
    align=True,
)


class SimpleHost(NamedTuple):
    """`cpu` pool, `rows` [requests], `table` (host block by arena entry), rings of (HBM, host) block pairs, copies of ended requests."""

    cpu: Pool
    rows: Any
    meta: Any
    table: NDArray[np.int32]
    pair_hbm: NDArray[np.int32]
    pair_cpu: NDArray[np.int32]
    late_hbm: NDArray[np.int32]
    late_cpu: NDArray[np.int32]
    scratch: NDArray[np.int32]
    arrived: NDArray[np.int32]  # scratch [requests]


@kernel
def joined(e, h, r):  # type: ignore[no-untyped-def]
    """See `none.joined`."""
    row = h.rows[r]
    row.pinned = 0
    row.tracked = 0
    row.cursor = 0


@kernel
def unpin(e, h, r):  # type: ignore[no-untyped-def]
    """Drop the reference that look-up took on the host blocks of request r."""
    row, base, front = h.rows[r], e.requests[r].offset, h.cpu.meta[0].end
    for k in range(row.lo, row.lo + row.count):
        front = release(h.cpu, h.table[base + k], front)
    row.pinned = 0


@kernel
def same_run(e, h, r):  # type: ignore[no-untyped-def]
    """Whether a look-up would find the pinned host blocks of request r, no more and no fewer."""
    request, row = e.requests[r], h.rows[r]
    upto = row.lo + row.count
    if upto < (request.tokens - 1) // e.config[0].block_tokens and h.cpu.first[e.ids[request.offset + upto]] != NONE:
        return False
    for i in range(request.offset + row.lo, request.offset + upto):
        if h.cpu.first[e.ids[i]] != h.table[i]:
            return False
    return True


@kernel
def match(e, h, r, hits):  # type: ignore[no-untyped-def]
    """See `none.match`."""
    request, row, size = e.requests[r], h.rows[r], e.config[0].block_tokens
    if row.pinned:
        # Found again exactly as pinned: dropping the pins and taking them anew would change nothing.
        if row.lo == hits and same_run(e, h, r):
            return row.count * size
        unpin(e, h, r)
    count = 0
    for k in range(hits, (request.tokens - 1) // size):
        block = h.cpu.first[e.ids[request.offset + k]]
        if block == NONE:
            break
        h.table[request.offset + k] = block
        count += 1
    if count == 0:
        return 0
    for k in range(hits, hits + count):
        touch(h.cpu, h.table[request.offset + k])
    row.pinned = 1
    row.lo = hits
    row.count = count
    return count * size


@kernel
def allocated(e, h, r, hits, tokens, first):  # type: ignore[no-untyped-def]
    """See `none.allocated`. The pins of the look-up become those of the load."""
    row, meta = h.rows[r], h.meta[0]
    row.tracked = 1
    if tokens == 0:
        if row.pinned:
            unpin(e, h, r)
        return
    row.pinned = 0
    for k in range(row.lo, row.lo + row.count):
        touch(e.pool, e.table[e.requests[r].offset + k])
    row.next = 0
    if meta.first_load == 0:
        meta.first_load = r + 1
    else:
        h.rows[meta.last_load - 1].next = r + 1
    meta.last_load = r + 1
    meta.load_blocks += row.count


@kernel
def select(e, h, r, blocks):  # type: ignore[no-untyped-def]
    """Collect in `scratch` the confirmed blocks of r to copy, moving its cursor past them; returns how many."""
    request, row, free = e.requests[r], h.rows[r], h.cpu.meta[0].free
    found = 0
    if free == 0:
        return 0
    ready = min(blocks, request.computed // e.config[0].block_tokens)
    while row.cursor < ready:
        block = e.table[request.offset + row.cursor]
        state = e.pool.blocks[block]
        if state.key != NONE and state.job == 0 and h.cpu.first[state.key] == NONE:
            if found == free:
                h.meta[0].dropped += 1
                break
            h.scratch[found] = block
            found += 1
        row.cursor += 1
    return found


@kernel
def claim(e, h, count, hbm, cpu, at):  # type: ignore[no-untyped-def]
    """Take a host block for each of the `count` blocks in `scratch`, hold the HBM blocks, and write the pairs to the rings from `at` on."""
    size = hbm.shape[0]
    for i in range(count):
        hbm[(at + i) % size] = h.scratch[i]
        cpu[(at + i) % size] = take(h.cpu)
    for i in range(count):
        e.pool.blocks[h.scratch[i]].job = 1
        touch(e.pool, h.scratch[i])


@kernel
def plan_eager(e, h, r):  # type: ignore[no-untyped-def]
    """Copy what request r has confirmed."""
    if h.rows[r].tracked:
        count = select(e, h, r, e.requests[r].blocks)
        claim(e, h, count, h.pair_hbm, h.pair_cpu, h.meta[0].pairs)
        h.meta[0].pairs += count


@kernel
def plan_lazy(e, h):  # type: ignore[no-untyped-def]
    """Walk the HBM free queue on from the cursor and copy what the host doesn't hold."""
    meta, blocks, end = h.meta[0], e.pool.blocks, e.pool.meta[0].end
    if meta.cursor >= 0 and blocks[meta.cursor].ref > 0:
        meta.cursor = NONE
    block = blocks[meta.cursor].next if meta.cursor >= 0 else blocks[end].next
    covered, count = 0, 0
    while block != end and covered < meta.target and count < h.cpu.meta[0].free:
        meta.cursor = block
        key = blocks[block].key
        if key != NONE and h.cpu.first[key] == NONE:
            h.scratch[count] = block
            count += 1
        covered += 1
        block = blocks[block].next
    claim(e, h, count, h.pair_hbm, h.pair_cpu, meta.pairs)
    meta.pairs += count


@kernel
def plan(e, h):  # type: ignore[no-untyped-def]
    """See `none.plan`. Requests admitted for the first time come first, then resumed ones, then those that were running."""
    state, meta = e.state[0], h.meta[0]
    began = meta.pairs
    if meta.lazy:
        if state.live > 0:  # an engine without requests makes no steps: what is under way ends, nothing new begins
            plan_lazy(e, h)
    else:
        for i in range(state.preempted):
            h.rows[e.preempted[i]].cursor = 0
        for resumed in (False, True):
            for i in range(state.fresh, state.scheduled):
                if (e.requests[e.scheduled[i]].preemptions > 0) == resumed:
                    plan_eager(e, h, e.scheduled[i])
        for i in range(state.fresh):
            plan_eager(e, h, e.scheduled[i])
    size = h.pair_hbm.shape[0]
    for i in range(meta.late):
        h.pair_hbm[(meta.pairs + i) % size] = h.late_hbm[i]
        h.pair_cpu[(meta.pairs + i) % size] = h.late_cpu[i]
    meta.pairs += meta.late
    meta.late = 0
    if meta.pairs > began:
        meta.store_job = 1 + new_job(e.transfers, DOWN, 0, began, meta.pairs, meta.pairs - began)
    if meta.first_load:
        meta.load_job = 1 + new_job(e.transfers, UP, meta.first_load - 1, 0, 0, meta.load_blocks)
        meta.first_load = 0
        meta.load_blocks = 0


@kernel
def begin(e, h):  # type: ignore[no-untyped-def]
    """See `none.begin`."""
    state, meta = e.state[0], h.meta[0]
    if state.preempted:
        state.flushes += 1
        for c in range(2):
            if e.transfers.rings[c].count > 0:
                state.clock = max(state.clock, e.transfers.link.way[c].free_at)
    if meta.load_job:
        submit(e.transfers, meta.load_job - 1, state.clock)
        if e.config[0].layerwise:
            state.overlap = e.transfers.jobs[meta.load_job - 1].done
        meta.load_job = 0


@kernel
def end(e, h):  # type: ignore[no-untyped-def]
    """See `none.end`."""
    meta = h.meta[0]
    if meta.store_job:
        submit(e.transfers, meta.store_job - 1, e.state[0].clock)
        meta.store_job = 0


@kernel
def ended(e, h, r):  # type: ignore[no-untyped-def]
    """See `none.ended`."""
    request, meta, size = e.requests[r], h.meta[0], e.config[0].block_tokens
    if not meta.lazy and h.rows[r].tracked:
        count = select(e, h, r, (request.computed + size - 1) // size)
        claim(e, h, count, h.late_hbm, h.late_cpu, meta.late)
        meta.late += count
    return True


@kernel
def take_in_loads(e, h):  # type: ignore[no-untyped-def]
    """Loads done by now: all their blocks are there; the host blocks and the HBM blocks lose the load's references."""
    count = 0
    ring = e.transfers.rings[UP]
    while ring.count > 0:
        slot = e.transfers.queue[UP, ring.head]
        job = e.transfers.jobs[slot]
        if job.done > e.state[0].clock:
            break
        r = job.row
        while r >= 0:
            e.requests[r].loaded = 1
            e.requests[r].load_s += job.done - e.requests[r].load_start
            h.arrived[count] = r
            count += 1
            r = h.rows[r].next - 1
        retire(e.transfers, slot)
    scatter(e, h.arrived, count)
    for i in range(count):
        request, row, front = e.requests[h.arrived[i]], h.rows[h.arrived[i]], h.cpu.meta[0].end
        for k in range(request.offset + row.lo, request.offset + row.lo + row.count):
            front = release(h.cpu, h.table[k], front)
        front = e.pool.meta[0].end
        for k in range(request.offset + row.lo, request.offset + row.lo + row.count):
            front = release(e.pool, e.table[k], front)


@kernel
def take_in_store(e, h, slot):  # type: ignore[no-untyped-def]
    """The copies are readable in the host; the HBM blocks are let go."""
    job, size, front = e.transfers.jobs[slot], h.pair_hbm.shape[0], h.cpu.meta[0].end
    for i in range(job.lo, job.hi):
        block = e.pool.blocks[h.pair_hbm[i % size]]
        block.job = 0
        register(h.cpu, h.pair_cpu[i % size], block.key)
        e.seen[block.key] |= STORED
    for i in range(job.lo, job.hi):
        front = release(h.cpu, h.pair_cpu[i % size], front)
    front = e.pool.meta[0].end
    for i in range(job.lo, job.hi):
        front = release(e.pool, h.pair_hbm[i % size], front)


@kernel
def complete(e, h):  # type: ignore[no-untyped-def]
    """See `none.complete`: loads first, then stores."""
    take_in_loads(e, h)
    while e.transfers.rings[DOWN].count > 0:
        slot = e.transfers.queue[DOWN, e.transfers.rings[DOWN].head]
        if e.transfers.jobs[slot].done > e.state[0].clock:
            break
        take_in_store(e, h, slot)
        retire(e.transfers, slot)


@kernel
def open_work(e, h):  # type: ignore[no-untyped-def]
    """See `none.open_work`: blocks of ended requests wait to be copied, or some job holds a slot."""
    return h.meta[0].late > 0 or e.transfers.meta[0] < e.transfers.jobs.shape[0]


@kernel
def room(e, h):  # type: ignore[no-untyped-def]
    """See `none.room`."""
    return e.transfers.meta[0] >= 2


@kernel
def log_room(e, h):  # type: ignore[no-untyped-def]
    """See `none.log_room`."""
    h.cpu.log.now[0] = e.state[0].clock
    return pool_log_room(h.cpu.log)


class SimpleConnector(Connector):
    """The connector of one engine. `HostTier.blocks` counts the host pool's null block: one less is usable."""

    null_blocks: ClassVar[int] = 1

    def __init__(self, tier: HostTier, lazy: bool) -> None:
        super().__init__(tier)
        self.lazy = lazy

    @property
    def parts(self) -> dict[str, Any]:
        """The hooks of this module."""
        return {f"offload_{name}": globals()[name] for name in HOOKS}

    def make_state(self, sizes: Sizes) -> SimpleHost:
        """See `Connector.make_state`."""
        blocks = self.tier.blocks
        meta = np.zeros(1, META).view(np.recarray)
        meta.lazy, meta.cursor = self.lazy, NONE
        meta.target = 2 * -(-sizes.max_batched // sizes.block_tokens)
        ring = np.zeros(blocks + 1, np.int32)
        return SimpleHost(
            cpu=make_pool(blocks, sizes.ids, logged=sizes.logged),
            rows=np.zeros(sizes.rows, ROW).view(np.recarray),
            meta=meta,
            table=np.zeros(sizes.arena, np.int32),
            pair_hbm=ring,
            pair_cpu=ring.copy(),
            late_hbm=ring.copy(),
            late_cpu=ring.copy(),
            scratch=ring.copy(),
            arrived=np.zeros(sizes.rows, np.int32),
        )

    def grow_ids(self, state: SimpleHost, ids: int) -> SimpleHost:
        """See `Connector.grow_ids`."""
        return state._replace(cpu=state.cpu._replace(first=grown(state.cpu.first, ids, NONE)))

    def grow_rows(self, state: SimpleHost, rows: int) -> SimpleHost:
        """See `Connector.grow_rows`."""
        return state._replace(rows=grown(state.rows, rows), arrived=grown(state.arrived, rows))

    def grow_arena(self, state: SimpleHost, arena: int) -> SimpleHost:
        """See `Connector.grow_arena`."""
        return state._replace(table=grown(state.table, arena))

    def hbm_references(self, e: Any, h: Any) -> NDArray[np.int64]:
        """See `Connector.hbm_references`: blocks being copied down or loaded into."""
        held = np.zeros(e.pool.blocks.size, np.int64)
        for hbm, _ in self._pairs(e, h):
            held[hbm] += 1
        for r in self._loading(e, h):
            base, lo, count = int(e.requests.offset[r]), int(h.rows.lo[r]), int(h.rows["count"][r])
            np.add.at(held, e.table[base + lo : base + lo + count], 1)
        return held

    def grow_log(self, state: SimpleHost) -> SimpleHost:
        """See `Connector.grow_log`."""
        return state._replace(cpu=state.cpu._replace(log=grown_log(state.cpu.log)))

    def log(self, state: SimpleHost) -> Log:
        """See `Connector.log`."""
        return state.cpu.log

    def evictions(self, e: Any, h: Any) -> int:
        """See `Connector.evictions`."""
        return int(h.cpu.meta.evictions[0])

    def used_blocks(self, e: Any, h: Any) -> int:
        """See `Connector.used_blocks`: blocks that hold something, cached ones included."""
        return int((h.cpu.blocks.key[1:-1] != NONE).sum())

    def check(self, e: Any, h: Any) -> None:
        """See `Connector.check`."""
        check_pool(h.cpu, "host tier")
        held = np.zeros(h.cpu.blocks.size, np.int64)
        for _, cpu in self._pairs(e, h):
            held[cpu] += 1
        for r in np.flatnonzero(h.rows.pinned | np.isin(np.arange(h.rows.size), self._loading(e, h))):
            base, lo, count = int(e.requests.offset[r]), int(h.rows.lo[r]), int(h.rows["count"][r])
            np.add.at(held, h.table[base + lo : base + lo + count], 1)
        if (held[1:-1] != h.cpu.blocks.ref[1:-1]).any():
            raise LawError("host tier: reference counts differ from what loads, stores and look-ups hold")

    def _pairs(self, e: Any, h: Any) -> list[tuple[int, int]]:
        live = e.transfers.jobs[(e.transfers.jobs.live == 1) & (e.transfers.jobs.channel == DOWN)]
        size = h.pair_hbm.size
        ring = [i % size for job in live for i in range(int(job.lo), int(job.hi))]
        late = range(int(h.meta.late[0]))
        return [(int(h.pair_hbm[i]), int(h.pair_cpu[i])) for i in ring] + [(int(h.late_hbm[i]), int(h.late_cpu[i])) for i in late]

    def _loading(self, e: Any, h: Any) -> list[int]:
        rows = []
        for job in e.transfers.jobs[(e.transfers.jobs.live == 1) & (e.transfers.jobs.channel == UP)]:
            r = int(job.row)
            while r >= 0:
                rows.append(r)
                r = int(h.rows.next[r]) - 1
        return rows


@OFFLOAD.register("vllm-simple-eager", source="vLLM 0.33.0, SimpleCPUOffloadConnector")
@dataclass(frozen=True, slots=True)
class VllmSimpleEager:
    """vLLM's SimpleCPUOffloadConnector, eager: every computed block, prompt and output, is copied one step later."""

    own_eviction: ClassVar[str] = "lru"  # the free queue's order, whatever the tier says
    null_blocks: ClassVar[int] = SimpleConnector.null_blocks

    def connector(self, tier: HostTier) -> SimpleConnector:
        """The connector of one engine over `tier`."""
        return SimpleConnector(tier, lazy=False)


@OFFLOAD.register("vllm-simple-lazy", source="vLLM 0.33.0, SimpleCPUOffloadConnector with lazy_offload")
@dataclass(frozen=True, slots=True)
class VllmSimpleLazy:
    """vLLM's SimpleCPUOffloadConnector, lazy: blocks are copied when they near eviction from HBM."""

    own_eviction: ClassVar[str] = "lru"
    null_blocks: ClassVar[int] = SimpleConnector.null_blocks

    def connector(self, tier: HostTier) -> SimpleConnector:
        """The connector of one engine over `tier`."""
        return SimpleConnector(tier, lazy=True)
