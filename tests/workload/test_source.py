"""Files as they come: every compression, stdin, directories, odd line ends, whole documents, damaged data."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import lzma
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvsim.errors import TraceError
from kvsim.workload.load import load
from kvsim.workload.source import Place, open_source

from .twins import equal

DATA = Path(__file__).parents[1] / "data"
PLAIN = gzip.decompress((DATA / "mooncake_conversation_200.jsonl.gz").read_bytes())


def zstd(data: bytes) -> bytes:
    """Compressed, with the standard library or the extra, whichever there is."""
    if sys.version_info >= (3, 14):
        from compression import zstd as module

        return module.compress(data)
    zstandard = pytest.importorskip("zstandard", reason="zstd needs the extra before Python 3.14")
    return bytes(zstandard.ZstdCompressor().compress(data))


COMPRESS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd}


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("parts", [1, 3])
def test_every_compression_in_one_or_more_members(tmp_path: Path, suffix: str, parts: int) -> None:
    cut = [len(PLAIN) * k // parts for k in range(parts + 1)]
    path = tmp_path / f"t.jsonl{suffix}"
    path.write_bytes(b"".join(COMPRESS[suffix](PLAIN[a:b]) for a, b in itertools.pairwise(cut)))
    assert b"".join(record.data for record in open_source(path).records()) == PLAIN
    assert load(path, cache=False).name == "t"


def test_the_content_decides_not_the_name(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl.gz").write_bytes(lzma.compress(PLAIN))
    (tmp_path / "t").write_bytes(PLAIN)
    assert equal(load(tmp_path / "t.jsonl.gz", cache=False), load(tmp_path / "t", cache=False))


@pytest.mark.parametrize("suffix", [s for s in COMPRESS if s])
def test_data_cut_short_is_an_error_with_a_line(tmp_path: Path, suffix: str) -> None:
    whole = COMPRESS[suffix](PLAIN)
    path = tmp_path / "t"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match=r"t:\d+: the compressed data is damaged or cut short: "):
        load(path, cache=False)


@pytest.mark.parametrize("suffix", [s for s in COMPRESS if s])
def test_damaged_data_is_an_error(tmp_path: Path, suffix: str) -> None:
    whole = bytearray(COMPRESS[suffix](PLAIN))
    for at in range(len(whole) // 2, len(whole) // 2 + 40):
        whole[at] ^= 0x5A
    path = tmp_path / "t"
    path.write_bytes(whole)
    with pytest.raises(TraceError, match=r"t:\d+: "):
        load(path, cache=False)


def test_without_the_zstd_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info >= (3, 14):
        pytest.skip("zstd is in the standard library")
    path = tmp_path / "t"
    path.write_bytes(zstd(PLAIN))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(TraceError, match=r"t: zstd data needs the extra: pip install 'kvsim\[zstd\]'"):
        load(path, cache=False)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_stdin(monkeypatch: pytest.MonkeyPatch, suffix: str, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(COMPRESS[suffix](PLAIN))))
    path = tmp_path / "stdin"
    path.write_bytes(PLAIN)
    assert equal(load("-"), load(path, cache=False))


def test_errors_on_stdin_have_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(PLAIN + b"{}\n")))
    with pytest.raises(TraceError, match=r"^<stdin>:201: the key '\w+' is missing"):
        load("-")


@pytest.mark.parametrize(
    "changed",
    [
        b"\xef\xbb\xbf" + PLAIN,
        PLAIN.replace(b"\n", b"\r\n"),
        PLAIN.rstrip(b"\n"),
        b"\n \n" + PLAIN.replace(b"\n", b"\n\n"),
        PLAIN.replace(b"\n", b" \t\n"),
    ],
    ids=["byte order mark", "CRLF", "no last newline", "blank lines", "trailing spaces"],
)
def test_odd_line_ends_change_nothing(tmp_path: Path, changed: bytes) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "t").write_bytes(PLAIN)
    (tmp_path / "b" / "t").write_bytes(changed)
    assert equal(load(tmp_path / "a" / "t", cache=False), load(tmp_path / "b" / "t", cache=False))


def test_a_folder_of_documents_is_the_same_as_lines(tmp_path: Path) -> None:
    sample = lzma.decompress((DATA / "agentx_v8_sample.jsonl.xz").read_bytes())
    folder = tmp_path / "t"
    folder.mkdir()
    for k, line in enumerate(sample.splitlines()):
        text = json.dumps(json.loads(line), indent=2).encode()
        name, data = [
            ("a.json", text),
            ("b.json.gz", gzip.compress(text)),
            ("c.jsonl", line),
            ("d.json.xz", lzma.compress(text)),
            ("e.json", text),
        ][k]
        (folder / name).write_bytes(data)
    (folder / "README.md").write_text("not a trace")
    (tmp_path / "t.jsonl").write_bytes(sample)
    assert equal(load(folder, cache=False), load(tmp_path / "t.jsonl", cache=False))


def test_errors_within_a_document_have_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{\n  "id": "x",\n  "requests": [\n    nonsense\n  ]\n}\n')
    with pytest.raises(TraceError, match=r"a\.json:4:6: JSON is malformed: invalid character"):
        load(tmp_path, cache=False)
    with pytest.raises(TraceError, match=r"a\.json:4:\d+: JSON is malformed: "):
        load(tmp_path, "agentx", cache=False)
    (tmp_path / "a.json").write_text('{\n  "id": "x",\n  "requests": [\n')
    with pytest.raises(TraceError, match=r"a\.json:3:16: JSON is malformed: it ends too early"):
        load(tmp_path, "agentx", cache=False)


def test_places_count_lines_of_each_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"k": 1}\n\n{"k": 2}\n')
    (tmp_path / "b.json").write_text('\n{\n"k": 3}\n')
    found = [(r.place, r.data.strip()) for r in open_source(tmp_path).records()]
    a, b = str(tmp_path / "a.jsonl"), str(tmp_path / "b.json")
    assert found == [(Place(a, 1), b'{"k": 1}'), (Place(a, 3), b'{"k": 2}'), (Place(b, 2), b'{\n"k": 3}')]


def test_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "mooncake.jsonl").write_bytes(PLAIN)
    with pytest.raises(TraceError, match=r"moncake.jsonl: no such trace file, did you mean 'mooncake.jsonl'"):
        load(tmp_path / "moncake.jsonl")
    with pytest.raises(TraceError, match="no such trace file$"):
        load(tmp_path / "nowhere" / "x.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match=r"empty: the directory has no \.jsonl, \.json, \.ndjson files"):
        load(tmp_path / "empty")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_read_once_and_not_cached(tmp_path: Path) -> None:
    import threading

    pipe = tmp_path / "t"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(PLAIN,))
    writer.start()
    workload = load(pipe)
    writer.join()
    assert workload.requests == 200
