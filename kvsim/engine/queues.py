"""The engine's queues: the waiting list (linked through the request rows), the inbox (a heap of arrivals to come), the arena."""

from __future__ import annotations

import numpy as np

from kvsim.cache.offload.none import joined as offload_joined
from kvsim.cache.tier import MET
from kvsim.engine.state import N_CLASSES, PENDING, REJECTED, WAITING
from kvsim.jit import kernel


@kernel
def insert_after(e, r, after):  # type: ignore[no-untyped-def]
    """Link request `r` behind row `after` of the waiting list."""
    following = e.requests[after].q_next
    e.requests[r].q_prev = after
    e.requests[r].q_next = following
    e.requests[after].q_next = r
    e.requests[following].q_prev = r


@kernel
def append(e, r):  # type: ignore[no-untyped-def]
    """Join the back of the waiting list."""
    post = e.requests.shape[0] - 1
    insert_after(e, r, e.requests[post].q_prev)


@kernel
def prepend(e, r):  # type: ignore[no-untyped-def]
    """Join the front of the waiting list."""
    insert_after(e, r, e.requests.shape[0] - 1)


@kernel
def remove(e, r):  # type: ignore[no-untyped-def]
    """Leave the waiting list."""
    before, following = e.requests[r].q_prev, e.requests[r].q_next
    e.requests[before].q_next = following
    e.requests[following].q_prev = before


@kernel
def earlier(e, i, j):  # type: ignore[no-untyped-def]
    """Whether entry i of the inbox comes before entry j: by time, then by the submitter's order."""
    if e.inbox_s[i] != e.inbox_s[j]:
        return e.inbox_s[i] < e.inbox_s[j]
    return e.requests[e.inbox_row[i]].order < e.requests[e.inbox_row[j]].order


@kernel
def swap(e, i, j):  # type: ignore[no-untyped-def]
    """Exchange two entries of the inbox."""
    e.inbox_s[i], e.inbox_s[j] = e.inbox_s[j], e.inbox_s[i]
    e.inbox_row[i], e.inbox_row[j] = e.inbox_row[j], e.inbox_row[i]


