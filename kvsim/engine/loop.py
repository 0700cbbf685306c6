"""The engine's clock: passes and steps in one kernel call, up to the next thing that must come from outside.

Order of events within an iteration: arrivals by now join; the scheduler's pass; stores are planned; transfers are submitted (a flush
waits for those whose blocks are about to be reused); the step's time passes; tokens come out and requests end; transfers done by now
are taken in. A pass that schedules nothing takes no time: the clock goes to the next arrival or transfer completion.
"""

from __future__ import annotations

import numpy as np

from kvsim.cache.offload.none import begin as offload_begin
from kvsim.cache.offload.none import complete as offload_complete
from kvsim.cache.offload.none import end as offload_end
from kvsim.cache.offload.none import ended as offload_ended
from kvsim.cache.offload.none import next_completion as offload_next_completion
from kvsim.cache.offload.none import open_work as offload_open_work
from kvsim.cache.offload.none import plan as offload_plan
from kvsim.cache.offload.none import room as offload_room
from kvsim.engine.queues import finish_row, give_segment, join
from kvsim.engine.scheduler import free_blocks, schedule
from kvsim.engine.state import ARENA_FULL, FINISHED, HORIZON, IDLE, JOBS_FULL, NOTIFY, STUCK
from kvsim.engine.step_time.linear import add as step_add
from kvsim.engine.step_time.linear import seconds as step_seconds
from kvsim.jit import kernel
from kvsim.transfer.channel import log_bin


@kernel
def execute(e):  # type: ignore[no-untyped-def]
    """Run the scheduled batch: count its time and advance what each request has computed."""
    state = e.state[0]
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
    state.clock += seconds
    state.busy_s += seconds
    state.steps += 1


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
        elif now >= e.config[0].window_start:
            e.itl[log_bin(now - request.last_token)] += 1
        request.last_token = now
        if request.tokens == request.prompt + request.output:
            e.ended[state.ended] = r
            state.ended += 1
            released = offload_ended(e, h, r)
            free_blocks(e, r)
            if released:
                give_segment(e, r)
            state.live -= 1
            state.done += 1
            finish_row(e, r, FINISHED, now)


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
def advance(e, h, until):  # type: ignore[no-untyped-def]
    """Run passes and steps while the clock is before `until`; returns why it stopped (see `kvsim.engine.state`)."""
    state = e.state[0]
    state.notify = 0
    while True:
        if state.live == 0:
            if state.inbox == 0:
                return IDLE
            if e.inbox_s[0] > state.clock and not offload_open_work(e, h):
                state.clock = min(e.inbox_s[0], until)
        if state.clock >= until:
            return HORIZON
        if not offload_room(e, h):
            return JOBS_FULL
        if not join(e, h):
            return ARENA_FULL
        schedule(e, h)
        offload_plan(e, h)
        state.ended = 0
        offload_begin(e, h)
        if state.scheduled > 0:
            execute(e)
        else:
            upcoming = offload_next_completion(e, h)
            if state.inbox > 0:
                upcoming = min(upcoming, e.inbox_s[0])
            if upcoming < np.inf:
                state.clock = max(state.clock, min(upcoming, until))
            elif state.live > 0 and not offload_open_work(e, h):
                return STUCK
        offload_end(e, h)
        emit(e, h)
        if state.ended > 0:
            drop_ended(e)
        offload_complete(e, h)
        recycle(e)
        if state.notify:
            return NOTIFY
