"""What the engines, links and tiers of one point did over time, as a Chrome trace that Perfetto and chrome://tracing open.

A process for each engine with a thread for prefill, one for decode and one for each link and direction it used, and a counter for
each tier; a process for the faults, at the top. Format: JSON object of the Trace Event Format (Google, "Trace Event Format"): `X`
complete events, `C` counters, `M` metadata.

Times are whole microseconds: Perfetto (importers/json, 2025) multiplies fractions by 1000 and truncates, and slices that touch would
then overlap by a nanosecond and be drawn nested. Thread ids are unique in the whole file, as Perfetto names threads by them alone.

To keep an engine's hour to some 15 MB, and 2 MB compressed:
- consecutive steps that only decode, with equal batches and no gap between them, are one slice whose `steps` counts them;
- a counter has a new value only where it is at least 0.1 % of the tier away from the last one written.

Laws, `LawError` where one is broken: slices of a thread do not overlap, nothing ends before it starts, a fill is from 0 to 1.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import LawError
from kvsim.metrics.files import write_atomically
from kvsim.metrics.summary import FaultSpan

SLACK_S = 1e-9  # float noise of sums of durations, far below the microsecond of the file
LEAST_CHANGE_PERCENT = 0.1
LINES_A_BLOCK = 65536
FAULTS_FIRST = 0  # sort index of their process; engines follow from 1
Array = NDArray[Any]


class _Columns:
    """Columns of one length, one row an event."""

    def __post_init__(self) -> None:
        sizes = {np.shape(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]
        if len(sizes) != 1 or len(next(iter(sizes))) != 1:
            raise ValueError(f"{type(self).__name__} needs columns of one dimension and one length, got {sorted(sizes)}")


@dataclass(frozen=True, eq=False, slots=True)
class Steps(_Columns):
    """Scheduler steps [n]: engine, start and end in seconds, prompt tokens computed and requests decoded in it.

    A step that does both is on both threads; one that does neither is on none.
    """

    engine: Array
    start_s: Array
    end_s: Array
    prefill_tokens: Array
    decodes: Array


@dataclass(frozen=True, eq=False, slots=True)
class Moves(_Columns):
    """Transfers [n] of an engine on a link and direction (index into `Timeline.link_names`), which takes one at a time."""

    engine: Array
    link: Array
    start_s: Array
    end_s: Array
    bytes: Array


@dataclass(frozen=True, eq=False, slots=True)
class Fills(_Columns):
    """Samples [n] of the share (0 to 1) of a tier (index into `Timeline.tier_names`) that is in use from `at_s` on."""

    engine: Array
    tier: Array
    at_s: Array
    used: Array


@dataclass(frozen=True, eq=False, slots=True)
class _Lane:
    """One thread: its slices by time, in whole microseconds, with whole numbers to show beside them."""

    pid: int
    title: str
    sort_index: int
    name: str
    ts: NDArray[np.int64]
    dur: NDArray[np.int64]
    args: Mapping[str, Array]


@dataclass(frozen=True, eq=False, slots=True)
class Timeline:
    """Everything to draw; rows may come in any order. A fault without an end lasts as long as the trace.

    Raises `ValueError` for an engine, link or tier that has no name.
    """

    engine_names: Sequence[str]
    link_names: Sequence[str]
    tier_names: Sequence[str]
    steps: Steps
    moves: Moves
    fills: Fills
    faults: Sequence[FaultSpan] = ()

    def __post_init__(self) -> None:
        for what, names, columns in (
            ("engine", self.engine_names, (self.steps.engine, self.moves.engine, self.fills.engine)),
            ("link", self.link_names, (self.moves.link,)),
            ("tier", self.tier_names, (self.fills.tier,)),
        ):
            seen = np.concatenate(columns)
            if seen.size and (seen.min() < 0 or seen.max() >= len(names)):
                raise ValueError(f"{what} {int(seen.min())} to {int(seen.max())} but {len(names)} names")
            if not all(names):
                raise ValueError(f"an empty {what} name")

    def write(self, path: Path | str) -> None:
        """Write the trace to `path`, whole or not at all; compressed where it ends in `.gz`. Same timeline, same bytes."""
        path = Path(path)
        write_atomically(path, lambda part: self._write(part, compressed=path.suffix == ".gz"))

    def _write(self, path: Path, *, compressed: bool) -> None:
        with path.open("wb") as file:
            if compressed:
                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as zipped:
                    self._stream(zipped)
            else:
                self._stream(file)

    def _stream(self, out: IO[bytes] | gzip.GzipFile) -> None:
        out.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        before = "\n"
        for block in self._blocks():
            out.write((before + block).encode())
            before = ",\n"
        out.write(b"\n]}\n")

    def _blocks(self) -> Iterator[str]:
        """The events, one a line, some thousand lines at a time."""
        faults_pid = len(self.engine_names) + 1
        processes = [(engine + 1, name, engine + 1) for engine, name in enumerate(self.engine_names)]
        if self.faults:
            processes.insert(0, (faults_pid, "faults", FAULTS_FIRST))
        for pid, name, sort_index in processes:
            yield _named("process", name, sort_index, pid=pid)
        for i, lane in enumerate(chain(self._fault_lanes(faults_pid), self._step_lanes(), self._move_lanes())):
            tid = faults_pid + 1 + i
            yield _named("thread", lane.title, lane.sort_index, pid=lane.pid, tid=tid)
            yield from _slices(lane, tid)
        for engine, tier, rows in _pairs(self.fills.engine, self.fills.tier, len(self.tier_names)):
            name = self.tier_names[tier]
            yield from _counter(engine + 1, name, *_changes(name, self.fills.at_s[rows], self.fills.used[rows]))

    def _step_lanes(self) -> Iterator[_Lane]:
        steps = self.steps
        for engine, rows in _groups(steps.engine):
            title = self.engine_names[engine]
            prefill, decode = (rows[amount[rows] > 0] for amount in (steps.prefill_tokens, steps.decodes))
            if prefill.size:
                order, ts, dur = _laid_out(f"prefill of {title}", steps.start_s[prefill], steps.end_s[prefill])
                yield _Lane(engine + 1, "prefill", 0, "prefill", ts, dur, {"tokens": steps.prefill_tokens[prefill][order]})
            if decode.size:
                yield self._decode_lane(engine, decode)

    def _decode_lane(self, engine: int, rows: NDArray[np.int64]) -> _Lane:
        what = f"decode of {self.engine_names[engine]}"
        rows = rows[_laid_out(what, self.steps.start_s[rows], self.steps.end_s[rows])[0]]
        start, end, batch = self.steps.start_s[rows], self.steps.end_s[rows], self.steps.decodes[rows]
        alone = self.steps.prefill_tokens[rows] == 0
        joins = alone[1:] & alone[:-1] & (batch[1:] == batch[:-1]) & (start[1:] - end[:-1] <= SLACK_S)
        first = np.flatnonzero(np.append(True, ~joins))
        after = np.append(first[1:], rows.size)
        _, ts, dur = _laid_out(what, start[first], end[after - 1])
        return _Lane(engine + 1, "decode", 1, "decode", ts, dur, {"batch": batch[first], "steps": after - first})

    def _move_lanes(self) -> Iterator[_Lane]:
        moves = self.moves
        for engine, link, rows in _pairs(moves.engine, moves.link, len(self.link_names)):
            name = self.link_names[link]
            order, ts, dur = _laid_out(f"{name} of {self.engine_names[engine]}", moves.start_s[rows], moves.end_s[rows])
            yield _Lane(engine + 1, name, 2 + link, name, ts, dur, {"bytes": moves.bytes[rows][order]})

    def _fault_lanes(self, pid: int) -> Iterator[_Lane]:
        """A thread for each kind of fault, and another one where two of a kind overlap."""
        last = self._last_s()
        lanes: list[tuple[str, list[tuple[float, float]]]] = []
        for fault in sorted(self.faults, key=lambda f: (f.start_s, f.what)):
            span = (fault.start_s, last if fault.end_s is None else fault.end_s)
            free = (spans for what, spans in lanes if what == fault.what and spans[-1][1] <= fault.start_s)
            spans = next(free, None)
            if spans is None:
                lanes.append((fault.what, [span]))
            else:
                spans.append(span)
        for i, (what, spans) in enumerate(lanes):
            start, end = np.array(spans, float).T
            _, ts, dur = _laid_out(f"fault {what}", start, end)
            yield _Lane(pid, what, i, what, ts, dur, {})

    def _last_s(self) -> float:
        columns = [self.steps.end_s, self.moves.end_s, self.fills.at_s]
        columns.append(np.array([f.start_s if f.end_s is None else f.end_s for f in self.faults], float))
        return float(np.concatenate(columns).max(initial=0.0))


def _groups(keys: Array) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(key, its rows in their order) of each key that occurs, ascending."""
    order = np.argsort(keys, kind="stable")
    edges = np.flatnonzero(np.diff(keys[order])) + 1
    for start, end in pairwise([0, *edges.tolist(), order.size]):
        if end > start:
            yield int(keys[order[start]]), order[start:end]


