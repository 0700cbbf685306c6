"""The result of a run: `summary.json`, `requests.parquet` and `scenario.yaml` in one folder, each written whole or not at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvsim.errors import KvsimError, Problem
from kvsim.metrics.files import write_atomically
from kvsim.metrics.recorder import COLUMNS, Columns
from kvsim.metrics.summary import Point

if TYPE_CHECKING:
    import polars as pl

SUMMARY, REQUESTS, SCENARIO = "summary.json", "requests.parquet", "scenario.yaml"


class ResultError(KvsimError):
    """A folder that does not hold the result of a run."""


@dataclass(frozen=True, slots=True)
class _Document:
    """What `summary.json` holds."""

    kvsim: str
    scenario: dict[str, Any]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """Points of all variants and concurrencies, and how they came about.

    `kvsim` is the version, `scenario` the resolved scenario, `scenario_yaml` its text, runnable again. `requests` has the columns
    (`kvsim.metrics.recorder.COLUMNS`) of each point, warm-up and drain included; it is empty if they were not read.
    """

    kvsim: str
    scenario: dict[str, Any]
    points: tuple[Point, ...]
    scenario_yaml: str
    requests: tuple[Columns, ...] = ()

    def to_json(self) -> bytes:
        """The document of `summary.json`: strict JSON, None as null, no NaN."""
        document = _Document(self.kvsim, self.scenario, self.points)
        return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"

    def write(self, directory: Path | str) -> None:
        """Write the three files into `directory`, which is made if needed. Needs `requests`.

        Raises `ValueError` where `requests` does not fit `points`, or two points have the same variant and concurrency.
        """
        if len(self.requests) != len(self.points):
            raise ValueError(f"{len(self.points)} points but columns of {len(self.requests)}")
        names = {(point.variant, point.concurrency) for point in self.points}
        if len(names) != len(self.points):
            raise ValueError("two points have the same variant and concurrency")
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        frame = _frame(self.points, self.requests)
        write_atomically(directory / REQUESTS, lambda path: frame.write_parquet(path, compression="zstd"))
        write_atomically(directory / SCENARIO, lambda path: path.write_text(self.scenario_yaml, encoding="utf-8", newline="\n"))
        # Last, so that a folder with a summary is complete.
        write_atomically(directory / SUMMARY, lambda path: path.write_bytes(self.to_json()))

    @classmethod
    def read(cls, directory: Path | str, *, requests: bool = False) -> Result:
        """The result in `directory`; `requests` also reads the rows of the requests. Raises `ResultError`."""
        directory = Path(directory)
        document = _decode(directory / SUMMARY, _read(directory / SUMMARY))
        try:
            text = _read(directory / SCENARIO).decode()
        except UnicodeDecodeError as error:
            raise ResultError(Problem(f"is not UTF-8: {error}", file=str(directory / SCENARIO))) from None
        columns = _columns(directory / REQUESTS, document.points) if requests else ()
        return cls(document.kvsim, document.scenario, document.points, text, columns)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ResultError(Problem(f"cannot be read, {error.strerror}; is this the folder of a finished run?", file=str(path))) from None


def _decode(path: Path, data: bytes) -> _Document:
    try:
        raw = msgspec.json.decode(data)
        document = msgspec.convert(raw, _Document)
    except msgspec.ValidationError as error:
        raise ResultError(Problem(f"is no summary of this version of kvsim: {error}", file=str(path))) from None
    except msgspec.DecodeError as error:
        raise ResultError(Problem(str(error), "", str(path), *_place(str(error), data))) from None
    unknown = _unknown(raw, msgspec.to_builtins(document))
    if unknown:
        raise ResultError(Problem(f"is no summary of this version of kvsim: unknown key {unknown}", file=str(path)))
    return document


def _place(message: str, data: bytes) -> tuple[int, int]:
    """Line and column of the byte that `message` speaks of; of the end where it speaks of none, as of truncated data."""
    match = re.search(r"byte (\d+)", message)
    before = data[: int(match[1])] if match else data
    return before.count(b"\n") + 1, len(before) - before.rfind(b"\n")


def _unknown(raw: Any, known: Any, path: str = "$") -> str:
    """Path of the first key in `raw` that decoding left out of `known`."""
    if isinstance(raw, dict):
        pairs = [(f"{path}.{key}", value, known.get(key, ...)) for key, value in raw.items()]
    elif isinstance(raw, list):
        pairs = [(f"{path}[{i}]", value, known[i]) for i, value in enumerate(raw)]
    else:
        return ""
    return next((found for name, value, there in pairs if (found := name if there is ... else _unknown(value, there, name))), "")


def _frame(points: tuple[Point, ...], requests: tuple[Columns, ...]) -> pl.DataFrame:
    import polars as pl

    schema = {"variant": pl.String, "concurrency": pl.Int32}
    frames = [
        pl.DataFrame({name: pl.Series(columns[name], nan_to_null=True) for name in COLUMNS}).select(
            pl.lit(point.variant, pl.String).alias("variant"), pl.lit(point.concurrency, pl.Int32).alias("concurrency"), *COLUMNS
        )
        for point, columns in zip(points, requests, strict=True)
    ]
    empty = pl.DataFrame({name: pl.Series([], dtype=dtype) for name, dtype in schema.items()})
    return pl.concat(frames) if frames else empty


def _columns(path: Path, points: tuple[Point, ...]) -> tuple[Columns, ...]:
    """The columns of each point, NaN where the file has nothing."""
    import polars as pl

    try:
        frame = pl.read_parquet(path)
        missing = {"variant", "concurrency", *COLUMNS} - set(frame.columns)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ResultError(Problem(f"cannot be read: {error}", file=str(path))) from None
    if missing and points:
        raise ResultError(Problem(f"has no columns {', '.join(sorted(missing))}", file=str(path)))
    out: list[Columns] = []
    for point in points:
        rows = frame.filter((pl.col("variant") == point.variant) & pl.col("concurrency").eq_missing(point.concurrency))
        out.append({name: rows[name].to_numpy().astype(column.dtype) for name, column in COLUMNS.items()})
    return tuple(out)
