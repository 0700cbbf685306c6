"""`Workload`: what arrives, as columns: sessions are trees of streams, streams are sequences of requests, requests are chains of blocks."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import LawError, TraceError

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Seconds = NDArray[np.float64]
Scope = Literal["global", "session"]


@dataclass(frozen=True, eq=False)
class Workload:
    """A trace or a synthetic load. Arrays are columns: n requests, m runs, k streams, s sessions.

    Requests are ordered by session, then stream, then turn. Times are seconds, NaN where the trace does not say.
    A block id stands for its whole prefix; ids are dense, 0 to `unique_ids` - 1. The chain of a request has one id for each full block
    of prompt + output, the first `prompt_blocks` of them being the prompt's.
    """

    name: str
    format: str
    block_tokens: int
    scope: Scope  # "session": no id occurs in two sessions, and every replay of a session is a new one
    unique_ids: int
    listed_outputs: bool  # the trace names the blocks of outputs; otherwise they are inferred from the next turn
    notes: tuple[str, ...]  # what the loader had to interpret, for people to read

    session: Ints  # [n]
    stream: Ints  # [n] over all sessions
    turn: Ints  # [n] from 0 within the stream
    arrival_s: Seconds  # [n] since the trace began
    delay_s: Seconds  # [n] after the stream's previous turn ended; first turn: after the session began or the spawning request ended
    recorded_start_s: Seconds  # [n] since the session began
    recorded_end_s: Seconds  # [n] since the session began
    input_tokens: Longs  # [n] at least 1
    output_tokens: Longs  # [n] at least 1
    prompt_blocks: Ints  # [n] input_tokens // block_tokens
    tail_id: Ints  # [n] id of a partial last prompt block, -1 where the trace gives none
    run_offset: Longs  # [n + 1] runs of request i: run_offset[i] to run_offset[i + 1]
    run_start: Ints  # [m]
    run_length: Ints  # [m]

    stream_session: Ints  # [k]
    stream_parent: Ints  # [k] stream that spawned it, -1 for a session's root
    stream_spawn: Ints  # [k] row of the parent after whose end it starts, -1: with the session
    stream_join: Ints  # [k] row of the parent that waits for its end, -1: it runs in the background

    session_name: tuple[str, ...]  # [s]
    session_start_s: Seconds  # [s] since the trace began
    session_first_stream: Ints  # [s] its root
    session_id_base: Longs  # [s] its ids lie in [base, base + count)
    session_id_count: Longs  # [s]

    @property
    def requests(self) -> int:
        """n, the number of requests."""
        return self.session.size

    @property
    def sessions(self) -> int:
        """s, the number of sessions."""
        return self.session_start_s.size

    @property
    def streams(self) -> int:
        """k, the number of streams."""
        return self.stream_session.size

    @cached_property
    def stream_row(self) -> Longs:
        """[k + 1] The rows of stream j are stream_row[j] to stream_row[j + 1]."""
        return np.searchsorted(self.stream, np.arange(self.streams + 1)).astype(np.int64)

    @cached_property
    def chain_blocks(self) -> Longs:
        """[n] Full blocks of prompt + output: the lengths of the chains."""
        return (self.input_tokens + self.output_tokens) // self.block_tokens

    def chain(self, row: int) -> Ints:
        """The block ids of request `row`, in order, prompt first."""
        runs = slice(self.run_offset[row], self.run_offset[row + 1])
        ranges = [np.arange(a, a + n, dtype=np.int32) for a, n in zip(self.run_start[runs], self.run_length[runs], strict=True)]
        return np.concatenate(ranges) if ranges else np.empty(0, np.int32)

    def with_block(self, unit_tokens: int) -> Workload:
        """The same requests in cache units of `unit_tokens`, a multiple of the trace's block; only full units have ids.

        A unit is named by its last block's id, which stands for the whole prefix. Raises `TraceError` for any other size.
        """
        ratio, rest = divmod(unit_tokens, self.block_tokens)
        if unit_tokens <= 0 or rest:
            raise TraceError(
                f"{self.name}: its blocks have {self.block_tokens} tokens, so a cache unit must be a multiple of that, not {unit_tokens}"
            )
        if ratio == 1:
            return self
        from kvsim.workload.chains import coarsen

        dense = np.full(self.unique_ids, -1, np.int32)
        offset, none = np.empty_like(self.run_offset), np.empty(0, np.int32)
        used = coarsen(self.run_offset, self.run_start, self.run_length, ratio, dense, offset, none, none)
        start, length = np.empty(used, np.int32), np.empty(used, np.int32)
        coarsen(self.run_offset, self.run_start, self.run_length, ratio, dense, offset, start, length)
        kept = np.concatenate(([0], np.cumsum(dense >= 0)))
        base = kept[self.session_id_base]
        return replace(
            self,
            block_tokens=unit_tokens,
            unique_ids=int(kept[-1]),
            prompt_blocks=(self.input_tokens // unit_tokens).astype(np.int32),
            tail_id=np.full(self.requests, -1, np.int32),
            run_offset=offset,
            run_start=start,
            run_length=length,
            session_id_base=base,
            session_id_count=kept[self.session_id_base + self.session_id_count] - base,
        )

    def check(self) -> None:
        """Recompute every promise of this class from the raw arrays; raises `LawError` naming the first that does not hold."""
        _check_shapes(self)
        _check_requests(self)
        _check_streams(self)
        _check_ids(self)


def _law(holds: object, text: str, *where: object) -> None:
    if not holds:
        raise LawError(text.format(*where))


def _all(holds: NDArray[np.bool_], text: str) -> None:
    if not holds.all():
        raise LawError(f"{text} (first at row {int(np.argmin(holds))})")


_PER_REQUEST = ("session", "stream", "turn", "arrival_s", "delay_s", "recorded_start_s", "recorded_end_s", "input_tokens",
                "output_tokens", "prompt_blocks", "tail_id")  # fmt: skip


def _check_shapes(w: Workload) -> None:
    sizes = {
        **dict.fromkeys(_PER_REQUEST, w.requests),
        **{f.name: w.streams for f in fields(w) if f.name.startswith("stream_")},
        **{f.name: w.sessions for f in fields(w) if f.name.startswith("session_") and f.name != "session_name"},
        "run_offset": w.requests + 1,
        "run_length": w.run_start.size,
    }
    for column, size in sizes.items():
        _law(getattr(w, column).shape == (size,), "{} has shape {}, not {}", column, getattr(w, column).shape, size)
    _law(len(w.session_name) == w.sessions, "session_name has {} entries for {} sessions", len(w.session_name), w.sessions)
    _law(w.block_tokens > 0, "block_tokens is {}", w.block_tokens)


def _check_requests(w: Workload) -> None:
    step = np.diff(w.stream)
    _law(w.requests > 0 and w.stream[0] == 0 and w.turn[0] == 0, "the first request is not turn 0 of stream 0")
    _all((step == 0) | (step == 1), "streams are not in order without gaps")
    _all(np.diff(w.turn) == np.where(step == 0, 1, -w.turn[:-1]), "turns do not count from 0 within a stream")
    _law(w.stream[-1] == w.streams - 1, "{} streams, the last request is of stream {}", w.streams, w.stream[-1])
    _all(w.session == w.stream_session[w.stream], "a request's session is not its stream's")
    _all((w.input_tokens >= 1) & (w.output_tokens >= 1), "a request without input or output tokens")
    _all(w.prompt_blocks == w.input_tokens // w.block_tokens, "prompt_blocks is not input_tokens // block_tokens")
    _all((w.delay_s >= 0) & np.isfinite(w.delay_s), "a delay is negative or unknown")
    _all(~(w.arrival_s < 0), "an arrival before the trace began")
    _all(~(w.recorded_end_s < w.recorded_start_s), "a request ended before it started")
    apart = np.abs(w.arrival_s - (w.session_start_s[w.session] + w.recorded_start_s))
    _all(~(apart > 1e-6 * np.maximum(1.0, w.arrival_s)), "an arrival is not session start + recorded start")


def _check_streams(w: Workload) -> None:
    first = w.session_first_stream
    index = np.arange(w.streams)
    root = np.zeros(w.streams, bool)
    root[first] = True
    begins = np.diff(w.stream_session, prepend=-1)
    _law(np.array_equal(w.stream_session[first], np.arange(w.sessions)), "session_first_stream names a stream of another session")
    _all(begins == root, "sessions' streams are not in order, root first")
    _all((w.stream_parent == -1) == root, "a stream is a root exactly if it is the first of its session")
    _all(
        root | ((w.stream_parent >= first[w.stream_session]) & (w.stream_parent < index)),
        "a parent is not an earlier stream of the session",
    )
    for name, row in (("spawn", w.stream_spawn), ("join", w.stream_join)):
        _all((row == -1) | (~root & (row >= 0) & (row < w.requests)), f"a root stream has a {name}, or its row does not exist")
        _all((row == -1) | (w.stream[row] == w.stream_parent), f"a {name} is not a request of the parent stream")
    _all((w.stream_join == -1) | (w.stream_join > w.stream_spawn), "a join does not come after the spawn")


def _check_ids(w: Workload) -> None:
    from kvsim.workload import chains

    high = w.session_id_base + w.session_id_count
    if w.scope == "session":
        _law(np.array_equal(np.concatenate((w.session_id_base, [w.unique_ids])), np.concatenate(([0], high))), "ids of sessions leave gaps")
    _law(np.all(high <= w.unique_ids), "ids of a session reach past unique_ids")
    _law(
        w.run_offset[0] == 0 and w.run_offset[-1] == w.run_start.size and np.all(np.diff(w.run_offset) >= 0),
        "run_offset is not a partition",
    )
    low, high = w.session_id_base[w.session], high[w.session]
    parents = np.full(w.unique_ids, -2, np.int64)
    problem, row = chains.check_chains(w.run_offset, w.run_start, w.run_length, w.chain_blocks, low, high, parents)
    text = {
        chains.WRONG_LENGTH: "the chain does not cover every full block of prompt + output",
        chains.EMPTY_RUN: "an empty run",
        chains.UNMERGED_RUN: "two runs that are one range",
        chains.ID_OUT_OF_RANGE: "an id outside the session's range",
        chains.TWO_PREFIXES: "an id with two prefixes",
    }
    _law(problem == chains.OK, "{} (row {})", text.get(problem), row)
    has_tail = w.tail_id >= 0
    _all(~has_tail | ((w.tail_id >= low) & (w.tail_id < high)), "a tail id outside the session's range")
    _all(~has_tail | (w.input_tokens % w.block_tokens > 0), "a full last block has a tail id")
