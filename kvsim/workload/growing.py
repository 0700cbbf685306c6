"""Workloads of growing contexts: every turn re-sends what came before, until the context is replaced by a new one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import ScenarioError
from kvsim.workload.workload import Ints, Longs, Seconds, Workload


@dataclass(frozen=True)
class LogNormal:
    """A log-normal quantity: its median and the standard deviation of its logarithm (0: always the median)."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        if not (self.median > 0 and self.sigma >= 0 and math.isfinite(self.median) and math.isfinite(self.sigma)):
            raise ScenarioError(f"a log-normal needs median > 0 and sigma >= 0, got median {self.median} and sigma {self.sigma}")

    def draw(self, rng: np.random.Generator, size: int) -> Seconds:
        """[size] independent values."""
        return self.median * np.exp(self.sigma * rng.standard_normal(size))

    def draw_whole(self, rng: np.random.Generator, size: int, most: int) -> Longs:
        """[size] independent values rounded to whole numbers of 1 to `most`."""
        return np.clip(np.rint(self.draw(rng, size)), 1, most).astype(np.int64)


def require(holds: bool, message: str) -> None:
    """Raise `ScenarioError` with `message` unless `holds`."""
    if not holds:
        raise ScenarioError(message)


@dataclass(frozen=True)
class Turns:
    """Requests in order of session, then turn, [n] each; `context` counts up from 0 where one replaces another of the session."""

    session: Longs
    context: Longs
    input_tokens: Longs
    output_tokens: Longs
    delay_s: Seconds


def growing_contexts(name: str, format: str, turns: Turns, group: Longs, prefix_tokens: int, block_tokens: int) -> Workload:
    """The workload of `turns`, with global ids.

    Session s begins every context with the `prefix_tokens` of group[s]; within a context each prompt extends the one before it and its
    answer. Every prompt must hold the prefix.
    """
    sessions = group.size
    first = np.diff(turns.session, prepend=-1) != 0
    total = (turns.input_tokens + turns.output_tokens) // block_tokens
    shared = prefix_tokens // block_tokens
    new_context = first | (np.diff(turns.context, prepend=0) != 0)
    context = np.cumsum(new_context) - 1
    own = np.maximum.reduceat(total - shared, np.flatnonzero(new_context))
    owner = turns.session[new_context]
    leader = np.zeros(owner.size, bool)  # contexts that are the first to hold their group's prefix
    leader[np.unique(group[owner], return_index=True)[1]] = True
    taken = own + shared * leader
    own_start = np.cumsum(taken) - own
    prefix_start = np.empty(int(group.max()) + 1, np.int64)
    prefix_start[group[owner[leader]]] = own_start[leader] - shared
    run_offset, run_start, run_length = _two_runs(prefix_start[group[turns.session]], shared, own_start[context], total - shared)
    unknown = np.full(turns.session.size, np.nan)
    rows = np.arange(turns.session.size)
    session = turns.session.astype(np.int32)
    stream = np.arange(sessions, dtype=np.int32)
    ids = int(taken.sum())
    none = np.full(sessions, -1, np.int32)
    return Workload(
        name=name,
        format=format,
        block_tokens=block_tokens,
        scope="global",
        unique_ids=ids,
        listed_outputs=True,
        notes=(),
        session=session,
        stream=session.copy(),
        turn=(rows - np.flatnonzero(first)[turns.session]).astype(np.int32),
        arrival_s=unknown,
        delay_s=turns.delay_s,
        recorded_start_s=unknown.copy(),
        recorded_end_s=unknown.copy(),
        input_tokens=turns.input_tokens,
        output_tokens=turns.output_tokens,
        prompt_blocks=(turns.input_tokens // block_tokens).astype(np.int32),
        tail_id=np.full(rows.size, -1, np.int32),
        run_offset=run_offset,
        run_start=run_start,
        run_length=run_length,
        stream_session=stream,
        stream_parent=none,
        stream_spawn=none.copy(),
        stream_join=none.copy(),
        session_name=tuple(f"{format}-{s:0{len(str(sessions - 1))}d}" for s in range(sessions)),
        session_start_s=np.full(sessions, np.nan),
        session_first_stream=stream.copy(),
        session_id_base=np.zeros(sessions, np.int64),
        session_id_count=np.full(sessions, ids, np.int64),
    )


def _two_runs(a: Longs, a_length: int, b: Longs, b_length: Longs) -> tuple[Longs, Ints, Ints]:
    """Runs of chains made of [a, a + a_length) and [b, b + b_length), one run where they touch or one is empty."""
    touching = a + a_length == b
    first = np.where(touching, a_length + b_length, a_length)
    second = np.where(touching, 0, b_length)
    starts: NDArray[np.int64] = np.stack((a, b), axis=1)
    lengths: NDArray[np.int64] = np.stack((first, second), axis=1)
    kept = lengths > 0
    offset = np.concatenate(([0], np.cumsum(kept.sum(axis=1))))
    return offset, starts[kept].astype(np.int32), lengths[kept].astype(np.int32)
