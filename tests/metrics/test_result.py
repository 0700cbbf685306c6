"""The three files of a result: round trips, strictness, and never a part of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.metrics.files import write_atomically
from kvsim.metrics.histogram import N_BINS
from kvsim.metrics.recorder import COLUMNS
from kvsim.metrics.result import Result, ResultError
from kvsim.metrics.summary import FaultSpan, LinkUse, SsdUse, Unfinished, Window, summarise

NAMES = [("HBM only", 1), ("HBM only", 16), ("HBM + DRÄM", 1), ("open loop", None)]
DOWN = FaultSpan("node 1 down", 20, 40)
FAULTS = [(), (DOWN, FaultSpan("slow", 95, None)), (), (DOWN,)]


@pytest.fixture
def result(random_columns: Any) -> Result:
    columns = [random_columns(n, n) for n in (30, 0, 7, 12)]
    points = tuple(
        summarise(
            its, Window(10, 90), variant=variant, concurrency=concurrency, gpus=8, itl_counts=np.ones(N_BINS, np.int64),
            transfers={"pcie": LinkUse(5, 1.0, np.zeros(N_BINS, np.int64))}, evictions={"hbm": 1}, unfinished=Unfinished(0, 1),
            ssd=SsdUse(5, 10, 1.0) if variant == "HBM only" else None, faults=faults, simulated_s=90.0, wall_s=0.25,
        )
        for (variant, concurrency), its, faults in zip(NAMES, columns, FAULTS, strict=True)
    )  # fmt: skip
    return Result(
        "1.2.3", {"name": "test", "seed": 42, "cluster": {"tiers": {"ssd": None}}}, points, "name: test\nseed: 42\n", tuple(columns)
    )


def test_what_is_written_is_read_back(result: Result, tmp_path: Path) -> None:
    result.write(tmp_path / "new" / "folder")
    again = Result.read(tmp_path / "new" / "folder", requests=True)
    assert (again.kvsim, again.scenario, again.points, again.scenario_yaml) == (
        result.kvsim, result.scenario, result.points, result.scenario_yaml,
    )  # fmt: skip
    for read, written in zip(again.requests, result.requests, strict=True):
        assert list(read) == list(COLUMNS)
        for name, column in COLUMNS.items():
            assert read[name].dtype == column.dtype
            np.testing.assert_array_equal(read[name], written[name], err_msg=name)
    assert Result.read(tmp_path / "new" / "folder").requests == ()
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["requests.parquet", "scenario.yaml", "summary.json"]


def test_the_parquet_file_has_a_row_a_request_with_its_point(result: Result, tmp_path: Path) -> None:
    import polars as pl

    result.write(tmp_path)
    frame = pl.read_parquet(tmp_path / "requests.parquet")
    assert frame.columns == ["variant", "concurrency", *COLUMNS]
    assert frame.height == 30 + 0 + 7 + 12
    assert frame.filter(pl.col("concurrency").is_null())["variant"].unique().to_list() == ["open loop"]
    rejected = frame.filter("rejected")
    assert rejected.height > 0 and rejected["first_token_s"].null_count() == rejected.height


def test_same_result_same_bytes(result: Result, tmp_path: Path) -> None:
    for name in ("a", "b"):
        result.write(tmp_path / name)
    for file in ("requests.parquet", "scenario.yaml", "summary.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_result_of_no_points_can_be_written_and_read(tmp_path: Path) -> None:
    Result("1", {}, (), "").write(tmp_path)
    assert Result.read(tmp_path, requests=True) == Result("1", {}, (), "")


def test_the_summary_is_strict_json_with_the_keys_of_the_contract(result: Result) -> None:
    document = json.loads(result.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert list(document) == ["kvsim", "scenario", "points"]
    empty = document["points"][1]
    assert empty["requests"] == 0 and empty["ttft_s"] == dict.fromkeys(("mean", "p50", "p90", "p95", "p99"))
    assert list(empty) == [
        "variant", "concurrency", "duration_s", "requests", "sessions", "input_tokens", "output_tokens", "throughput", "ttft_s", "tpot_s",
        "itl_s", "e2e_s", "queue_s", "interactivity_tok_s_user", "hit_rate", "prefill_tokens", "missed", "preemptions", "rejected",
        "unfinished", "transfers", "evictions", "ssd_writes_per_day", "ssd", "faults", "economics", "simulated_s", "wall_s",
    ]  # fmt: skip
    assert set(empty["throughput"]) == {
        "total_tok_s_per_gpu", "input_tok_s_per_gpu", "output_tok_s_per_gpu", "uncached_input_tok_s_per_gpu", "requests_s",
    }  # fmt: skip
    assert set(empty["interactivity_tok_s_user"]) == {"p50", "p90", "e2e_p90"}
    assert set(empty["hit_rate"]) == {"total", "hbm", "dram", "ssd", "pool", "theoretical"}
    assert set(empty["prefill_tokens"]) == {"computed", "saved", "recomputed"}
    assert set(empty["missed"]) == {"cold", "evicted", "elsewhere", "pending", "too_late", "partial_block", "not_stored"}
    assert empty["transfers"] == {"pcie": {"bytes": 5, "busy": 1 / 80, "queue_p99_s": None}}
    assert document["points"][3]["concurrency"] is None and document["points"][3]["ssd"] is None
    assert set(empty["ssd"]) == {"written_bytes_per_day", "drive_writes_per_day", "life_years"}
    assert empty["ssd"]["drive_writes_per_day"] == empty["ssd_writes_per_day"] == 5 * 86400 / 80 / 10
    assert empty["faults"] == [
        {"what": "node 1 down", "start_s": 20, "end_s": 40, "requests": 0, "total_tok_s_per_gpu": 0, "hit_rate": None, "ttft_p99_s": None,
         "retried": 0},
        {"what": "slow", "start_s": 95, "end_s": None, "requests": 0, "total_tok_s_per_gpu": None, "hit_rate": None, "ttft_p99_s": None,
         "retried": 0},
    ]  # fmt: skip


def test_a_write_that_fails_leaves_the_old_file_and_no_part(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def half(part: Path) -> None:
        part.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, half)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_points_of_one_name_and_missing_columns_are_refused(result: Result, tmp_path: Path) -> None:
    twice = Result("1", {}, result.points[:1] * 2, "", result.requests[:1] * 2)
    with pytest.raises(ValueError, match="same variant and concurrency"):
        twice.write(tmp_path)
    with pytest.raises(ValueError, match="4 points but columns of 0"):
        Result("1", {}, result.points, "").write(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[:-20], r"summary\.json:\d\d+:\d+: Input data was truncated"),
        (lambda text: text.replace('"requests": 0', '"requests": x'), r"summary\.json:\d+:\d+: JSON is malformed"),
        (lambda text: text.replace('"requests": 0', '"requests": "x"'), r"Expected `int`, got `str` - at `\$\.points\[1\]\.requests`"),
        (lambda text: text.replace('"requests": 0', '"request": 0', 1), r"missing required field `requests` - at `\$\.points\[1\]`"),
        (lambda text: text.replace('"ttft_s": {', '"ttft_s": {"p42": 1,', 1), r"unknown key \$\.points\[0\]\.ttft_s\.p42"),
        (lambda text: "", r"summary\.json:1:1: "),
    ],
)
def test_a_damaged_summary_is_told_in_one_sentence(damage: Any, said: str, result: Result, tmp_path: Path) -> None:
    result.write(tmp_path)
    path = tmp_path / "summary.json"
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(ResultError, match=said) as caught:
        Result.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_place_of_a_mistake_is_its_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{\n  "kvsim": x\n}')
    with pytest.raises(ResultError, match=r"summary\.json:2:12: "):
        Result.read(tmp_path)


def test_missing_and_damaged_files_are_named(result: Result, tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"summary\.json: cannot be read, No such file or directory"):
        Result.read(tmp_path)
    result.write(tmp_path)
    (tmp_path / "requests.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(ResultError, match=r"requests\.parquet: cannot be read"):
        Result.read(tmp_path, requests=True)
    (tmp_path / "scenario.yaml").write_bytes(b"name: \xff")
    with pytest.raises(ResultError, match=r"scenario\.yaml: is not UTF-8"):
        Result.read(tmp_path)


def test_reading_a_summary_loads_neither_polars_nor_matplotlib_nor_numba(result: Result, tmp_path: Path) -> None:
    result.write(tmp_path)
    code = (
        "import sys; from kvsim.metrics.result import Result; from kvsim.report.table import results_text;"
        f"results_text(Result.read({str(tmp_path)!r}).points, 100);"
        "print(sorted({'polars', 'matplotlib', 'numba', 'simpy'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert out.stdout.strip() == "[]"
