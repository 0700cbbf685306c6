"""One pass of the vLLM v1 scheduler: running requests first, then waiting ones, under a token budget.

Rules (vLLM 0.33.0, `v1/core/sched/scheduler.py`, `kv_cache_manager.py`; behaviour, not code):
- a running request gets its next tokens; if a block is missing, the request last in `running` is preempted: its blocks are freed (tail
  first), it goes to the front of the waiting queue and nothing is admitted in this pass;
- a waiting request is admitted only if the blocks of its whole prompt fit now, else it blocks those behind it;
- a hit is the longest cached run from the start, at most all tokens but the last; a block is registered when it is scheduled;
- a prompt that another node has prefilled is handed over: the same as a load, of all of it that is not in HBM;
- a hit in the host tier is loaded first: the request takes its HBM blocks at once, holds them without progress, does not count as
  running, can't be preempted, and is admitted only into what in-flight prefills have not reserved.

Not modelled: priorities, speculative tokens, encoder inputs, LoRA, asynchronous scheduling.
The scheduler knows no clock; it reads `state.clock` only to stamp requests.
"""

from __future__ import annotations

import numpy as np

from kvsim.cache.offload.none import allocated as offload_allocated
from kvsim.cache.offload.none import match as offload_match
from kvsim.cache.pool import longest_run, register, release, take, touch
from kvsim.cache.tier import CACHED, MET
from kvsim.engine.accounting import attribute
from kvsim.engine.queues import prepend, remove
from kvsim.engine.state import LOADING, PREEMPTED, RUNNING, WAITING
from kvsim.jit import kernel
from kvsim.transfer.channel import travel_both


@kernel
def blocks_for(tokens, block_tokens):  # type: ignore[no-untyped-def]
    """Blocks that hold `tokens`."""
    return (tokens + block_tokens - 1) // block_tokens


@kernel
def allocate(e, r, tokens):  # type: ignore[no-untyped-def]
    """Give request `r` blocks for `tokens` tokens in all. Room is assumed."""
    request = e.requests[r]
    wanted = blocks_for(tokens, e.config[0].block_tokens)
    for i in range(request.blocks, wanted):
        e.table[request.offset + i] = take(e.pool)
    request.blocks = max(request.blocks, wanted)


@kernel
def register_upto(e, r, tokens):  # type: ignore[no-untyped-def]
    """Register the full blocks among the first `tokens` tokens that aren't yet."""
    request = e.requests[r]
    if not e.config[0].prefix_cache:
        return
    full = min(tokens, request.tokens) // e.config[0].block_tokens
    for i in range(request.keyed, full):
        key = e.ids[request.offset + i]
        register(e.pool, e.table[request.offset + i], key)
        e.seen[key] |= MET | CACHED
        e.met[key] = 1
    request.keyed = max(request.keyed, full)


@kernel
def free_blocks(e, r):  # type: ignore[no-untyped-def]
    """Release all blocks of `r`, tail first."""
    request = e.requests[r]
    front = e.pool.meta[0].end
    for i in range(request.blocks - 1, -1, -1):
        front = release(e.pool, e.table[request.offset + i], front)


@kernel
def preempt(e, r):  # type: ignore[no-untyped-def]
    """Free the request's blocks and put it back at the front of the waiting queue; what it computed is computed again."""
    free_blocks(e, r)
    request = e.requests[r]
    request.blocks = 0
    request.keyed = 0
    request.computed = 0
    request.prefilling = 0
    request.status = PREEMPTED
    request.preemptions += 1
    prepend(e, r)
    e.preempted[e.state[0].preempted] = r
    e.state[0].preempted += 1
    e.state[0].preemptions += 1


@kernel
def chunk(e, r, budget):  # type: ignore[no-untyped-def]
    """Tokens request `r` computes in this step."""
    request = e.requests[r]
    new = request.tokens - request.computed
    limit = e.state[0].limit
    if 0 < limit < new:
        new = limit
    return min(new, budget)


