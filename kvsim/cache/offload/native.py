"""vLLM's native OffloadingConnector: write-through to the host at the step after computation, asynchronous loads.

Rules (vLLM 0.33.0, `offloading/scheduler.py`, `kv_offload/cpu/manager.py`; behaviour, not code):
- each request offers its full blocks from the first on as they are computed, HBM hits included: present ones refresh their recency,
  absent ones are stored; prompt blocks only, unless told otherwise; with a threshold only blocks offered that often (counted in an LRU
  table of 64,000 keys);
- no victim (in flight, being read, of the same offer) means the offer is dropped and made again in the next step;
- a load starts where the HBM hit ends, at the start of the step; a block still being written, or already being loaded for another
  request, defers the request to a later pass, as do its own transfers in flight;
- stores start at the start of the next step; a block that is handed out again while a store of an ended request reads it is flushed:
  the engine waits for that store. A preempted request's stores are flushed too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.cache.eviction import EVICTION
from kvsim.cache.eviction.lru import access as evict_access
from kvsim.cache.eviction.lru import finished as evict_finished
from kvsim.cache.eviction.lru import idle as evict_idle
from kvsim.cache.eviction.lru import insert as evict_insert
from kvsim.cache.eviction.lru import missed as evict_missed
from kvsim.cache.eviction.lru import victims as evict_victims
from kvsim.cache.log import Log, grown_log, make_log, note
from kvsim.cache.log import log_room as host_log_room
from kvsim.cache.offload import HOOKS, OFFLOAD, Connector, HostTier, NoHost, Sizes
from kvsim.cache.offload.below import LIFT, NOT_BELOW
from kvsim.cache.offload.below import begin as below_begin
from kvsim.cache.offload.below import came_from as below_came_from
from kvsim.cache.offload.below import cascade as below_cascade
from kvsim.cache.offload.below import complete as below_complete
from kvsim.cache.offload.below import fetch as below_fetch
from kvsim.cache.offload.below import lift as below_lift
from kvsim.cache.offload.below import where as below_where
from kvsim.cache.offload.jobs import next_completion, open_work  # noqa: F401  (hooks, taken by name)
from kvsim.cache.offload.order import scatter
from kvsim.cache.offload.tracker import make_tracker, offer
from kvsim.cache.tier import ABSENT, INSERTED_HERE, KEY, MET_HERE, MISSED_HERE, REUSED_HERE, STORED, STRAIGHT, WRITING
from kvsim.errors import LawError
from kvsim.jit import kernel
from kvsim.transfer.channel import DOWN, POOL_READ, POOL_WRITE, SSD_READ, SSD_WRITE, UP, Transfers, new_job, next_done, retire, submit

ROW = np.dtype([("next_store", "<i8"), ("jobs", "<i8"), ("loads", "<i8"), ("rank", "<i8"), ("known", "<i8"), ("ended", "<i8")], align=True)
META = np.dtype(
    [
        ("capacity", "<i8"),
        ("used", "<i8"),
        ("idle", "<i8"),
        ("stamp", "<i8"),
        ("threshold", "<i8"),
        ("prompt_only", "<i8"),
        ("ended", "<i8"),
        ("planned", "<i8"),
        ("deferred", "<i8"),
        ("loads", "<i8"),
        ("flush", "<i8"),
        ("evictions", "<i8"),
        ("dropped", "<i8"),
    ],
    align=True,
)
CANDIDATE = -1  # in `stored_by`: about to be stored by the offer at hand


class NativeHost(NamedTuple):
    """`keys` [ids], `rows` [requests], `flags` and `stored_by` (1 + job slot) per arena entry, lists of job slots and of ended rows."""

    keys: Any
    rows: Any
    meta: Any
    flags: NDArray[np.uint8]
    stored_by: NDArray[np.int32]
    ended: NDArray[np.int32]
    planned: NDArray[np.int32]
    deferred: NDArray[np.int32]
    loads: NDArray[np.int32]
    scratch: NDArray[np.int32]
    tracker: Any
    policy: Any
    log: Log
    below: Any


@kernel
def joined(e, h, r):  # type: ignore[no-untyped-def]
    """See `none.joined`."""
    request, row = e.requests[r], h.rows[r]
    row.next_store = 0
    row.jobs = 0
    row.loads = 0
    row.rank = 0
    row.known = 0
    row.ended = 0
    for i in range(request.offset, request.offset + (request.prompt + request.output) // e.config[0].block_tokens + 1):
        h.flags[i] = 0
        h.stored_by[i] = 0


@kernel
def match(e, h, r, hits):  # type: ignore[no-untyped-def]
    """See `none.match`."""
    request, row = e.requests[r], h.rows[r]
    row.next_store = 0
    if row.jobs > 0:
        return -1
    size = e.config[0].block_tokens
    count, waits, lifts = 0, False, False
    for k in range(hits, request.tokens // size):
        key = h.keys[e.ids[request.offset + k]]
        if key.ref == ABSENT:
            below = below_where(e, h, e.ids[request.offset + k])
            if below == NOT_BELOW:
                break
            lifts = lifts or below == LIFT
        else:
            waits = waits or key.ref == WRITING or key.loading > 0
        count += 1
    if lifts:
        # What finds no room in the host is a miss, and ends the hit.
        reach = below_lift(e, h, r, hits, hits + count)
        if row.jobs > 0:
            return -1
        count = reach - hits
    if count == 0:
        return 0
    return -1 if waits else count * size


@kernel
def meet(e, h, r, k, reused):  # type: ignore[no-untyped-def]
    """Request r met block k of its chain in the tier, or will store it; reused: it found it readable there."""
    i = e.requests[r].offset + k
    if not h.flags[i] & MET_HERE:
        h.flags[i] |= MET_HERE
        evict_access(e, h, r, k)
    if reused and not h.flags[i] & INSERTED_HERE:
        h.flags[i] |= REUSED_HERE


@kernel
def hand_out(e, h, r, lo):  # type: ignore[no-untyped-def]
    """Blocks from the lo-th on were handed to request r in this pass: stores that still read them must be flushed."""
    request = e.requests[r]
    for k in range(lo, request.blocks):
        block = e.pool.blocks[e.table[request.offset + k]]
        block.batch = e.state[0].passes
        if block.job > 0:
            flush(e, h, block.job - 1)
    h.rows[r].known = request.blocks


@kernel
def flush(e, h, slot):  # type: ignore[no-untyped-def]
    """The engine must wait for this job before the step."""
    if not e.transfers.jobs[slot].flush:
        e.transfers.jobs[slot].flush = 1
        h.meta[0].flush += 1


@kernel
def allocated(e, h, r, hits, tokens, first):  # type: ignore[no-untyped-def]
    """See `none.allocated`."""
    hand_out(e, h, r, 0)
    if tokens == 0:
        return
    request, row, meta = e.requests[r], h.rows[r], h.meta[0]
    upto = hits + tokens // e.config[0].block_tokens
    direct = below_fetch(e, h, r, hits, upto)
    for k in range(hits, upto):
        key = h.keys[e.ids[request.offset + k]]
        if key.ref == ABSENT:
            continue
        if key.ref == 0:
            meta.idle -= 1
        key.ref += 1
        key.loading = 1
    for k in range(hits, upto):
        if h.keys[e.ids[request.offset + k]].ref != ABSENT:
            meet(e, h, r, k, True)
    if direct < upto - hits:
        h.loads[meta.loads] = new_job(e.transfers, UP, r, hits, upto, upto - hits - direct)
        meta.loads += 1
        row.jobs += 1
        row.loads += 1
    row.next_store = upto
    if first:
        ssd, pool = below_came_from(e, h, r, hits, upto)
        size = e.config[0].block_tokens
        request.ssd_tokens = min(ssd * size, request.host_tokens)
        request.pool_tokens = min(pool * size, request.host_tokens - request.ssd_tokens)


@kernel
def take_room(e, h, r, lo, hi, wanted):  # type: ignore[no-untyped-def]
    """Evict what `wanted` new blocks need; False, and the candidates are withdrawn, if that can't be done."""
    meta, base = h.meta[0], e.requests[r].offset
    short = wanted - (meta.capacity - meta.used)
    if short <= 0:
        return True
    if short <= meta.idle and evict_victims(e, h, short, meta.stamp):
        meta.idle -= short
        meta.used -= short
        meta.evictions += short
        for i in range(short):
            note(h.log, h.scratch[i], 0)
        return True
    for i in range(base + lo, base + hi):
        if h.stored_by[i] == CANDIDATE:
            h.stored_by[i] = 0
    meta.dropped += wanted
    return False


