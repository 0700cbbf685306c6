"""The parts of an engine's iteration, in their order; `kvsim.engine.fleet` runs many of them in one kernel call.

Order of events within an iteration: arrivals by now join; the scheduler's pass; stores are planned; transfers are submitted (a flush
waits for those whose blocks are about to be reused); the step's time passes; tokens come out and requests end; transfers done by now
are taken in. A pass that schedules nothing takes no time: the clock goes to the next arrival or transfer completion.

A step that loads overlap with, layer by layer, lasts until both are done: max(compute, load + one layer of compute).
"""

from __future__ import annotations

import numpy as np

from kvsim.cache.log import log_room
from kvsim.cache.offload.none import begin as offload_begin
from kvsim.cache.offload.none import complete as offload_complete
from kvsim.cache.offload.none import end as offload_end
from kvsim.cache.offload.none import ended as offload_ended
from kvsim.cache.offload.none import log_room as offload_log_room
from kvsim.cache.offload.none import next_completion as offload_next_completion
from kvsim.cache.offload.none import open_work as offload_open_work
from kvsim.cache.offload.none import plan as offload_plan
from kvsim.cache.offload.none import room as offload_room
from kvsim.engine.queues import finish_row, give_segment, join
from kvsim.engine.scheduler import free_blocks, land, next_landing, schedule
from kvsim.engine.state import ARENA_FULL, FINISHED, GO, JOBS_FULL, LOADING, LOG_FULL, TRACE_FULL
from kvsim.engine.step_time.linear import add as step_add
from kvsim.engine.step_time.linear import seconds as step_seconds
from kvsim.jit import kernel
from kvsim.transfer.channel import log_bin


@kernel
def execute(e):  # type: ignore[no-untyped-def]
    """Advance what each scheduled request has computed; returns the seconds that takes, 0 where nothing is scheduled."""
    state = e.state[0]
    if state.scheduled == 0:
        return 0.0
    e.acc[:] = 0.0
    for i in range(state.scheduled):
        request = e.requests[e.scheduled[i]]
        step_add(e.params, e.acc, request.computed, request.new, request.prompt, request.tokens)
        if request.scheduled < 0.0:
            request.scheduled = state.clock
        request.computed += request.new
        request.work += request.new
        if request.computed >= request.tokens:
            request.prefilling = 0
    seconds = step_seconds(e.params, e.acc)
    state.busy_s += seconds
    state.steps += 1
    if state.overlap > state.clock:
        seconds = max(seconds, state.overlap - state.clock + seconds / e.config[0].layerwise)
    return seconds


@kernel
def record_step(e, seconds):  # type: ignore[no-untyped-def]
    """Keep the step that begins now for the timeline."""
    if e.trace.steps.shape[0] == 0:
        return
    step = e.trace.steps[e.trace.meta[0]]
    step.start = e.state[0].clock
    step.end = e.state[0].clock + seconds
    step.prefill = 0
    step.decodes = 0
    for i in range(e.state[0].scheduled):
        request = e.requests[e.scheduled[i]]
        if request.computed > request.prompt:
            step.decodes += 1
        else:
            step.prefill += request.new
    e.trace.meta[0] += 1


@kernel
def emit(e, h):  # type: ignore[no-untyped-def]
    """A token for each request that computed all it had; those that have their last one end."""
    state, now = e.state[0], e.state[0].clock
    for i in range(state.scheduled):
        r = e.scheduled[i]
        request = e.requests[r]
        if request.computed < request.tokens:
            continue
        request.tokens += 1
        if request.first_token < 0.0:
            request.first_token = now
        else:
            e.itl[log_bin(now - request.last_token)] += 1
        request.last_token = now
        if request.tokens == request.prompt + request.output:
            e.ended[state.ended] = r
            state.ended += 1
            released = offload_ended(e, h, r)
            if request.hold:
                state.held += 1
            else:
                free_blocks(e, r)
            if released:
                give_segment(e, r)
            state.live -= 1
            state.done += 1
            finish_row(e, r, FINISHED, now)


