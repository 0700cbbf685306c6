"""Loading a trace: find its format, read it, and keep the result as arrays for the next time."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from kvsim.errors import TraceError, UnknownNameError
from kvsim.paths import cache_root
from kvsim.workload.decode import malformed, top_keys
from kvsim.workload.formats import FORMATS, TraceFormat
from kvsim.workload.source import Record, open_source
from kvsim.workload.workload import Workload

SNIFFED = 3


def load(path: str | Path, format: str = "auto", cache: bool = True) -> Workload:
    """The trace at `path`: a file, a directory of files, or '-' for stdin; .gz, .xz and .zst are read as they are.

    `format` is a registered trace format, or 'auto' to find it from the first lines. With `cache`, the arrays of files are kept under
    `cache_root()/traces`, named by the content of the files and of the readers. Raises `TraceError` with `file:line: what`.
    """
    if format != "auto" and format not in FORMATS:
        try:
            FORMATS.entry(format)
        except UnknownNameError as error:
            raise TraceError(str(error)) from None
    source = open_source(path)
    kept: Path | None = None
    if cache and source.lasting:
        kept = cache_root() / "traces" / f"{source.digest()}-{format}-{_readers_digest()}.npz"
        if (workload := _restore(kept)) is not None:
            return replace(workload, name=source.name)
    workload = _read(source.records(), source.name, format)
    if kept is not None:
        _keep(workload, kept)
    return workload


def _read(records: Iterable[Record], name: str, format: str) -> Workload:
    records = iter(records)
    first = list(itertools.islice(records, SNIFFED if format == "auto" else 0))
    if format == "auto":
        if not first:
            raise TraceError(f"{name}: the trace has no requests")
        format = _sniff(first)
    reader = cast(TraceFormat, FORMATS[format])
    return reader.read(itertools.chain(first, records), name)


def _sniff(first: list[Record]) -> str:
    lines = [record.data for record in first]
    for name in FORMATS:
        if cast(TraceFormat, FORMATS[name]).sniff(lines):
            return name
    known = ", ".join(FORMATS)
    if not lines[0].lstrip().startswith(b"{"):
        raise first[0].place.error(f"this is not a JSON object, which a request or a session is in every known format: {known}")
    try:
        msgspec.json.decode(lines[0], type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise malformed(first[0], str(error)) from None
    keys = ", ".join(sorted(top_keys(lines[0]))) or "none"
    raise first[0].place.error(f"no known trace format has a record like this (its keys: {keys}); the formats are {known}")


@cache
def _readers_digest() -> str:
    whole = hashlib.blake2b(digest_size=8)
    folder = Path(__file__).parent
    for path in sorted((*folder.glob("*.py"), *folder.glob("formats/*.py"))):
        whole.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    for point in entry_points(group=FORMATS.package):
        whole.update(f"{point.value} {point.dist.version if point.dist else ''}".encode())
    return whole.hexdigest()


_ARRAYS = tuple(f.name for f in fields(Workload) if f.type in ("Ints", "Longs", "Seconds"))
_OTHERS = tuple(f.name for f in fields(Workload) if f.name not in _ARRAYS)


def _keep(workload: Workload, path: Path) -> None:
    """Write `path` whole or not at all; a cache that cannot be written is no error."""
    data = io.BytesIO()
    meta = json.dumps({name: getattr(workload, name) for name in _OTHERS})
    np.savez(data, meta=np.frombuffer(meta.encode(), np.uint8), **{name: getattr(workload, name) for name in _ARRAYS})
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data.getbuffer())
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink()


def _restore(path: Path) -> Workload | None:
    """What `_keep` wrote, or None where there is nothing that can be read back."""
    try:
        # Opened here: numpy leaves a file open that it cannot read.
        with path.open("rb") as file, np.load(file) as stored:
            others: dict[str, Any] = json.loads(stored["meta"].tobytes())
            columns: dict[str, Any] = {name: stored[name] for name in _ARRAYS}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in others.items()}
    return Workload(**values, **columns)