@kernel
def prepare_store(e, h, r, lo, hi):  # type: ignore[no-untyped-def]
    """Offer blocks lo..hi of r's chain; returns how many are to be stored (marked CANDIDATE), or -1 if there is no room."""
    host, meta, base = h, h.meta[0], e.requests[r].offset
    if meta.threshold >= 2:
        offer(host.tracker, host.keys, e.ids, base + lo, base + hi)
    meta.stamp += 1
    wanted = 0
    for i in range(base + lo, base + hi):
        key = host.keys[e.ids[i]]
        key.stamp = meta.stamp
        if key.ref == ABSENT and (meta.threshold < 2 or key.offers >= meta.threshold):
            host.stored_by[i] = CANDIDATE
            wanted += 1
    for i in range(base + hi - 1, base + lo - 1, -1):
        if host.stored_by[i] == CANDIDATE and not host.flags[i] & MISSED_HERE:
            host.flags[i] |= MISSED_HERE
            evict_missed(e, h, e.ids[i])
    for k in range(lo, hi):
        readable = host.keys[e.ids[base + k]].ref >= 0
        if readable or host.stored_by[base + k] == CANDIDATE:
            meet(e, h, r, k, readable)
    if wanted > 0 and not take_room(e, h, r, lo, hi, wanted):
        return -1
    for k in range(lo, hi):
        if host.stored_by[base + k] == CANDIDATE:
            evict_insert(e, h, r, k)
            host.keys[e.ids[base + k]].ref = WRITING
            host.flags[base + k] |= INSERTED_HERE
            e.seen[e.ids[base + k]] |= STORED
    meta.used += wanted
    return wanted