@kernel
def let_go(e, r, now):  # type: ignore[no-untyped-def]
    """What request `r` held beyond its end has been taken over by `now`: its blocks are freed."""
    state, request = e.state[0], e.requests[r]
    free_blocks(e, r)
    request.hold = 0
    state.held -= 1
    if state.blocked:
        state.blocked = 0
        state.clock = max(state.clock, now)
    if request.spared:
        give_segment(e, r)


@kernel
def fail_handover(e, r, now):  # type: ignore[no-untyped-def]
    """The node that hands over the prompt of `r` is gone at `now`, before its end: what is missing is computed here.

    In a step under way at `now`, the engine may already have taken in what would have arrived before the step's end.
    """
    state, request = e.state[0], e.requests[r]
    request.remote = 0
    if request.status != LOADING:
        return
    if request.loaded:
        request.load_s -= request.remote_at - now
        kept = 0
        for i in range(state.landed):
            if e.landed[i] != r:
                e.landed[kept] = e.landed[i]
                kept += 1
        state.landed = kept
    else:
        request.load_s += now - request.load_start
        state.receiving -= 1
    request.loaded = 1
    request.computed = request.local


@kernel
def drop_ended(e):  # type: ignore[no-untyped-def]
    """Close the gaps that ended requests left among the running, keeping the order."""
    state, kept = e.state[0], 0
    for i in range(state.running):
        r = e.running[i]
        if e.requests[r].status != FINISHED:
            e.running[kept] = r
            kept += 1
    state.running = kept


@kernel
def recycle(e):  # type: ignore[no-untyped-def]
    """Return the arena segments that the connector has let go."""
    for i in range(e.state[0].let_go):
        give_segment(e, e.let_go[i])
    e.state[0].let_go = 0


@kernel
def due(e, h):  # type: ignore[no-untyped-def]
    """When the engine can go on: now, with requests or transfers to see to; or when the next request arrives; infinity if none will."""
    state = e.state[0]
    if not state.blocked and (state.live > 0 or offload_open_work(e, h)):
        return state.clock
    return max(state.clock, e.inbox_s[0]) if state.inbox > 0 else np.inf


@kernel
def admit(e, h):  # type: ignore[no-untyped-def]
    """Arrivals by now join. GO, or which array must grow first; may be asked again."""
    if not offload_room(e, h):
        return JOBS_FULL
    if e.trace.steps.shape[0] > 0 and not trace_room(e):
        return TRACE_FULL
    if e.pool.log.key.shape[0] > 0 and not (log_room(e.pool.log) and offload_log_room(e, h)):
        return LOG_FULL
    e.state[0].notify = 0
    e.pool.log.now[0] = e.state[0].clock
    return GO if join(e, h) else ARENA_FULL


@kernel
def prepare(e, h):  # type: ignore[no-untyped-def]
    """The scheduler's pass, and the transfers that begin with the step."""
    state = e.state[0]
    schedule(e, h)
    offload_plan(e, h)
    state.ended = 0
    state.overlap = 0.0
    offload_begin(e, h)


@kernel
def trace_room(e):  # type: ignore[no-untyped-def]
    """Whether the timeline holds one more pass."""
    transfers = e.transfers
    return e.trace.meta[0] < e.trace.steps.shape[0] and transfers.meta[2] + transfers.jobs.shape[0] <= transfers.moves.shape[0]


@kernel
def next_event(e, h):  # type: ignore[no-untyped-def]
    """When something can change for an engine that scheduled nothing."""
    upcoming = min(offload_next_completion(e, h), next_landing(e))
    return min(upcoming, e.inbox_s[0]) if e.state[0].inbox > 0 else upcoming


@kernel
def conclude(e, h):  # type: ignore[no-untyped-def]
    """What comes after a step, its time having passed. False: nothing that anybody must be told of."""
    state = e.state[0]
    e.pool.log.now[0] = state.clock
    offload_end(e, h)
    emit(e, h)
    if state.ended > 0:
        drop_ended(e)
    offload_complete(e, h)
    land(e)
    recycle(e)
    return state.notify != 0
