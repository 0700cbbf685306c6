"""FIFO ways (one a direction of a link), and the transfer jobs of an engine on them.

Law. A job of n blocks takes latency + n * seconds_per_block * slowdown; it starts when the way is free and never before it is submitted;
the jobs of a way end in the order they were submitted. Bytes carried = sum over jobs. The slowdown is settled when a job starts:

    slow * (1 / duplex if the other direction is busy) * max(1, active * link / shared)

`slow` is 1 but for a degraded link; `active` counts the members of a shared memory (two GPUs behind one Grace) that move in this direction.
So the end of a job is known when it is submitted. Ways of the node (drives, NICs) are shared arrays of its engines and used in the
order of the engines' passes; an engine's own jobs on them are queued here too, to be taken in when they end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.bins import FIRST_EDGE_S, LOG_RATIO, N_BINS
from kvsim.errors import LawError
from kvsim.jit import kernel

# Channels of an engine: device to host and back on its own link; then those on ways of the node: reads of SSD and pool, writes to them.
DOWN, UP, SSD_READ, POOL_READ, SSD_WRITE, POOL_WRITE = range(6)
CHANNELS = 6
WAY = np.dtype(
    [
        ("latency", "<f8"),
        ("per_block", "<f8"),
        ("slow", "<f8"),
        ("duplex", "<f8"),  # share of its rate that is left while the other direction is busy
        ("per_shared", "<f8"),  # link rate / rate of the memory behind it, 0: not shared
        ("free_at", "<f8"),
        ("busy", "<f8"),
        ("blocks", "<i8"),
        ("jobs", "<i8"),
    ],
    align=True,
)
RING = np.dtype([("head", "<i8"), ("count", "<i8")], align=True)
MOVE = np.dtype([("start", "<f8"), ("end", "<f8"), ("channel", "<i8"), ("blocks", "<i8")], align=True)
JOB = np.dtype(
    [
        ("id", "<i8"),
        ("channel", "<i8"),
        ("row", "<i8"),
        ("lo", "<i8"),
        ("hi", "<i8"),
        ("blocks", "<i8"),
        ("began", "<f8"),
        ("done", "<f8"),
        ("flush", "<i8"),
        ("submitted", "<i8"),
        ("live", "<i8"),
    ],
    align=True,
)


class Ways(NamedTuple):
    """`way` [k]: k/2 pairs of opposite directions, side by side; `waits` [k, bins]: histogram of the time jobs waited for their way;
    `sharing` [members, 2]: until when each member of a shared memory moves, in each direction; `own` [1]: which one this is."""

    way: Any
    waits: NDArray[np.int64]
    sharing: NDArray[np.float64]
    own: NDArray[np.int64]


class Transfers(NamedTuple):
    """`link`: the engine's host link, down and up; `jobs` [slots], `rings` [channels] and `queue` [channels, slots]: job slots in order of
    submission; `free` [slots], `meta` [3] (free slots, next id, moves written); `moves` MOVE [n] for a timeline, no size: none are kept."""

    link: Ways
    jobs: Any
    rings: Any
    queue: NDArray[np.int32]
    free: NDArray[np.int32]
    meta: NDArray[np.int64]
    moves: Any


def make_ways(pairs: int, latency_s: float = 0.0, first_s: float = 0.0, second_s: float = 0.0, duplex: float = 1.0) -> Ways:
    """Idle ways, `pairs` pairs alike: seconds a block in the first direction and in the second."""
    way = np.zeros(2 * pairs, WAY).view(np.recarray)
    way.latency, way.per_block, way.slow, way.duplex = latency_s, np.tile([first_s, second_s], pairs), 1.0, duplex
    return Ways(way, np.zeros((2 * pairs, N_BINS), np.int64), np.zeros((0, 2)), np.zeros(1, np.int64))


def make_transfers(slots: int, link: Ways, *, traced: bool = False) -> Transfers:
    """No jobs, room for `slots` of them; `traced`: their moves are kept."""
    return Transfers(
        link,
        np.zeros(slots, JOB).view(np.recarray),
        np.zeros(CHANNELS, RING).view(np.recarray),
        np.zeros((CHANNELS, slots), np.int32),
        np.arange(slots - 1, -1, -1, dtype=np.int32),
        np.array([slots, 0, 0], np.int64),
        np.zeros(4 * slots if traced else 0, MOVE).view(np.recarray),
    )


@kernel
def log_bin(seconds):  # type: ignore[no-untyped-def]
    """Bin of `seconds` in the log-spaced histogram of `kvsim.bins`; the outer bins are open."""
    if seconds <= FIRST_EDGE_S:
        return 0
    return min(int(np.log(seconds / FIRST_EDGE_S) / LOG_RATIO), N_BINS - 1)


@kernel
def new_job(transfers, channel, row, lo, hi, blocks):  # type: ignore[no-untyped-def]
    """A job that waits to be submitted; returns its slot. Room is assumed (`free_slots`)."""
    transfers.meta[0] -= 1
    slot = transfers.free[transfers.meta[0]]
    job = transfers.jobs[slot]
    job.id = transfers.meta[1]
    job.channel = channel
    job.row = row
    job.lo = lo
    job.hi = hi
    job.blocks = blocks
    job.done = np.inf
    job.flush = 0
    job.submitted = 0
    job.live = 1
    transfers.meta[1] += 1
    return slot


@kernel
def slowdown(ways, w, start):  # type: ignore[no-untyped-def]
    """What a job that starts at `start` on way `w` takes longer than alone."""
    way = ways.way[w]
    factor = way.slow
    if ways.way[w ^ 1].free_at > start:
        factor /= way.duplex
    active = 1
    for m in range(ways.sharing.shape[0]):
        if m != ways.own[0] and ways.sharing[m, w & 1] > start:
            active += 1
    return factor * max(1.0, active * way.per_shared)


@kernel
def occupy(ways, w, blocks, now, start, done):  # type: ignore[no-untyped-def]
    """Way `w` is taken from `start` to `done` by a job submitted at `now`."""
    way = ways.way[w]
    way.free_at = done
    way.busy += done - start
    way.blocks += blocks
    way.jobs += 1
    ways.waits[w, log_bin(start - now)] += 1
    if ways.sharing.shape[0] > 0:
        ways.sharing[ways.own[0], w & 1] = done


@kernel
def travel(ways, w, blocks, now):  # type: ignore[no-untyped-def]
    """`blocks` go over way `w`, submitted at `now`: when they have arrived."""
    way = ways.way[w]
    start = max(now, way.free_at)
    done = start + way.latency + blocks * way.per_block * slowdown(ways, w, start)
    occupy(ways, w, blocks, now, start, done)
    return done


@kernel
def travel_both(ways, a, b, blocks, now):  # type: ignore[no-untyped-def]
    """As `travel`, over two ways at once, such as out of one NIC and into another: the slower one sets the pace."""
    start = max(now, max(ways.way[a].free_at, ways.way[b].free_at))
    pace = max(ways.way[a].per_block * slowdown(ways, a, start), ways.way[b].per_block * slowdown(ways, b, start))
    done = start + max(ways.way[a].latency, ways.way[b].latency) + blocks * pace
    occupy(ways, a, blocks, now, start, done)
    occupy(ways, b, blocks, now, start, done)
    return done


@kernel
def submit_over(transfers, slot, ways, w, now):  # type: ignore[no-untyped-def]
    """Send a job over way `w` at time `now`, behind those of its channel."""
    job = transfers.jobs[slot]
    job.began = max(now, ways.way[w].free_at)
    job.done = travel(ways, w, job.blocks, now)
    job.submitted = 1
    ring = transfers.rings[job.channel]
    transfers.queue[job.channel, (ring.head + ring.count) % transfers.queue.shape[1]] = slot
    ring.count += 1
    if transfers.moves.shape[0] > 0:
        move = transfers.moves[transfers.meta[2]]
        move.start = job.began
        move.end = job.done
        move.channel = job.channel
        move.blocks = job.blocks
        transfers.meta[2] += 1


@kernel
def submit(transfers, slot, now):  # type: ignore[no-untyped-def]
    """Send a job over the engine's own link at time `now`."""
    submit_over(transfers, slot, transfers.link, transfers.jobs[slot].channel, now)