@kernel
def schedule_running(e, budget):  # type: ignore[no-untyped-def]
    """Give running requests their tokens, preempting from the end where blocks run out; returns the budget left."""
    state, size = e.state[0], e.config[0].block_tokens
    i = 0
    while i < state.running and budget > 0:
        r = e.running[i]
        request = e.requests[r]
        new = chunk(e, r, budget)
        need = blocks_for(request.computed + new, size) - request.blocks
        while need > e.pool.meta[0].free:
            state.running -= 1
            victim = e.running[state.running]
            preempt(e, victim)
            if victim == r:
                return budget
        allocate(e, r, request.computed + new)
        register_upto(e, r, request.computed + new)
        request.new = new
        e.scheduled[state.scheduled] = r
        state.scheduled += 1
        budget -= new
        i += 1
    return budget


@kernel
def reserved_blocks(e):  # type: ignore[no-untyped-def]
    """Blocks that prefills in flight and loads still need for the rest of their tokens."""
    state, size = e.state[0], e.config[0].block_tokens
    total = 0
    for i in range(state.running):
        request = e.requests[e.running[i]]
        if request.prefilling:
            total += max(blocks_for(request.tokens, size) - request.blocks, 0)
    for i in range(state.holding):
        request = e.requests[e.holding[i]]
        if request.prefilling:
            total += max(blocks_for(request.tokens, size) - request.blocks, 0)
    return total


