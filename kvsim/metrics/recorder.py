"""One row a request that ended: preallocated columns that double when they are full.

Laws, for every row that finished:
- tokens: hbm + dram + ssd + pool + computed = input;
- missed: the seven reasons sum to input - hits, that is to computed;
- time: arrival <= scheduled <= first token <= finish;
- sign: no count and no duration is negative.
A rejected request did nothing: it has no time of scheduling and of first token (NaN), and its counts but for input, output and retries
are 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import LawError

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Column:
    """Type, unit and meaning of a column; the documentation's table is made of these."""

    dtype: type
    unit: str
    meaning: str


COLUMNS: dict[str, Column] = {
    "request": Column(np.int64, "", "row in the workload"),
    "session": Column(np.int64, "", "session instance; a session replayed twice is two of them"),
    "turn": Column(np.int32, "", "turn of its stream, from 0"),
    "lane": Column(np.int32, "", "client that sent it"),
    "node": Column(np.int32, "", "node that served it; with prefill and decode apart, the one that computed its prompt"),
    "decode_node": Column(np.int32, "", "node that decoded it: the same where nodes do both"),
    "arrival_s": Column(np.float64, "s", "sent by the client"),
    "scheduled_s": Column(np.float64, "s", "first scheduled; empty if rejected"),
    "first_token_s": Column(np.float64, "s", "first token out; empty if rejected"),
    "finish_s": Column(np.float64, "s", "last token out, or rejected"),
    "input_tokens": Column(np.int64, "tokens", "prompt"),
    "output_tokens": Column(np.int64, "tokens", "answer; if rejected, the answer asked for"),
    "hbm_tokens": Column(np.int64, "tokens", "prompt tokens found in HBM when first scheduled"),
    "dram_tokens": Column(np.int64, "tokens", "prompt tokens loaded from DRAM"),
    "ssd_tokens": Column(np.int64, "tokens", "prompt tokens loaded from SSD"),
    "pool_tokens": Column(np.int64, "tokens", "prompt tokens loaded from the shared pool"),
    "computed_tokens": Column(np.int64, "tokens", "prompt tokens that had to be computed: input less all hits"),
    "recomputed_tokens": Column(np.int64, "tokens", "prompt and output tokens computed again after a preemption"),
    "theoretical_tokens": Column(np.int64, "tokens", "prompt tokens an infinite cache would have had, requests in the order of this run"),
    "missed_cold": Column(np.int64, "tokens", "never seen before"),
    "missed_evicted": Column(np.int64, "tokens", "seen, but gone from the last tier that held them"),
    "missed_elsewhere": Column(np.int64, "tokens", "cached on another node"),
    "missed_pending": Column(np.int64, "tokens", "being computed for another request at that moment"),
    "missed_too_late": Column(np.int64, "tokens", "on their way from a lower tier, but not there in time"),
    "missed_partial_block": Column(np.int64, "tokens", "fill no whole block, or belong to the block that is always recomputed"),
    "missed_not_stored": Column(np.int64, "tokens", "gone from HBM and never stored in a lower tier"),
    "preemptions": Column(np.int32, "", "times it lost its blocks and started again"),
    "retries": Column(np.int32, "", "times it was sent again after its node went down"),
    "load_s": Column(np.float64, "s", "waited for loads from lower tiers"),
    "transfer_s": Column(np.float64, "s", "time its KV took from the prefill node to the decode node, 0 where they are one"),
    "rejected": Column(np.bool_, "", "could never have fitted and was refused"),
}
HITS = ("hbm_tokens", "dram_tokens", "ssd_tokens", "pool_tokens")
MISSED = tuple(name for name in COLUMNS if name.startswith("missed_"))
_TIMES = ("arrival_s", "scheduled_s", "first_token_s", "finish_s")
_BLANK_IF_REJECTED = (*HITS, "computed_tokens", "recomputed_tokens", "theoretical_tokens", *MISSED, "preemptions", "load_s", "transfer_s")
_NOT_NEGATIVE = ("input_tokens", "output_tokens", "retries", *_BLANK_IF_REJECTED)


