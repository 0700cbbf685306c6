"""The cache of loaded traces, and what loading imports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvsim.workload.load as loading
from kvsim.workload.load import load

from .twins import equal

DATA = Path(__file__).parents[1] / "data"
SAMPLES = ["agentx_v8_sample.jsonl.xz", "mooncake_conversation_200.jsonl.gz"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("KVSIM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "traces"


def break_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any reading of records fail, so that only the cache can answer."""

    def fail(*_: object) -> None:
        raise AssertionError("the trace was read again")

    monkeypatch.setattr(loading, "_read", fail)


@pytest.mark.parametrize("name", SAMPLES)
def test_round_trip(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = load(DATA / name)
    assert len(list(cache.iterdir())) == 1
    break_readers(monkeypatch)
    kept = load(DATA / name)
    assert equal(fresh, kept)
    kept.check()


def test_the_content_is_the_key_and_the_name_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(DATA / SAMPLES[1])
    break_readers(monkeypatch)
    shutil.copy(DATA / SAMPLES[1], tmp_path / "other.jsonl.gz")
    assert load(tmp_path / "other.jsonl.gz").name == "other"


def test_other_content_is_read_anew(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "t.jsonl"
    line = b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
    path.write_bytes(line)
    assert load(path).requests == 1
    path.write_bytes(line + line)
    assert load(path).requests == 2
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "text"])
def test_a_damaged_cache_file_is_rebuilt(damage: str, cache: Path) -> None:
    fresh = load(DATA / SAMPLES[1])
    (kept,) = cache.iterdir()
    data = bytearray(kept.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    kept.write_bytes(bytes({"empty": b"", "cut": data[: len(data) // 2], "flipped": data, "text": b"not a zip file"}[damage]))
    assert equal(load(DATA / SAMPLES[1]), fresh)
    assert kept.stat().st_size == len(data)


def test_no_cache_on_request(cache: Path) -> None:
    load(DATA / SAMPLES[1], cache=False)
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVSIM_CACHE_DIR", str(tmp_path / "file"))
    assert load(DATA / SAMPLES[1]).requests == 200


def test_a_kept_trace_needs_no_compiler() -> None:
    load(DATA / SAMPLES[0])
    code = (
        "import sys; from kvsim.workload.load import load; load(sys.argv[1]); "
        "print([m for m in ('numba', 'matplotlib', 'polars', 'rich') if m in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code, str(DATA / SAMPLES[0])], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"
