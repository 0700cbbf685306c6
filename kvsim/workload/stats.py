"""Statistics of a workload: sizes, times, and the hit rate of an infinite cache."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.workload.workload import Ints, Longs, Seconds, Workload

PERCENTILES = (10, 25, 50, 75, 90, 95, 99)


@dataclass(frozen=True)
class Distribution:
    """Of one column; percentiles interpolate linearly."""

    sum: float
    mean: float
    min: float
    p10: float
    p25: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class TraceStats:
    """What `kvsim trace stats` shows; a value that has no meaning for a trace is None."""

    name: str
    format: str
    scope: str
    block_tokens: int
    requests: int
    sessions: int
    streams: int
    turns: Distribution  # requests of a session, its sub-agents' included
    input_tokens: Distribution
    output_tokens: Distribution
    new_tokens: Distribution  # prompt tokens an infinite cache would not have
    delay_s: Distribution | None  # between the end of a turn and the next turn of its stream
    session_duration_s: Distribution | None  # first start to last start, of sessions of several requests
    duration_s: float | None  # first arrival to last; None where not every arrival is known
    prompt_blocks: int
    unique_blocks: int
    unique_tokens: int
    theoretical_hit_rate: float | None  # of prompt blocks
    theoretical_hit_rate_tokens: float | None  # of prompt tokens
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class InfiniteCache:
    """What a cache that never evicts would do, requests in the order of `nominal_start_s`, ties by row."""

    hit_blocks: Ints  # [n] leading prompt blocks held by earlier requests, a partial last block included
    hit_tokens: Longs  # [n] the tokens in them
    unique_blocks: int


def nominal_start_s(workload: Workload) -> Seconds:
    """[n] When each request starts if sessions without a recorded start begin at 0 and unrecorded requests take no time."""
    begin = np.nan_to_num(workload.session_start_s)
    start = begin[workload.session] + workload.recorded_start_s
    for row in np.flatnonzero(np.isnan(start)):
        spawn = workload.stream_spawn[workload.stream[row]]
        before = row - 1 if workload.turn[row] else spawn
        start[row] = workload.delay_s[row] + (start[before] if before >= 0 else begin[workload.session[row]])
    return start


def infinite_cache(workload: Workload, *, with_outputs: bool | None = None) -> InfiniteCache:
    """Hits of every request in an infinite cache. `with_outputs`: answers are cached too, as in an engine.

    The default counts what the trace lists: outputs only where it names their blocks.
    """
    from kvsim.workload.chains import infinite_hits

    if with_outputs is None:
        with_outputs = workload.listed_outputs
    order = np.argsort(nominal_start_s(workload), kind="stable")
    seen = np.zeros(workload.unique_ids, np.bool_)
    hits = np.zeros(workload.requests, np.int32)
    infinite_hits(
        order, workload.run_offset, workload.run_start, workload.run_length, workload.prompt_blocks, workload.tail_id, with_outputs, seen,
        hits,
    )  # fmt: skip
    return InfiniteCache(hits, np.minimum(hits.astype(np.int64) * workload.block_tokens, workload.input_tokens), int(seen.sum()))


def trace_stats(workload: Workload) -> TraceStats:
    """The statistics of `workload`."""
    cache = infinite_cache(workload)
    prompt_blocks = int(workload.prompt_blocks.sum() + (workload.tail_id >= 0).sum())
    later = workload.turn > 0
    start = nominal_start_s(workload)
    sessions = np.flatnonzero(np.diff(workload.session, prepend=-1))
    lasting = np.maximum.reduceat(start, sessions) - np.minimum.reduceat(start, sessions)
    several = np.bincount(workload.session) > 1
    recorded = not np.isnan(workload.recorded_start_s).any()
    absolute = not np.isnan(workload.arrival_s).any()
    return TraceStats(
        name=workload.name,
        format=workload.format,
        scope=workload.scope,
        block_tokens=workload.block_tokens,
        requests=workload.requests,
        sessions=workload.sessions,
        streams=workload.streams,
        turns=distribution(np.bincount(workload.session)),
        input_tokens=distribution(workload.input_tokens),
        output_tokens=distribution(workload.output_tokens),
        new_tokens=distribution(workload.input_tokens - cache.hit_tokens),
        delay_s=distribution(workload.delay_s[later]) if later.any() else None,
        session_duration_s=distribution(lasting[several]) if recorded and several.any() else None,
        duration_s=float(start.max() - start.min()) if absolute else None,
        prompt_blocks=prompt_blocks,
        unique_blocks=cache.unique_blocks,
        unique_tokens=cache.unique_blocks * workload.block_tokens,
        theoretical_hit_rate=float(cache.hit_blocks.sum() / prompt_blocks) if prompt_blocks else None,
        theoretical_hit_rate_tokens=float(cache.hit_tokens.sum() / workload.input_tokens.sum()),
        notes=workload.notes,
    )


def distribution(values: NDArray[Any]) -> Distribution:
    """Sum, mean, extremes and percentiles of a column with at least one value; whole numbers stay whole where they can."""
    points = np.percentile(values, PERCENTILES)
    plain = [v.item() for v in (values.sum(), values.mean(), values.min(), *points, values.max())]
    return Distribution(*plain)
