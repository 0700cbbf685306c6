"""The bytes of a trace: files, directories and stdin, compressed or not, as records with the place they stand at."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from kvsim.errors import Problem, TraceError, did_you_mean

BUFFER = 1 << 20
COMPRESSIONS = (".gz", ".xz", ".zst")
TRACE_SUFFIXES = (".jsonl", ".json", ".ndjson")
MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
BOM = b"\xef\xbb\xbf"


class Place(NamedTuple):
    """Where a record stands: file and line, counted from 1."""

    file: str
    line: int

    def error(self, message: str, path: str = "", col: int | None = None) -> TraceError:
        """A `TraceError` at this place."""
        return TraceError(Problem(message, path, self.file, self.line, col))


class Record(NamedTuple):
    """One JSON value of a trace: a line, or a whole file where its value spans lines."""

    place: Place
    data: bytes


@dataclass(frozen=True)
class Source:
    """A trace to read: its `name`, the files it is made of (none: stdin), and whether they can be read twice."""

    name: str
    files: tuple[Path, ...]
    lasting: bool = True

    def records(self) -> Iterator[Record]:
        """Every record, in file order then line order; blank lines are skipped. Raises `TraceError` on damaged data."""
        if not self.files:
            yield from _records(sys.stdin.buffer, "<stdin>")
        for path in self.files:
            with _opened(path) as file:
                yield from _records(file, str(path))

    def digest(self) -> str:
        """Content of the files as they lie on disk, and their order."""
        whole = hashlib.blake2b(digest_size=20)
        for path in self.files:
            with _opened(path) as file:
                whole.update(hashlib.file_digest(file, "blake2b").digest())
        return whole.hexdigest()


def open_source(path: str | Path) -> Source:
    """`path` is a file, a directory of trace files, or '-' for stdin. Raises `TraceError` if there is nothing to read."""
    if str(path) == "-":
        return Source("stdin", (), lasting=False)
    path = Path(path)
    if path.is_dir():
        files = tuple(sorted(f for f in path.iterdir() if f.is_file() and Path(_uncompressed(f.name)).suffix in TRACE_SUFFIXES))
        if not files:
            raise TraceError(Problem(f"the directory has no {', '.join(TRACE_SUFFIXES)} files", file=str(path)))
        return Source(path.resolve().name, files)
    if path.exists():
        return Source(_bare(path.name), (path,), lasting=path.is_file())
    near = did_you_mean(path.name, [f.name for f in path.parent.iterdir()]) if path.parent.is_dir() else ""
    raise TraceError(Problem("no such trace file" + (near if near.startswith(", did") else ""), file=str(path)))


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise TraceError(Problem(f"cannot be read: {error.strerror or error}", file=str(path))) from error


def _uncompressed(name: str) -> str:
    return name[: -len(Path(name).suffix)] if Path(name).suffix in COMPRESSIONS else name


def _bare(name: str) -> str:
    return Path(_uncompressed(name)).stem


def _records(file: IO[bytes], label: str) -> Iterator[Record]:
    number = 0
    try:
        lines = iter(_decompressed(file, label))
        for line in lines:
            number += 1
            if number == 1 and line.startswith(BOM):
                line = line[len(BOM) :]
            if line.isspace() or not line:
                continue
            if not line.rstrip().endswith(b"}"):
                yield Record(Place(label, number), line + b"".join(lines))
                return
            yield Record(Place(label, number), line)
            break
        for line in lines:
            number += 1
            if not line.isspace():
                yield Record(Place(label, number), line)
    except _damage() as error:
        raise TraceError(Problem(f"the compressed data is damaged or cut short: {error}", file=label, line=number + 1)) from error


def _damage() -> tuple[type[Exception], ...]:
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdError

        return EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ZstdError
    return EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile


def _decompressed(file: IO[bytes], label: str) -> IO[bytes]:
    raw = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast(Any, file))
    start = raw.peek(8)
    kind = next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)
    if kind is None:
        return raw
    if kind == "gzip":
        stream: Any = gzip.GzipFile(fileobj=raw)
    elif kind == "xz":
        stream = lzma.LZMAFile(raw)  # noqa: SIM115 - the caller reads it after this returns
    else:
        stream = _zstd(raw, label)
    return io.BufferedReader(stream, BUFFER)


def _zstd(raw: IO[bytes], label: str) -> Any:
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdFile

        return ZstdFile(raw)
    try:
        import zstandard
    except ImportError:
        raise TraceError(Problem("zstd data needs the extra: pip install 'kvsim[zstd]'", file=label)) from None
    return _ZstdReader(raw, zstandard.ZstdDecompressor())


class _ZstdReader(io.RawIOBase):
    """Frames of zstd data one after another; a frame that is cut short is an `EOFError`, as gzip and xz have it."""

    def __init__(self, raw: IO[bytes], decompressor: Any) -> None:
        self._raw, self._decompressor = raw, decompressor
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if self._frame is not None and self._frame.eof:
                rest, self._frame = self._frame.unused_data, None
            else:
                rest = b""
            data = rest or self._raw.read(1 << 14)
            if not data:
                if self._frame is not None:
                    raise EOFError("the last zstd frame has no end")
                return 0
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            self._ready = memoryview(self._decompress(data))
        part = self._ready[: len(buffer)]
        self._ready = self._ready[len(part) :]
        buffer[: len(part)] = part
        return len(part)

    def _decompress(self, data: bytes) -> bytes:
        import zstandard

        try:
            return cast(bytes, self._frame.decompress(data))
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from error
