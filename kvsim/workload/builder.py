"""`Builder`: what a format reader fills, a session, a stream and a request at a time, and what turns it into a `Workload`."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np

from kvsim.errors import TraceError
from kvsim.workload.source import Place
from kvsim.workload.workload import Longs, Scope, Seconds, Workload

NAN = math.nan


class Builder:
    """Columns under construction. Sessions, streams and requests are numbered as they are added; `finish` puts them in order."""

    def __init__(
        self, name: str, format: str, block_tokens: int, scope: Scope, *, listed_outputs: bool = False, ticks_per_s: float = 1.0
    ) -> None:
        """`ticks_per_s` is the unit of arrivals; every other time is given in seconds."""
        from kvsim.workload.intern import Interner

        self.name, self.format, self.block_tokens, self.scope, self.listed_outputs = name, format, block_tokens, scope, listed_outputs
        self.notes: list[str] = []
        self.ids = Interner()
        self._ticks_per_s = ticks_per_s
        self._session_name: list[str] = []
        self._session_ids = array("q")
        self._stream_session, self._stream_parent = array("q"), array("q")
        self._stream_spawn, self._stream_join = array("q"), array("q")
        self._stream, self._turn = array("q"), array("d")
        self._file, self._line = array("q"), array("q")
        self._files: dict[str, int] = {}
        self._arrival, self._delay, self._start, self._end = array("d"), array("d"), array("d"), array("d")
        self._input, self._output, self._tail, self._listed = array("q"), array("q"), array("q"), array("q")
        self._run_offset = array("q", [0])
        self._empty = 0

    def session(self, name: str) -> int:
        """Begin a session; returns the number of its root stream."""
        if self.scope == "session" and self._session_name:
            self._session_ids.append(self.ids.count)
            self.ids.new_scope()
        self._session_name.append(name)
        return self.stream()

    def stream(self, parent: int = -1, spawn: int = -1, join: int = -1) -> int:
        """Begin a stream of the newest session; `spawn` and `join` are numbers of requests of `parent`. Returns its number."""
        self._stream_session.append(len(self._session_name) - 1)
        self._stream_parent.append(parent)
        self._stream_spawn.append(spawn)
        self._stream_join.append(join)
        return len(self._stream_session) - 1

    def blocks(self, text: Any, place: Place, path: str) -> int:
        """Intern the JSON list of ids of the request about to be added; returns how many it lists."""
        try:
            return self.ids.add(text)
        except TraceError as error:
            problem = error.problems[0]
            raise place.error(problem.message, path + problem.path) from None

    def request(self, stream: int, turn: float, place: Place, *, input_tokens: int, output_tokens: int, listed: int, tail: int = -1,
                arrival: float = NAN, delay_s: float = NAN, start_s: float = NAN, end_s: float = NAN) -> int:  # fmt: skip
        """Add the request whose ids were interned last; returns its number.

        `turn` orders the requests of the stream. `listed` ids of its chain stand in the interner, the tail's not among them.
        An engine computes at least one token of prompt and makes at least one: none counts as one.
        """
        if input_tokens < 1 or output_tokens < 1:
            self._empty += 1
        self._stream.append(stream)
        self._turn.append(turn)
        self._file.append(self._files.setdefault(place.file, len(self._files)))
        self._line.append(place.line)
        self._arrival.append(arrival)
        self._delay.append(delay_s)
        self._start.append(start_s)
        self._end.append(end_s)
        self._input.append(max(1, input_tokens))
        self._output.append(max(1, output_tokens))
        self._listed.append(listed)
        self._tail.append(tail)
        self._run_offset.append(self.ids.used)
        return len(self._stream) - 1

    def finish(self, *, from_first_arrival: bool = False) -> Workload:
        """The workload, checked. `from_first_arrival` counts arrivals from the first one and orders sessions by arrival."""
        if not self._stream:
            raise TraceError(f"{self.name}: the trace has no requests")
        stream_session = _ints(self._stream_session)
        arrival = np.array(self._arrival)
        session_start = np.full(len(self._session_name), NAN)
        np.fmin.at(session_start, stream_session[_ints(self._stream)], arrival)
        session_order = np.arange(session_start.size)
        if from_first_arrival:
            session_order = np.argsort(session_start, kind="stable")
            origin = session_start[session_order[0]]
            arrival, session_start = arrival - origin, session_start - origin
        session_start = session_start[session_order] / self._ticks_per_s

        stream_session = _rank(session_order)[stream_session]
        stream_order = np.argsort(stream_session, kind="stable")
        stream_rank = np.append(_rank(stream_order), -1)  # so that -1, no stream, stays -1
        stream = stream_rank[_ints(self._stream)]
        order = np.lexsort((np.array(self._turn), stream))
        row_of = np.append(_rank(order), -1)
        stream, stream_session = stream[order], stream_session[stream_order]
        session = stream_session[stream]
        if self._empty:
            self.notes.append(f"{self._empty:,} requests without input or output tokens count as one token")
        workload = Workload(
            name=self.name,
            format=self.format,
            block_tokens=self.block_tokens,
            scope=self.scope,
            listed_outputs=self.listed_outputs,
            session=session.astype(np.int32),
            stream=stream.astype(np.int32),
            turn=(np.arange(order.size) - np.searchsorted(stream, stream)).astype(np.int32),
            input_tokens=_ints(self._input)[order],
            output_tokens=_ints(self._output)[order],
            stream_session=stream_session.astype(np.int32),
            stream_parent=stream_rank[_ints(self._stream_parent)[stream_order]].astype(np.int32),
            stream_spawn=row_of[_ints(self._stream_spawn)[stream_order]].astype(np.int32),
            stream_join=row_of[_ints(self._stream_join)[stream_order]].astype(np.int32),
            session_name=tuple(self._session_name[s] for s in session_order),
            session_start_s=session_start,
            session_first_stream=np.searchsorted(stream_session, np.arange(session_start.size)).astype(np.int32),
            **self._times(order, stream, session_start[session], arrival / self._ticks_per_s),
            **self._chains(order, session, stream, session_order),
            notes=tuple(self.notes),
        )
        workload.check()
        return workload

    def _times(self, order: Longs, stream: Longs, session_start: Seconds, arrival: Seconds) -> dict[str, Any]:
        arrival, delay = arrival[order], np.array(self._delay)[order]
        start, end = np.array(self._start)[order], np.array(self._end)[order]
        start = np.where(np.isnan(start), arrival - session_start, start)
        arrival = np.where(np.isnan(arrival), session_start + start, arrival)
        begins = np.diff(stream, prepend=-1) != 0
        gap = np.where(begins, np.where(np.isnan(start), 0.0, start), np.diff(start, prepend=0.0))
        derived = np.isnan(delay)
        delay = np.where(derived, gap, delay)
        for wrong, message in (
            (np.isnan(delay), "this turn has no delay, and no two arrivals to take one from"),
            (delay < 0, "this turn arrives before the one it follows"),
        ):
            if wrong.any():
                raise self._place(int(order[np.argmax(wrong)])).error(message)
        if (derived & ~begins).any():
            self.notes.append("the trace does not say when requests ended: delays are the times between starts")
        return {"arrival_s": arrival, "delay_s": delay, "recorded_start_s": start, "recorded_end_s": end}

    def _chains(self, order: Longs, session: Longs, stream: Longs, session_order: Longs) -> dict[str, Any]:
        from kvsim.workload.chains import complete

        input_tokens = _ints(self._input)[order]
        prompt = input_tokens // self.block_tokens
        total = (input_tokens + _ints(self._output)[order]) // self.block_tokens
        local = self.scope == "session"
        distinct = np.array([*self._session_ids, self.ids.count], np.int64)
        distinct = distinct[session_order] if local else distinct
        base = np.zeros(distinct.size + 1, np.int64)
        offset = np.empty(order.size + 1, np.int64)
        room = 2 * self.ids.used + order.size
        run_start, run_length = np.empty(room, np.int32), np.empty(room, np.int32)
        scope_of = session if local else np.zeros_like(session)
        used = complete(
            order, stream, scope_of, _ints(self._run_offset), self.ids.run_start, self.ids.run_length, _ints(self._listed)[order],
            prompt, total, distinct, base, offset, run_start, run_length,
        )  # fmt: skip
        tail = _ints(self._tail)[order]
        return {
            "unique_ids": int(base[-1]),
            "prompt_blocks": prompt.astype(np.int32),
            "tail_id": np.where(tail < 0, -1, tail + base[scope_of]).astype(np.int32),
            "run_offset": offset,
            "run_start": run_start[:used].copy(),
            "run_length": run_length[:used].copy(),
            "session_id_base": base[:-1].copy() if local else np.zeros(session_order.size, np.int64),
            "session_id_count": np.diff(base) if local else np.full(session_order.size, base[-1]),
        }

    def _place(self, row: int) -> Place:
        return Place(list(self._files)[self._file[row]], self._line[row])


def _rank(order: Longs) -> Longs:
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return rank


def _ints(column: array[int]) -> Longs:
    return np.array(column, np.int64)