@kernel
def found(e, h, r):  # type: ignore[no-untyped-def]
    """(blocks of `r` in HBM, tokens to bring in beyond them); -1 tokens: ask again in the next pass. HBM hits are left in `hits`."""
    request, size = e.requests[r], e.config[0].block_tokens
    hits = 0
    if e.config[0].prefix_cache:
        hits = longest_run(e.pool, e.ids[request.offset :], (request.tokens - 1) // size, e.hits)
    if request.remote > 0:
        return hits, request.remote - hits * size
    return hits, offload_match(e, h, r, hits)


@kernel
def hold(e, h, r, hits, external):  # type: ignore[no-untyped-def]
    """`r`, whose blocks are allocated, waits for what is brought in."""
    state, request = e.state[0], e.requests[r]
    request.status = LOADING
    request.loaded = 0
    request.prefilling = 1
    e.holding[state.holding] = r
    state.holding += 1
    if request.remote > 0:
        size = e.config[0].block_tokens
        blocks = blocks_for(request.remote, size) - hits
        here, there = 2 * e.config[0].node + 1, 2 * request.giver
        request.remote_from = max(state.clock, max(e.nics.way[here].free_at, e.nics.way[there].free_at))
        request.remote_at = travel_both(e.nics, here, there, blocks, state.clock)
        request.external = blocks
        state.receiving += 1


@kernel
def land(e):  # type: ignore[no-untyped-def]
    """What was handed over by now is there; who gave it must be told."""
    state = e.state[0]
    if state.receiving == 0:
        return
    for i in range(state.holding):
        request = e.requests[e.holding[i]]
        if request.remote > 0 and request.remote_at <= state.clock and not request.loaded:
            request.loaded = 1
            request.load_s += request.remote_at - request.load_start
            state.receiving -= 1
            e.landed[state.landed] = e.holding[i]
            state.landed += 1
            state.notify = 1


@kernel
def next_landing(e):  # type: ignore[no-untyped-def]
    """When the next prompt has been handed over, infinity if none is under way."""
    state, first = e.state[0], np.inf
    if state.receiving > 0:
        for i in range(state.holding):
            request = e.requests[e.holding[i]]
            if request.remote > 0 and not request.loaded:
                first = min(first, request.remote_at)
    return first


@kernel
def start(e, r, new):  # type: ignore[no-untyped-def]
    """Move `r`, whose blocks are allocated, among the running with `new` tokens in this step."""
    state, request = e.state[0], e.requests[r]
    e.running[state.running] = r
    state.running += 1
    e.scheduled[state.scheduled] = r
    state.scheduled += 1
    request.new = new
    request.status = RUNNING
    if request.computed + new < request.tokens:
        request.prefilling = 1


@kernel
def schedule_holding(e, h, budget):  # type: ignore[no-untyped-def]
    """Start requests whose load has arrived. Returns the budget left, or -1 where one doesn't fit and blocks all behind it."""
    state, size = e.state[0], e.config[0].block_tokens
    kept, i, blocked = 0, 0, False
    while i < state.holding and budget > 0 and state.running < e.config[0].max_seqs:
        r = e.holding[i]
        request = e.requests[r]
        if request.status == LOADING and not request.loaded:
            e.holding[kept] = r
            kept += 1
            i += 1
            continue
        if request.status == LOADING:
            request.status = PREEMPTED if request.preemptions else WAITING
            request.remote = 0
            register_upto(e, r, request.computed)
            # A prompt that was loaded whole still computes its last token.
            request.computed = min(request.computed, request.tokens - 1)
        new = chunk(e, r, budget)
        if blocks_for(request.tokens, size) - request.blocks > e.pool.meta[0].free:
            blocked = True
            break
        allocate(e, r, request.computed + new)
        register_upto(e, r, request.computed + new)
        offload_allocated(e, h, r, 0, 0, False)
        start(e, r, new)
        budget -= new
        i += 1
    full = i < state.holding
    while i < state.holding:
        e.holding[kept] = e.holding[i]
        kept += 1
        i += 1
    state.holding = kept
    return -1 if blocked or full else budget


@kernel
def schedule_waiting(e, h, budget):  # type: ignore[no-untyped-def]
    """Admit waiting requests in order until budget, places or blocks run out."""
    state, size, post = e.state[0], e.config[0].block_tokens, e.requests.shape[0] - 1
    r = e.requests[post].q_next
    while r != post and budget > 0 and state.running < e.config[0].max_seqs:
        request = e.requests[r]
        following = request.q_next
        hits, external = found(e, h, r)
        if external < 0:
            r = following
            continue
        computed = hits * size + external
        request.computed = computed
        waits = external > 0 and (request.remote > 0 or not e.config[0].layerwise)
        if external > 0 and not waits:
            computed = min(computed, request.tokens - 1)
            request.computed = computed
        new = 0 if waits else chunk(e, r, budget)
        request.computed = 0
        idle = 0
        for i in range(hits):
            if e.pool.blocks[e.hits[i]].ref == 0:
                idle += 1
        free = e.pool.meta[0].free
        if max(blocks_for(request.tokens, size) - hits, 0) + idle > free:
            return
        if waits and max(blocks_for(computed, size) - hits, 0) + idle > free - reserved_blocks(e):
            return
        for i in range(hits):
            touch(e.pool, e.hits[i])
            e.table[request.offset + i] = e.hits[i]
        request.blocks = hits
        request.keyed = hits
        allocate(e, r, computed + new)
        if not waits:
            register_upto(e, r, computed + new)
        first = request.scheduled < 0.0
        if first:
            request.external = external
            attribute(e, r, hits * size, computed)
        offload_allocated(e, h, r, hits, 0 if request.remote > 0 else external, first)
        request.local = hits * size
        request.computed = computed
        request.load_start = state.clock
        remove(e, r)
        if waits:
            hold(e, h, r, hits, external)
        else:
            start(e, r, new)
            budget -= new
        r = following


@kernel
def schedule(e, h):  # type: ignore[no-untyped-def]
    """One pass: fill `scheduled` and each request's `new`. `computed` still stands where it stood before the step."""
    state = e.state[0]
    state.passes += 1
    state.scheduled = 0
    state.preempted = 0
    # A prompt alone in the engine has nobody to starve: no limit on its chunk.
    state.limit = e.config[0].threshold if state.live > 1 else 0
    budget = schedule_running(e, e.config[0].max_batched)
    state.fresh = state.scheduled
    if state.preempted == 0:
        budget = schedule_holding(e, h, budget)
        if budget > 0:
            schedule_waiting(e, h, budget)