@kernel
def next_done(transfers):  # type: ignore[no-untyped-def]
    """Slot of the submitted job that ends first (ties: the older job), or -1."""
    best = -1
    for c in range(CHANNELS):
        ring = transfers.rings[c]
        if ring.count == 0:
            continue
        slot = transfers.queue[c, ring.head]
        if best < 0:
            best = slot
            continue
        a, b = transfers.jobs[slot], transfers.jobs[best]
        if a.done < b.done or (a.done == b.done and a.id < b.id):
            best = slot
    return best


@kernel
def retire(transfers, slot):  # type: ignore[no-untyped-def]
    """Take the job, the first of its channel's queue, out of it and free its slot."""
    job = transfers.jobs[slot]
    ring = transfers.rings[job.channel]
    ring.head = (ring.head + 1) % transfers.queue.shape[1]
    ring.count -= 1
    job.live = 0
    transfers.free[transfers.meta[0]] = slot
    transfers.meta[0] += 1


def check_transfers(transfers: Transfers) -> None:
    """Free slots + live jobs = slots, and no more jobs queued than live; raises `LawError`."""
    live = int(transfers.jobs.live.sum())
    if live + int(transfers.meta[0]) != transfers.jobs.size or int(transfers.rings["count"].sum()) > live:
        raise LawError(f"transfer jobs: {live} live + {int(transfers.meta[0])} free slots != {transfers.jobs.size}")


def grow_transfers(transfers: Transfers, slots: int) -> Transfers:
    """The same jobs with `slots` slots; the queues keep their order."""
    old = transfers.jobs.size
    queue = np.zeros((CHANNELS, slots), np.int32)
    for c, ring in enumerate(transfers.rings):
        queue[c, : ring["count"]] = transfers.queue[c, (ring["head"] + np.arange(ring["count"])) % old]
    transfers.rings["head"] = 0
    free = grown(transfers.free, slots)
    n = int(transfers.meta[0])
    free[n : n + slots - old] = np.arange(slots - 1, old - 1, -1)
    meta = transfers.meta.copy()
    meta[0] += slots - old
    moves = grown(transfers.moves, 4 * slots) if transfers.moves.size else transfers.moves
    return transfers._replace(jobs=grown(transfers.jobs, slots), queue=queue, free=free, meta=meta, moves=moves)