@kernel
def push_inbox(e, r, at):  # type: ignore[no-untyped-def]
    """Request `r` arrives at time `at`."""
    i = e.state[0].inbox
    e.state[0].inbox += 1
    e.inbox_s[i] = at
    e.inbox_row[i] = r
    e.requests[r].status = PENDING
    e.requests[r].arrival = at
    while i > 0 and earlier(e, i, (i - 1) // 2):
        swap(e, i, (i - 1) // 2)
        i = (i - 1) // 2


@kernel
def pop_inbox(e):  # type: ignore[no-untyped-def]
    """Take the first arrival out of the inbox."""
    r = e.inbox_row[0]
    n = e.state[0].inbox - 1
    e.state[0].inbox = n
    swap(e, 0, n)
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            return r
        if child + 1 < n and earlier(e, child + 1, child):
            child += 1
        if not earlier(e, child, i):
            return r
        swap(e, i, child)
        i = child


@kernel
def fire_edges(e, r, now):  # type: ignore[no-untyped-def]
    """Request `r` ended: those that only waited for it arrive after their delay."""
    edge = e.requests[r].edge
    while edge >= 0:
        link = e.edges[edge]
        target = e.requests[link.target]
        target.waits_for -= 1
        target.ready = max(target.ready, now + link.delay)
        if target.waits_for == 0:
            push_inbox(e, link.target, target.ready)
        edge = link.next


@kernel
def add_edges(e, at, targets, on, delay_s):  # type: ignore[no-untyped-def]
    """Write edges from row `at` of the edge table on: targets[i] arrives delay_s[i] after the end of on[i]."""
    for i in range(targets.shape[0]):
        edge = e.edges[at + i]
        edge.target = targets[i]
        edge.delay = delay_s[i]
        edge.next = e.requests[on[i]].edge
        e.requests[on[i]].edge = at + i
        e.requests[targets[i]].waits_for += 1


@kernel
def take_segment(e, entries):  # type: ignore[no-untyped-def]
    """(offset, size class) of an arena segment of at least `entries`; offset -1 when the arena is full."""
    size_class = 0
    while (1 << size_class) < entries:
        size_class += 1
    base = e.vacant[size_class]
    if base >= 0:
        e.vacant[size_class] = e.ids[base]
        return base, size_class
    base = e.state[0].arena_top
    if base + (1 << size_class) > e.ids.shape[0]:
        return -1, size_class
    e.state[0].arena_top = base + (1 << size_class)
    return base, size_class


@kernel
def give_segment(e, r):  # type: ignore[no-untyped-def]
    """The connector needs the chain of `r` no more: return its arena segment, unless its blocks are held."""
    request = e.requests[r]
    request.spared = 1
    if request.hold:
        return
    e.ids[request.offset] = e.vacant[request.size_class]
    e.vacant[request.size_class] = request.offset
    request.released = 1


@kernel
def finish_row(e, r, status, now):  # type: ignore[no-untyped-def]
    """Mark the end of `r` and hand the row to the harvest."""
    state, request = e.state[0], e.requests[r]
    request.status = status
    request.finish = now
    if status == REJECTED:
        request.hold = 0
    e.finished[state.finished] = r
    state.finished += 1
    if request.notify:
        state.notify = 1
    fire_edges(e, r, now)


@kernel
def join(e, h):  # type: ignore[no-untyped-def]
    """Requests that arrived by now join the waiting list. False: the arena is full, call again with a larger one.

    A request that could never fit in HBM is rejected here. Its theoretical hit is taken here too: leading blocks met before.
    """
    state, size = e.state[0], e.config[0].block_tokens
    while state.inbox > 0 and e.inbox_s[0] <= state.clock:
        request = e.requests[e.inbox_row[0]]
        chain = (request.prompt + request.output) // size
        base, size_class = take_segment(e, chain + 2)
        if base < 0:
            return False
        r = pop_inbox(e)
        request.offset = base
        request.size_class = size_class
        state.arrived += 1
        i = base
        for run in range(request.run_lo, request.run_hi):
            key = e.run_start[run] + request.id_offset
            for k in range(min(e.run_length[run], base + chain - i)):
                e.ids[i] = key + k
                i += 1
        if (request.prompt + request.output - 1 + size - 1) // size > e.pool.meta[0].end - 1 or request.prompt + request.output < 2:
            state.rejected += 1
            finish_row(e, r, REJECTED, state.clock)
            give_segment(e, r)
            continue
        met, here = 0, 0
        for k in range(request.prompt // size):
            key = e.ids[base + k]
            met += met == k and e.met[key] != 0
            here += here == k and e.seen[key] != 0
            e.met[key] = 1
            e.seen[key] |= MET
        offload_joined(e, h, r)
        request.theoretical = met * size
        request.here = here * size
        request.tokens = request.prompt
        request.status = WAITING
        state.live += 1
        append(e, r)
    return True


@kernel
def enter(e, r, number, run_lo, run_hi, id_offset, prompt, output, at, remote, giver, hold):  # type: ignore[no-untyped-def]
    """A request arrives at `at` in the free row `r`, to be told of at its end."""
    e.requests[r] = e.blank[0]
    request = e.requests[r]
    request.order = number
    request.tag = number
    request.prompt = prompt
    request.output = output
    request.run_lo = run_lo
    request.run_hi = run_hi
    request.id_offset = id_offset
    request.notify = 1
    request.remote = remote
    request.giver = giver
    request.hold = hold
    push_inbox(e, r, at)


def fresh_vacancies() -> np.ndarray:
    """No free segment in any size class."""
    return np.full(N_CLASSES, -1, np.int64)