@kernel
def plan_request(e, h, r, over):  # type: ignore[no-untyped-def]
    """Store what request r has computed by the end of this step and not offered yet; over: it ended in the last step."""
    request, row, size = e.requests[r], h.rows[r], e.config[0].block_tokens
    computed = max(request.prompt, request.tokens - 1) if over else min(request.computed + request.new, request.tokens)
    if h.meta[0].prompt_only:
        computed = min(computed, request.prompt)
    lo, hi = row.next_store, min(computed // size, request.blocks)
    if hi <= lo:
        return
    wanted = prepare_store(e, h, r, lo, hi)
    if wanted < 0:
        return
    row.next_store = hi
    if wanted == 0:
        return
    slot = new_job(e.transfers, DOWN, r, lo, hi, wanted)
    row.jobs += 1
    for i in range(request.offset + lo, request.offset + hi):
        if h.stored_by[i] == CANDIDATE:
            h.stored_by[i] = slot + 1
            if over:
                block = e.pool.blocks[e.table[i]]
                block.job = slot + 1
                if block.batch == e.state[0].passes:
                    flush(e, h, slot)
    h.planned[h.meta[0].planned] = slot
    h.meta[0].planned += 1


@kernel
def let_go(e, h, r):  # type: ignore[no-untyped-def]
    """Nothing refers to the chain of the ended request r any more."""
    e.let_go[e.state[0].let_go] = r
    e.state[0].let_go += 1


@kernel
def plan(e, h):  # type: ignore[no-untyped-def]
    """See `none.plan`."""
    state, meta = e.state[0], h.meta[0]
    for i in range(state.fresh):
        r = e.scheduled[i]
        hand_out(e, h, r, h.rows[r].known)
    for i in range(state.preempted):
        for slot in range(e.transfers.jobs.shape[0]):
            job = e.transfers.jobs[slot]
            if job.live and job.row == e.preempted[i] and job.channel == DOWN:
                flush(e, h, slot)
    for i in range(state.scheduled):
        plan_request(e, h, e.scheduled[i], False)
    scatter(e, h.ended, meta.ended)
    for i in range(meta.ended):
        plan_request(e, h, h.ended[i], True)
    for i in range(meta.ended):
        r = h.ended[i]
        evict_finished(e, h, r)
        h.rows[r].ended = 1
        if h.rows[r].jobs == 0:
            let_go(e, h, r)
    meta.ended = 0


@kernel
def begin(e, h):  # type: ignore[no-untyped-def]
    """See `none.begin`: stores deferred from the last step, then those to be flushed, then loads; then wait for the flushed."""
    state, meta, host = e.state[0], h.meta[0], h
    for i in range(meta.deferred):
        submit(e.transfers, host.deferred[i], state.clock)
    meta.deferred = 0
    if meta.flush:
        for i in range(meta.planned):
            if e.transfers.jobs[host.planned[i]].flush:
                submit(e.transfers, host.planned[i], state.clock)
    for i in range(meta.loads):
        submit(e.transfers, host.loads[i], state.clock)
        if e.config[0].layerwise:
            state.overlap = max(state.overlap, e.transfers.jobs[host.loads[i]].done)
    meta.loads = 0
    below_begin(e, h)
    if meta.flush:
        for slot in range(e.transfers.jobs.shape[0]):
            job = e.transfers.jobs[slot]
            if job.live and job.flush:
                state.clock = max(state.clock, job.done)
        meta.flush = 0
        state.flushes += 1


@kernel
def end(e, h):  # type: ignore[no-untyped-def]
    """See `none.end`: what was planned in this step and not flushed starts with the next one."""
    meta, host = h.meta[0], h
    for i in range(meta.planned):
        if not e.transfers.jobs[host.planned[i]].submitted:
            host.deferred[meta.deferred] = host.planned[i]
            meta.deferred += 1
    meta.planned = 0


@kernel
def ended(e, h, r):  # type: ignore[no-untyped-def]
    """See `none.ended`: stores in flight still read the blocks that are about to be freed."""
    request, row = e.requests[r], h.rows[r]
    if row.jobs > 0:
        for i in range(request.offset, request.offset + request.blocks):
            if h.stored_by[i] > 0:
                e.pool.blocks[e.table[i]].job = h.stored_by[i]
    h.ended[h.meta[0].ended] = r
    h.meta[0].ended += 1
    return False


@kernel
def complete(e, h):  # type: ignore[no-untyped-def]
    """See `none.complete`."""
    while True:
        slot = next_done(e.transfers)
        if slot < 0 or e.transfers.jobs[slot].done > e.state[0].clock:
            return
        job = e.transfers.jobs[slot]
        r = job.row
        if job.channel == UP or job.channel == DOWN:
            take_in(e, h, slot)
        else:
            below_complete(e, h, slot)
        h.rows[r].jobs -= 1
        retire(e.transfers, slot)
        if h.rows[r].ended and h.rows[r].jobs == 0:
            let_go(e, h, r)


@kernel
def arrived(e, h, r, slot):  # type: ignore[no-untyped-def]
    """One of the loads of request r has ended."""
    h.rows[r].loads -= 1
    if h.rows[r].loads == 0:
        e.requests[r].loaded = 1
        e.requests[r].load_s += e.transfers.jobs[slot].done - e.requests[r].load_start


@kernel
def take_in(e, h, slot):  # type: ignore[no-untyped-def]
    """The blocks of a store are readable, those of a load are let go."""
    job, meta = e.transfers.jobs[slot], h.meta[0]
    request = e.requests[job.row]
    if job.channel == UP:
        arrived(e, h, job.row, slot)
    for i in range(request.offset + job.lo, request.offset + job.hi):
        key = h.keys[e.ids[i]]
        if job.channel == UP:
            if h.flags[i] & STRAIGHT:
                continue
            key.ref -= 1
            key.loading = 0
        elif h.stored_by[i] == slot + 1:
            key.ref = 0
            note(h.log, e.ids[i], 1)
            block = e.pool.blocks[e.table[i]]
            if block.job == slot + 1:
                block.job = 0
        else:
            continue
        if key.ref == 0:
            meta.idle += 1
            evict_idle(e, h, e.ids[i])
    if job.channel == DOWN:
        below_cascade(e, h, slot)
        for i in range(request.offset + job.lo, request.offset + job.hi):
            if h.stored_by[i] == slot + 1:
                h.stored_by[i] = 0


@kernel
def room(e, h):  # type: ignore[no-untyped-def]
    """See `none.room`: a pass adds at most a load per waiting request and a store per scheduled or ended one."""
    return e.transfers.meta[0] >= 4 * e.state[0].live + 2 * e.config[0].max_seqs + h.meta[0].ended + 2 * e.transfers.rings[DOWN].count


@kernel
def log_room(e, h):  # type: ignore[no-untyped-def]
    """See `none.log_room`."""
    h.log.now[0] = e.state[0].clock
    return host_log_room(h.log)


class NativeConnector(Connector):
    """The connector of one engine."""

    def __init__(self, tier: HostTier, prompt_only: bool, store_threshold: int) -> None:
        super().__init__(tier)
        self.prompt_only, self.store_threshold = prompt_only, store_threshold
        self.policy: Any = EVICTION[tier.eviction]()

    @property
    def parts(self) -> dict[str, Any]:
        """The hooks of this module and the policy's kernels."""
        lower = self._tiering.PARTS if self.tier.below else {}
        return {**{f"offload_{name}": globals()[name] for name in HOOKS}, **self.policy.parts, **lower}

    @property
    def _tiering(self) -> Any:
        from kvsim.cache.offload import tiering

        return tiering

    def make_state(self, sizes: Sizes) -> NativeHost:
        """See `Connector.make_state`."""
        blocks, ids, lists = self.tier.blocks, sizes.ids, sizes.slots
        meta = np.zeros(1, META).view(np.recarray)
        meta.capacity, meta.threshold, meta.prompt_only = blocks, self.store_threshold, self.prompt_only
        keys = np.zeros(ids, KEY).view(np.recarray)
        keys.ref = ABSENT
        return NativeHost(
            keys=keys,
            rows=np.zeros(sizes.rows, ROW).view(np.recarray),
            meta=meta,
            flags=np.zeros(sizes.arena, np.uint8),
            stored_by=np.zeros(sizes.arena, np.int32),
            ended=np.zeros(lists, np.int32),
            planned=np.zeros(lists, np.int32),
            deferred=np.zeros(lists, np.int32),
            loads=np.zeros(lists, np.int32),
            scratch=np.zeros(blocks + 1, np.int32),
            tracker=make_tracker(ids if self.store_threshold >= 2 else 0),
            policy=self.policy.make_state(blocks, ids),
            log=make_log(2 * blocks if sizes.logged else 0),
            below=self._tiering.make_below(self.tier.below, sizes) if self.tier.below else NoHost(np.zeros(1, np.int64)),
        )

    def _grow_below(self, state: NativeHost, **more: int) -> Any:
        return self._tiering.grow_below(state.below, self.tier.below, **more) if self.tier.below else state.below

    def grow_ids(self, state: NativeHost, ids: int) -> NativeHost:
        """See `Connector.grow_ids`."""
        keys = grown(state.keys, ids)
        keys.ref[state.keys.size :] = ABSENT
        t = state.tracker
        if self.store_threshold >= 2:
            t = t._replace(prev=grown(t.prev, ids + 1), next=grown(t.next, ids + 1), stamp=grown(t.stamp, ids + 1))
        below = self._grow_below(state, ids=ids)
        return state._replace(keys=keys, tracker=t, policy=self.policy.grow_ids(state.policy, ids), below=below)

    def grow_rows(self, state: NativeHost, rows: int) -> NativeHost:
        """See `Connector.grow_rows`."""
        return state._replace(rows=grown(state.rows, rows))

    def grow_arena(self, state: NativeHost, arena: int) -> NativeHost:
        """See `Connector.grow_arena`."""
        below = self._grow_below(state, arena=arena)
        return state._replace(flags=grown(state.flags, arena), stored_by=grown(state.stored_by, arena), below=below)

    def grow_jobs(self, transfers: Transfers, state: NativeHost) -> tuple[Transfers, NativeHost]:
        """See `Connector.grow_jobs`."""
        transfers, state = super().grow_jobs(transfers, state)
        lists = {name: grown(getattr(state, name), transfers.jobs.size) for name in ("ended", "planned", "deferred", "loads")}
        return transfers, state._replace(**lists, below=self._grow_below(state, slots=transfers.jobs.size))

    def grow_log(self, state: NativeHost) -> NativeHost:
        """See `Connector.grow_log`."""
        return state._replace(log=grown_log(state.log))

    def log(self, state: NativeHost) -> Log:
        """See `Connector.log`."""
        return state.log

    def evictions(self, e: Any, h: Any) -> int:
        """See `Connector.evictions`."""
        return int(h.meta.evictions[0])

    def used_blocks(self, e: Any, h: Any) -> int:
        """See `Connector.used_blocks`."""
        return int(h.meta.used[0])

    def check(self, e: Any, h: Any) -> None:
        """See `Connector.check`."""
        ref, meta = h.keys.ref, h.meta[0]
        resident, idle_keys = int((ref != ABSENT).sum()), int((ref == 0).sum())
        if resident != meta.used or resident > meta.capacity:
            raise LawError(f"host tier: {resident} keys resident, {meta.used} counted, capacity {meta.capacity}")
        if idle_keys != meta.idle:
            raise LawError(f"host tier: {idle_keys} keys can be evicted, {meta.idle} counted")
        live = e.transfers.jobs[e.transfers.jobs.live == 1]
        up, down = (live[np.isin(live.channel, channels)] for channels in ((DOWN, SSD_READ, POOL_READ), (UP, SSD_WRITE, POOL_WRITE)))
        copies = int(self.tier.below.pool.state.meta.copies[0]) if self.tier.below and self.tier.below.pool else 1
        writing = int(up.blocks[up.hi > up.lo].sum())
        reading = int((down.blocks // np.where(down.channel == POOL_WRITE, copies, 1)).sum())
        if int((ref == WRITING).sum()) != writing or int(ref[ref > 0].sum()) != reading:
            raise LawError("host tier: keys in flight differ from the blocks of live transfer jobs")


@OFFLOAD.register("vllm-native", source="vLLM 0.33.0, OffloadingConnector")
@dataclass(frozen=True, slots=True)
class VllmNative:
    """vLLM's OffloadingConnector (--kv-offloading-size): write-through of prompt blocks, asynchronous loads."""

    store_threshold: int = 0
    prompt_only: bool = True
    one_copy: ClassVar[bool] = True  # of KV that every rank holds alike (MLA)
    null_blocks: ClassVar[int] = 0
    tiering: ClassVar[bool] = True  # tiers below the host can be behind it (vLLM's TieringOffloadingSpec)

    def connector(self, tier: HostTier) -> NativeConnector:
        """The connector of one engine over `tier`."""
        return NativeConnector(tier, self.prompt_only, self.store_threshold)
