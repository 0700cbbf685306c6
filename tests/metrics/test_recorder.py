"""The recorder against a twin of a list of dicts, its laws, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import LawError
from kvsim.metrics.recorder import COLUMNS, HITS, MISSED, Recorder

SMALL = st.integers(0, 2**31 - 1)
VALUES = {np.int64: st.integers(-(2**63), 2**63 - 1), np.int32: SMALL, np.float64: st.floats(allow_nan=False), np.bool_: st.just(False)}
ROW = st.fixed_dictionaries({name: VALUES[column.dtype] for name, column in COLUMNS.items()})


@given(st.integers(1, 3), st.lists(st.one_of(ROW, st.lists(ROW, max_size=4)), max_size=6))
def test_any_mix_of_appends_and_extends_is_the_list_of_rows(capacity: int, calls: list[Any]) -> None:
    recorder, twin = Recorder(capacity), []
    for call in calls:
        if isinstance(call, dict):
            recorder.append(**call)
            twin.append(call)
        else:
            recorder.extend({name: np.array([row[name] for row in call], column.dtype) for name, column in COLUMNS.items()})
            twin.extend(call)
    table = recorder.table()
    assert len(recorder) == len(twin)
    assert list(table) == list(COLUMNS)
    for name, column in COLUMNS.items():
        assert table[name].dtype == column.dtype
        assert table[name].tolist() == [row[name] for row in twin]


def test_many_appends_grow_by_doubling_and_lose_nothing(row: Any) -> None:
    recorder, capacities = Recorder(2), set()
    for i in range(100):
        recorder.append(**row(request=i))
        capacities.add(recorder.table()["request"].base.size)  # type: ignore[union-attr]
    assert capacities == {2, 4, 8, 16, 32, 64, 128}
    assert recorder.table()["request"].tolist() == list(range(100))


def test_random_lawful_rows_pass(random_columns: Any) -> None:
    recorder = Recorder()
    recorder.extend(random_columns(200))
    assert 0 < recorder.table()["rejected"].sum() < 200
    recorder.check()
    Recorder().check()


GOOD: dict[str, Any] = {"arrival_s": 1.0, "scheduled_s": 1.0, "first_token_s": 2.0, "finish_s": 2.0, "input_tokens": 10, "output_tokens": 1}


@pytest.mark.parametrize("name", [*HITS, "computed_tokens", "input_tokens"])
def test_a_token_too_many_breaks_the_law_of_tokens(name: str, row: Any) -> None:
    bad = row(**GOOD, request=77, session=5)
    bad[name] += 1
    recorder = Recorder()
    recorder.append(**row(**GOOD))
    recorder.append(**bad)
    with pytest.raises(LawError, match=r"law of tokens .* row 1 and 0 others: request 77, session 5, "):
        recorder.check()


@pytest.mark.parametrize("name", MISSED)
def test_a_miss_too_many_breaks_the_law_of_misses(name: str, row: Any) -> None:
    bad = row(**GOOD)
    bad[name] += 1
    recorder = Recorder()
    recorder.append(**bad)
    with pytest.raises(LawError, match=f"law of missed .*{name} "):
        recorder.check()


@pytest.mark.parametrize(
    "times",
    [
        {"scheduled_s": 0.5},
        {"first_token_s": 0.99},
        {"finish_s": 1.99},
        {"scheduled_s": np.nan},
        {"arrival_s": -np.inf},
        {"finish_s": np.inf},
    ],
)
def test_time_going_back_breaks_the_law_of_time(times: dict[str, float], row: Any) -> None:
    recorder = Recorder()
    recorder.append(**row(**GOOD | times))
    with pytest.raises(LawError, match="law of time"):
        recorder.check()


@pytest.mark.parametrize(
    "name", ["output_tokens", "recomputed_tokens", "theoretical_tokens", "preemptions", "retries", "load_s", "transfer_s"]
)
def test_negative_counts_break_the_law_of_sign(name: str, row: Any) -> None:
    recorder = Recorder()
    recorder.append(**row(**GOOD | {name: -1}))
    with pytest.raises(LawError, match=f"law of sign .{name} >= 0"):
        recorder.check()


def test_a_rejected_request_did_nothing_whatever_was_said_of_it(row: Any) -> None:
    recorder = Recorder()
    said = GOOD | {"scheduled_s": -1.0, "first_token_s": -1.0, "recomputed_tokens": -10, "transfer_s": -1.0, "retries": 2, "rejected": True}
    recorder.append(**row(**GOOD))
    recorder.append(**row(**said))
    recorder.append(**row(**GOOD))
    recorder.check()
    second = {name: values[1] for name, values in recorder.table().items()}
    assert np.isnan(second["scheduled_s"]) and np.isnan(second["first_token_s"])
    assert second["computed_tokens"] == second["recomputed_tokens"] == second["missed_cold"] == 0
    assert (second["input_tokens"], second["output_tokens"], second["finish_s"]) == (10, 1, 2.0)
    assert (second["retries"], second["transfer_s"]) == (2, 0.0)
    assert recorder.table()["computed_tokens"].tolist() == [10, 0, 10]


def test_a_rejection_before_its_arrival_breaks_the_law_of_time(row: Any) -> None:
    recorder = Recorder()
    recorder.append(**row(**GOOD | {"arrival_s": 3.0, "rejected": True}))
    with pytest.raises(LawError, match="law of time"):
        recorder.check()


def test_what_does_not_fit_is_refused_and_nothing_is_added(row: Any, columns: Any) -> None:
    recorder = Recorder()
    good = columns([row(**GOOD)] * 2)
    for wrong, error, said in (
        ({k: v for k, v in good.items() if k != "lane"}, TypeError, r"missing columns \['lane'\]"),
        (good | {"lanes": good["lane"]}, TypeError, r"unknown columns \['lanes'\]"),
        (good | {"lane": good["lane"][:1]}, ValueError, "different lengths"),
        (good | {"lane": np.array([0.5, 1.5])}, TypeError, "column lane is float64"),
        (good | {"lane": np.array([0, 2**31])}, OverflowError, "column lane"),
        (good | {"lane": np.zeros((2, 1), np.int32)}, TypeError, "2 dimensions"),
    ):
        with pytest.raises(error, match=said):
            recorder.extend(wrong)
    assert len(recorder) == 0
