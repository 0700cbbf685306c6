"""The engine's state: dense arrays of records, one argument to every kernel.

Records rather than one array a field: a free-queue operation touches four fields of a block, which then share a cache line, and a
kernel call passes a dozen arrays instead of eighty. Rows of `requests` are slots reused after a request has been harvested; every
pool, arena and ring is sized outside the kernels, which stop and say so before they would run over an end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.pool import Pool
from kvsim.transfer.channel import Transfers, Ways

# Status of a request row.
FREE, PENDING, WAITING, PREEMPTED, LOADING, RUNNING, FINISHED, REJECTED = range(8)
# Why engines stopped: horizon reached, something to tell, no event can ever come, an array is full.
HORIZON, NOTIFY, STUCK, ARENA_FULL, JOBS_FULL, LOG_FULL, TRACE_FULL = range(7)
GO = -1
N_CLASSES = 40  # size classes (powers of two) of the arena

REQUEST = np.dtype(
    [
        # what was submitted
        ("order", "<i8"),  # ties of arrival times go by it
        ("tag", "<i8"),  # the submitter's own number
        ("prompt", "<i8"),
        ("output", "<i8"),
        ("run_lo", "<i8"),  # its chain: rows of runs ...
        ("run_hi", "<i8"),
        ("id_offset", "<i8"),  # ... each id shifted by this
        ("edge", "<i8"),  # first dependent (row of edges), -1: none
        ("waits_for", "<i8"),  # dependencies still open
        ("ready", "<f8"),  # earliest arrival its dependencies allow
        ("notify", "<i8"),  # stop the kernel when it ends
        ("remote", "<i8"),  # tokens whose KV another node hands over, 0: none (any more)
        ("giver", "<i8"),  # the node that does
        ("hold", "<i8"),  # keeps its blocks after its end, until it is told to let them go
        # where it stands
        ("status", "<i8"),
        ("computed", "<i8"),
        ("tokens", "<i8"),  # prompt + output produced so far
        ("new", "<i8"),  # scheduled in this step
        ("blocks", "<i8"),  # blocks held
        ("keyed", "<i8"),  # of these registered in the index
        ("offset", "<i8"),  # its segment of the arena ...
        ("size_class", "<i8"),  # ... of 2**size_class entries
        ("prefilling", "<i8"),  # holds a reservation for the rest of its prompt
        ("loaded", "<i8"),  # its load has arrived
        ("remote_from", "<f8"),  # when what is handed over went on its way ...
        ("remote_at", "<f8"),  # ... and has arrived
        ("q_prev", "<i8"),
        ("q_next", "<i8"),
        ("work", "<i8"),  # tokens scheduled over its life
        ("released", "<i8"),  # row and segment no longer needed
        ("spared", "<i8"),  # the connector needs them no more, the hold does
        # what is reported
        ("local", "<i8"),  # HBM hit of the last admission, tokens
        ("external", "<i8"),  # host hit of the first admission, tokens
        ("hbm_tokens", "<i8"),
        ("host_tokens", "<i8"),  # of these from below the host tier:
        ("ssd_tokens", "<i8"),
        ("pool_tokens", "<i8"),
        ("theoretical", "<i8"),
        ("here", "<i8"),  # as theoretical, of this engine alone
        ("cold", "<i8"),
        ("evicted", "<i8"),
        ("elsewhere", "<i8"),
        ("pending", "<i8"),
        ("partial", "<i8"),
        ("not_stored", "<i8"),
        ("preemptions", "<i8"),
        ("arrival", "<f8"),
        ("scheduled", "<f8"),
        ("first_token", "<f8"),
        ("last_token", "<f8"),
        ("finish", "<f8"),
        ("load_start", "<f8"),
        ("load_s", "<f8"),
    ],
    align=True,
)
EDGE = np.dtype([("target", "<i8"), ("delay", "<f8"), ("next", "<i8")], align=True)
CONFIG = np.dtype(
    [
        ("block_tokens", "<i8"),
        ("max_seqs", "<i8"),
        ("max_batched", "<i8"),
        ("threshold", "<i8"),
        ("host", "<i8"),
        ("prefix_cache", "<i8"),
        ("layerwise", "<i8"),  # layers that loads overlap with, 0: a request waits for its load
        ("node", "<i8"),  # its place among the nodes' ways
        ("order_seed", "<i8"),
    ],
    align=True,
)
STATE = np.dtype(
    [
        ("clock", "<f8"),
        ("steps", "<i8"),
        ("passes", "<i8"),  # scheduler passes, empty ones included
        ("live", "<i8"),  # arrived, not ended
        ("running", "<i8"),
        ("holding", "<i8"),  # loading or loaded, not yet running
        ("held", "<i8"),  # ended, their blocks kept until they have been handed over
        ("blocked", "<i8"),  # nothing can happen before blocks are let go, or a request arrives
        ("receiving", "<i8"),  # of the holding, being handed over by another node
        ("landed", "<i8"),  # handed over, waiting to be told
        ("overlap", "<f8"),  # when the loads that this step overlaps with have arrived
        ("inbox", "<i8"),
        ("limit", "<i8"),  # most tokens of a prompt chunk in this pass, 0: no limit
        ("scheduled", "<i8"),
        ("fresh", "<i8"),  # of the scheduled, the first that was admitted in this pass
        ("preempted", "<i8"),
        ("ended", "<i8"),  # ended in the last step
        ("finished", "<i8"),  # waiting to be harvested
        ("let_go", "<i8"),  # ended rows whose connector has just become done with them
        ("notify", "<i8"),
        ("arena_top", "<i8"),
        ("flushes", "<i8"),
        ("busy_s", "<f8"),
        ("arrived", "<i8"),
        ("rejected", "<i8"),
        ("done", "<i8"),
        ("preemptions", "<i8"),
    ],
    align=True,
)


STEP = np.dtype([("start", "<f8"), ("end", "<f8"), ("prefill", "<i8"), ("decodes", "<i8")], align=True)


def blank_row() -> Any:
    """A request to which nothing has happened yet."""
    row = np.zeros(1, REQUEST).view(np.recarray)
    row.edge, row.status, row.remote_at = -1, PENDING, np.inf
    row.scheduled = row.first_token = row.last_token = row.finish = row.load_start = -1.0
    return row


class Trace(NamedTuple):
    """Steps, for a timeline: `steps` STEP [n], `meta` [1]: how many were written. No size: none are."""

    steps: Any
    meta: NDArray[np.int64]


class Engine(NamedTuple):
    """Everything the kernels read and write, but for the connector's own state. R rows, S = max_num_seqs, A arena entries, K ids."""

    config: Any  # CONFIG [1]
    state: Any  # STATE [1]
    requests: Any  # REQUEST [R + 1]; the last row is the waiting queue's fence post
    blank: Any  # REQUEST [1]: a row before anything happened to it
    edges: Any  # EDGE
    pool: Pool  # HBM
    ids: NDArray[np.int32]  # [A] key of each block of a request's chain
    table: NDArray[np.int32]  # [A] the HBM block that holds it
    vacant: NDArray[np.int64]  # [N_CLASSES] head of the free segments of a size class, -1: none
    running: NDArray[np.int32]  # [S]
    holding: NDArray[np.int32]  # [R]
    scheduled: NDArray[np.int32]  # [S]
    preempted: NDArray[np.int32]  # [S]
    ended: NDArray[np.int32]  # [S]
    finished: NDArray[np.int32]  # [R]
    let_go: NDArray[np.int32]  # [R]
    inbox_s: NDArray[np.float64]  # [R] binary heap by (time, order)
    inbox_row: NDArray[np.int32]
    hits: NDArray[np.int32]  # scratch: longest chain
    run_start: NDArray[np.int32]
    run_length: NDArray[np.int32]
    seen: NDArray[np.uint8]  # [K] bits of `kvsim.cache.tier`: what became of a key here
    met: NDArray[np.uint8]  # [K] met anywhere in the cluster; shared by its engines
    params: NDArray[np.float64]  # of the step-time model
    acc: NDArray[np.float64]
    itl: NDArray[np.int64]  # histogram of the time between tokens, since it was last cleared
    landed: NDArray[np.int32]  # [R] rows
    transfers: Transfers
    nics: Ways  # of all nodes: 2 node out, 2 node + 1 in; shared
    trace: Trace
