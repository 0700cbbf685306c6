"""What waits for what within a session: the edges between its requests, taken once from a workload.

A turn waits `delay_s` after the previous turn of its stream ended; a sub-agent's first turn after the request that spawned it; a turn
that joins a sub-agent also for the end of that stream. A stream's first turn with nothing to wait for comes `delay_s`
after the session began.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class SessionPlan:
    """Edges of all sessions over workload rows: row `target` waits `delay_s` after the end of row `on`. Sessions are contiguous in both.

    `first` [s + 1] rows of a session, `edge_first` [s + 1] its edges, `start_s` [n] the delay of rows that wait for nothing (NaN: others),
    `last_of_stream` [n].
    """

    target: NDArray[np.int64]
    on: NDArray[np.int64]
    delay_s: NDArray[np.float64]
    first: NDArray[np.int64]
    edge_first: NDArray[np.int64]
    start_s: NDArray[np.float64]
    last_of_stream: NDArray[np.bool_]

    @classmethod
    def of(cls, workload: Workload) -> SessionPlan:
        """The plan of `workload`; a delay the trace doesn't give is zero."""
        n = workload.requests
        delay = np.nan_to_num(workload.delay_s, nan=0.0)
        begins = workload.turn == 0
        rows = np.arange(n)
        stream_first, stream_last = workload.stream_row[:-1], workload.stream_row[1:] - 1
        later = rows[~begins]
        spawned = workload.stream_spawn >= 0
        joined = workload.stream_join >= 0
        target = np.concatenate([later, stream_first[spawned], workload.stream_join[joined].astype(np.int64)])
        on = np.concatenate([later - 1, workload.stream_spawn[spawned].astype(np.int64), stream_last[joined]])
        wait = np.concatenate([delay[later], delay[stream_first[spawned]], np.zeros(int(joined.sum()))])
        order = np.argsort(workload.session[target], kind="stable")
        start = np.full(n, np.nan)
        roots = stream_first[~spawned]
        start[roots] = delay[roots]
        last = np.zeros(n, bool)
        last[stream_last] = True
        sessions = np.arange(workload.sessions + 1)
        return cls(
            target=target[order],
            on=on[order],
            delay_s=wait[order],
            first=np.searchsorted(workload.session, sessions),
            edge_first=np.searchsorted(workload.session[target[order]], sessions),
            start_s=start,
            last_of_stream=last,
        )
