"""Engines under one clock: always the one that stands earliest makes its next step, in one kernel call up to the next thing to be told.

Law. No engine starts a step at or after `until`, or after the time at which another one has something to tell: whatever comes of that
arrives before the step. Engines that stand at the same time go in their order.

Engines of a group step together: data-parallel ranks of a mixture of experts exchange tokens in every layer, so a step lasts as long
as that of the slowest of them, and ranks without work make dummy steps.
"""

from __future__ import annotations

import numpy as np

from kvsim.cache.offload.none import open_work as offload_open_work
from kvsim.engine.loop import admit, conclude, due, execute, next_event, prepare, record_step
from kvsim.engine.state import GO, HORIZON, NOTIFY, STUCK
from kvsim.jit import kernel

N_REASONS = 16  # what `advance` returns: reason + N_REASONS * engine


@kernel
def step(es, hs, lo, hi, at, until, told):  # type: ignore[no-untyped-def]
    """One iteration of engines lo..hi, which step together, from `at` on; GO, NOTIFY, or reason + N_REASONS * engine where one can't."""
    for i in range(lo, hi):
        es[i].state[0].clock = at
        es[i].state[0].blocked = 0
        reason = admit(es[i], hs[i])
        if reason != GO:
            return reason + N_REASONS * i
    longest, scheduled, upcoming, stuck = 0.0, 0, np.inf, -1
    for i in range(lo, hi):
        prepare(es[i], hs[i])
        at = max(at, es[i].state[0].clock)
    for i in range(lo, hi):
        es[i].state[0].clock = at  # where one waits for a flush, all do
        longest = max(longest, execute(es[i]))
        scheduled += es[i].state[0].scheduled
        upcoming = min(upcoming, next_event(es[i], hs[i]))
        # Nothing is admitted in a pass that preempts: the next one may find room.
        if es[i].state[0].live > 0 and es[i].state[0].preempted == 0 and not offload_open_work(es[i], hs[i]):
            stuck = i
    if scheduled == 0 and upcoming == np.inf and stuck >= 0:
        if es[stuck].state[0].held == 0:
            return STUCK + N_REASONS * stuck
        es[stuck].state[0].blocked = 1
    out = GO
    for i in range(lo, hi):
        state = es[i].state[0]
        if state.scheduled > 0:
            record_step(es[i], longest)
        if scheduled > 0:
            state.clock += longest
        elif upcoming < np.inf:
            state.clock = max(state.clock, min(upcoming, until))
        if conclude(es[i], hs[i]):
            told[i] = state.clock
            out = NOTIFY
    return out


@kernel
def advance(es, hs, groups, until, told):  # type: ignore[no-untyped-def]
    """Run until all stand at `until`, or at the first time at which one has something to tell.

    `groups` [engines, 2]: the engines from the first to before the second step with this one. `told` [engines + 1]: when each has something
    to tell (infinity: it hasn't), and last the first of these. Returns HORIZON, or reason + N_REASONS * engine where an array must grow or
    nothing can happen any more.
    """
    horizon = min(until, told[len(es)])
    while True:
        best, at = -1, horizon
        for i in range(len(es)):
            t = due(es[i], hs[i])
            if t < at:
                best, at = i, t
        if best < 0:
            return HORIZON
        reason = step(es, hs, groups[best, 0], groups[best, 1], at, horizon, told)
        if reason == NOTIFY:
            told[len(es)] = min(told[len(es)], es[best].state[0].clock)
            horizon = min(horizon, told[len(es)])
        elif reason != GO:
            return reason


@kernel
def read_loads(es, running, waiting, usage):  # type: ignore[no-untyped-def]
    """Fill the arrays [engines] with requests in the batch, requests that wait for it, and the share of HBM blocks that requests hold."""
    for i in range(len(es)):
        state, pool = es[i].state[0], es[i].pool.meta[0]
        running[i] = state.running
        waiting[i] = state.live - state.running + state.inbox
        usage[i] = 1.0 - pool.free / (pool.end - 1)
