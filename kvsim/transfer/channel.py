"""FIFO channels, one a direction, and the transfer jobs on them.

Law. A job of n blocks takes latency + n * seconds_per_block; it starts when the channel is free and never before it is submitted;
the jobs of a channel end in the order they were submitted. Bytes carried = sum over jobs.

Not modelled here: sharing between nodes, duplex efficiency.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.bins import FIRST_EDGE_S, LOG_RATIO, N_BINS
from kvsim.errors import LawError
from kvsim.jit import kernel

DOWN, UP = 0, 1  # device to host, host to device
CHANNEL = np.dtype(
    [
        ("latency", "<f8"),
        ("per_block", "<f8"),
        ("free_at", "<f8"),
        ("busy", "<f8"),
        ("blocks", "<i8"),
        ("jobs", "<i8"),
        ("head", "<i8"),
        ("count", "<i8"),
    ],
    align=True,
)
JOB = np.dtype(
    [
        ("id", "<i8"),
        ("channel", "<i8"),
        ("row", "<i8"),
        ("lo", "<i8"),
        ("hi", "<i8"),
        ("blocks", "<i8"),
        ("done", "<f8"),
        ("flush", "<i8"),
        ("submitted", "<i8"),
        ("live", "<i8"),
    ],
    align=True,
)


class Transfers(NamedTuple):
    """`channels` [2], `jobs` [slots], `queue` [2, slots] (rings of job slots in submission order), `free` [slots], `meta` [2] (free slots,
    next id), `waits` [2, bins]: histogram of the time jobs waited for their channel."""

    channels: Any
    jobs: Any
    queue: NDArray[np.int32]
    free: NDArray[np.int32]
    meta: NDArray[np.int64]
    waits: NDArray[np.int64]


def make_transfers(slots: int, latency_s: float, down_s: float, up_s: float) -> Transfers:
    """Two idle channels; `down_s` and `up_s` are seconds a block."""
    channels = np.zeros(2, CHANNEL).view(np.recarray)
    channels.latency, channels.per_block = latency_s, (down_s, up_s)
    return Transfers(
        channels,
        np.zeros(slots, JOB).view(np.recarray),
        np.zeros((2, slots), np.int32),
        np.arange(slots - 1, -1, -1, dtype=np.int32),
        np.array([slots, 0], np.int64),
        np.zeros((2, N_BINS), np.int64),
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
def submit(transfers, slot, now):  # type: ignore[no-untyped-def]
    """Put the job behind its channel's queue at time `now`."""
    job = transfers.jobs[slot]
    channel = transfers.channels[job.channel]
    start = max(now, channel.free_at)
    channel.free_at = start + channel.latency + job.blocks * channel.per_block
    channel.busy += channel.free_at - start
    channel.blocks += job.blocks
    channel.jobs += 1
    transfers.waits[job.channel, log_bin(start - now)] += 1
    job.done = channel.free_at
    job.submitted = 1
    size = transfers.queue.shape[1]
    transfers.queue[job.channel, (channel.head + channel.count) % size] = slot
    channel.count += 1


@kernel
def next_done(transfers):  # type: ignore[no-untyped-def]
    """Slot of the submitted job that ends first (ties: the older job), or -1."""
    best = -1
    for c in range(2):
        channel = transfers.channels[c]
        if channel.count == 0:
            continue
        slot = transfers.queue[c, channel.head]
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
    channel = transfers.channels[job.channel]
    channel.head = (channel.head + 1) % transfers.queue.shape[1]
    channel.count -= 1
    job.live = 0
    transfers.free[transfers.meta[0]] = slot
    transfers.meta[0] += 1


def check_transfers(transfers: Transfers) -> None:
    """Free slots + live jobs = slots, and no more jobs queued than live; raises `LawError`."""
    live = int(transfers.jobs.live.sum())
    if live + int(transfers.meta[0]) != transfers.jobs.size or int(transfers.channels["count"].sum()) > live:
        raise LawError(f"transfer jobs: {live} live + {int(transfers.meta[0])} free slots != {transfers.jobs.size}")


def grow_transfers(transfers: Transfers, slots: int) -> Transfers:
    """The same jobs with `slots` slots; the queues keep their order."""
    old = transfers.jobs.size
    queue = np.zeros((2, slots), np.int32)
    for c in range(2):
        head, count = int(transfers.channels["head"][c]), int(transfers.channels["count"][c])
        queue[c, :count] = transfers.queue[c, (head + np.arange(count)) % old]
        transfers.channels["head"][c] = 0
    free = grown(transfers.free, slots)
    n = int(transfers.meta[0])
    free[n : n + slots - old] = np.arange(slots - 1, old - 1, -1)
    meta = transfers.meta.copy()
    meta[0] += slots - old
    return transfers._replace(jobs=grown(transfers.jobs, slots), queue=queue, free=free, meta=meta)