def _pairs(engine: Array, index: Array, names: int) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    for key, rows in _groups(engine.astype(np.int64) * max(names, 1) + index):
        yield *divmod(key, names), rows


def _laid_out(what: str, start_s: Array, end_s: Array) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(order by time, start, duration) of slices of one thread, the latter two in that order and in microseconds."""
    order = np.lexsort((end_s, start_s))
    start, end = start_s[order], end_s[order]
    lasting = (start >= 0) & (start <= end) & np.isfinite(end)
    if not lasting.all():
        i = int(np.argmin(lasting))
        raise LawError(f"timeline: {what} goes from {start[i]} to {end[i]} s")
    apart = start[1:] >= end[:-1] - SLACK_S
    if not apart.all():
        i = int(np.argmin(apart))
        raise LawError(f"timeline: {what} overlaps itself: {start[i]} to {end[i]} s, and {start[i + 1]} to {end[i + 1]} s")
    ts, until = (np.rint(1e6 * seconds).astype(np.int64) for seconds in (start, end))
    until[:-1] = np.minimum(until[:-1], ts[1:])
    return order, ts, until - ts


def _changes(tier: str, at_s: Array, used: Array) -> tuple[list[int], list[float]]:
    """(microseconds, percent) of the samples worth writing, by time."""
    inside = (used >= 0) & (used <= 1) & np.isfinite(at_s) & (at_s >= 0)
    if not inside.all():
        i = int(np.argmin(inside))
        raise LawError(f"timeline: {tier} is filled to {used[i]} at {at_s[i]} s")
    order = np.argsort(at_s, kind="stable")
    at, percents = np.rint(1e6 * at_s[order]).astype(np.int64).tolist(), (100 * used[order]).tolist()
    least = LEAST_CHANGE_PERCENT - 1e-9  # a step of exactly that is one
    kept_at, kept = [], []
    last = -np.inf
    for ts, percent in zip(at, percents, strict=True):
        if abs(percent - last) >= least:
            kept_at.append(ts)
            kept.append(percent)
            last = percent
    return kept_at, kept


def _named(kind: str, name: str, sort_index: int, **ids: int) -> str:
    """The two metadata events that name a process or thread and give its place."""
    where = "".join(f',"{key}":{value}' for key, value in ids.items())
    return (
        f'{{"name":"{kind}_name","ph":"M"{where},"args":{{"name":{_text(name)}}}}},\n'
        f'{{"name":"{kind}_sort_index","ph":"M"{where},"args":{{"sort_index":{sort_index}}}}}'
    )


def _slices(lane: _Lane, tid: int) -> Iterator[str]:
    args = ",".join(f'"{key}":%d' for key in lane.args)
    form = f'{{"name":{_text(lane.name, form=True)},"ph":"X","pid":{lane.pid},"tid":{tid},"ts":%d,"dur":%d,"args":{{{args}}}}}'
    columns = (lane.ts, lane.dur, *lane.args.values())
    for at in range(0, lane.ts.size, LINES_A_BLOCK):
        yield ",\n".join([form % row for row in zip(*(column[at : at + LINES_A_BLOCK].tolist() for column in columns), strict=True)])


def _counter(pid: int, tier: str, at: list[int], percents: list[float]) -> Iterator[str]:
    form = f'{{"name":{_text(f"{tier} in use", form=True)},"ph":"C","pid":{pid},"ts":%d,"args":{{"%%":%.1f}}}}'
    for i in range(0, len(at), LINES_A_BLOCK):
        yield ",\n".join([form % row for row in zip(at[i : i + LINES_A_BLOCK], percents[i : i + LINES_A_BLOCK], strict=True)])


def _text(text: str, *, form: bool = False) -> str:
    """`text` as a JSON string; in a `form` its percent signs stand for themselves."""
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted.replace("%", "%%") if form else quoted