class Recorder:
    """Rows of requests that ended, in the order they were given."""

    def __init__(self, capacity: int = 1024) -> None:
        self._size = 0
        self._columns: dict[str, NDArray[Any]] = {name: np.empty(max(capacity, 1), column.dtype) for name, column in COLUMNS.items()}

    def __len__(self) -> int:
        return self._size

    def append(self, **row: Any) -> None:
        """Add one row, a value for every column of `COLUMNS`."""
        self.extend({name: np.asarray([value]) for name, value in row.items()})

    def extend(self, columns: Columns) -> None:
        """Add rows: every column of `COLUMNS`, all of one length.

        Raises `TypeError` for a missing, unknown or wrongly typed column, `ValueError` for lengths that differ, `OverflowError` for a
        value its column cannot hold. Nothing is added then.
        """
        if columns.keys() != COLUMNS.keys():
            missing, unknown = sorted(COLUMNS.keys() - columns.keys()), sorted(columns.keys() - COLUMNS.keys())
            raise TypeError(f"recorder: missing columns {missing}, unknown columns {unknown}")
        arrays = {name: _cast(name, np.asarray(columns[name])) for name in COLUMNS}
        sizes = {array.size for array in arrays.values()}
        if len(sizes) != 1:
            raise ValueError(f"recorder: columns of different lengths {sorted(sizes)}")
        start, self._size = self._size, self._size + sizes.pop()
        self._reserve(self._size)
        for name, array in arrays.items():
            self._columns[name][start : self._size] = array
        self._blank_rejected(start)

    def table(self) -> dict[str, NDArray[Any]]:
        """The columns, as views of the rows recorded so far; adding rows may leave them behind."""
        return {name: array[: self._size] for name, array in self._columns.items()}

    def check(self) -> None:
        """Recompute the laws of this module from the rows; raises `LawError` naming the law and the first row that breaks it."""
        table = self.table()
        for law, holds, involved in _laws(table):
            broken = np.flatnonzero(~holds)
            if broken.size:
                row = int(broken[0])
                values = ", ".join(f"{name} {table[name][row]}" for name in ("request", "session", *involved))
                raise LawError(f"requests: law of {law} broken in row {row} and {broken.size - 1} others: {values}")

    def _reserve(self, size: int) -> None:
        capacity = next(iter(self._columns.values())).size
        if size <= capacity:
            return
        capacity = max(2 * capacity, size)
        for name, array in self._columns.items():
            self._columns[name] = np.empty(capacity, array.dtype)
            self._columns[name][: array.size] = array

    def _blank_rejected(self, start: int) -> None:
        rows = start + np.flatnonzero(self._columns["rejected"][start : self._size])
        for name in ("scheduled_s", "first_token_s"):
            self._columns[name][rows] = np.nan
        for name in _BLANK_IF_REJECTED:
            self._columns[name][rows] = 0


def _cast(name: str, values: NDArray[Any]) -> NDArray[Any]:
    dtype = np.dtype(COLUMNS[name].dtype)
    if values.ndim != 1:
        raise TypeError(f"recorder: column {name} has {values.ndim} dimensions")
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise TypeError(f"recorder: column {name} is {values.dtype}, not {dtype}")
    out = values.astype(dtype)
    if dtype.kind == "i" and (out != values).any():
        raise OverflowError(f"recorder: column {name} has a value that {dtype} cannot hold")
    return out


def _laws(t: Columns) -> Iterator[tuple[str, NDArray[np.bool_], tuple[str, ...]]]:
    """(law, rows where it holds, columns it speaks of)."""
    rejected = t["rejected"]
    hits = sum(t[name] for name in HITS)
    yield (
        "tokens (hits + computed = input)",
        rejected | (hits + t["computed_tokens"] == t["input_tokens"]),
        (
            *HITS,
            "computed_tokens",
            "input_tokens",
        ),
    )
    yield (
        "missed (reasons sum to input - hits)",
        rejected | (sum(t[name] for name in MISSED) == t["input_tokens"] - hits),
        (
            *MISSED,
            *HITS,
            "input_tokens",
        ),
    )
    arrival, scheduled, first_token, finish = (t[name] for name in _TIMES)
    ordered = (arrival <= scheduled) & (scheduled <= first_token) & (first_token <= finish)
    ordered = np.where(rejected, arrival <= finish, ordered) & np.isfinite(arrival) & np.isfinite(finish)
    yield "time (arrival <= scheduled <= first token <= finish)", ordered, _TIMES
    for name in _NOT_NEGATIVE:
        yield f"sign ({name} >= 0)", t[name] >= 0, (name,)
