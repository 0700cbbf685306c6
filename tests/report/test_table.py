"""The terminal table: every number is there, at any width, in a file as on a screen."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from kvsim.metrics.result import Result
from kvsim.metrics.summary import FaultWindow, SsdWear
from kvsim.report.table import LEGEND, NO_VALUE, results_text, show_results


def row_of(text: str, concurrency: str) -> list[str]:
    """The words of the row that begins with `concurrency`, signs between tiers taken out."""
    line = next(line for line in text.splitlines() if re.match(rf"\s+{concurrency}\s", line))
    return [word for word in re.split(r"[\s=+]+|\bof\b", line) if word]


@pytest.fixture
def busy(make: Any) -> Any:
    return make(
        "HBM + DRAM", 16, 12_011.4, 51.04, output=96.06, uncached=841.2, ttft=(9.0, 1.4, 5.0, 8.0, 1234.5), hits=(0.799, 0.103, 0.0, 0.0),
        ideal=0.971, preemptions=4410, saved=37_210_000,
    )  # fmt: skip


EXPECTED = ["16", "12,011", "96.1", "841", "51.0", "1.40", "1,234", "90.2", "79.9", "10.3", "97.1", "4,410", "37.2M"]


@pytest.mark.parametrize("width", [100, 120, 160])
def test_every_number_is_there_and_lines_fit(width: int, busy: Any, cliff: Any) -> None:
    text = results_text([*cliff[:7], busy], width).plain
    assert row_of(text.split("HBM + DRAM\n")[1], "16") == EXPECTED
    assert max(map(len, text.splitlines())) <= width
    for line in LEGEND:
        assert line in text


def test_all_four_tiers_fit_in_a_hundred_columns(make: Any) -> None:
    points = [make("all", 64, 12_011.0, hits=(0.5, 0.2, 0.1, 0.05), preemptions=4410, saved=1e9)]
    text = results_text(points, 100).plain
    assert row_of(text, "64")[7:] == ["85.0", "50.0", "20.0", "10.0", "5.0", "97.8", "4,410", "1.00G"]
    assert max(map(len, text.splitlines())) <= 100
    assert "SSD" in text and "pool" in text


def test_tiers_nobody_hits_take_no_room_and_totals_stand_before_their_parts(busy: Any) -> None:
    text = results_text([busy], 160).plain
    assert "SSD" not in text and "pool" not in text
    assert "90.2 = 79.9 + 10.3 of" in text
    assert "total =  HBM + DRAM of" in text


def test_a_terminal_too_narrow_loses_nothing(busy: Any) -> None:
    assert row_of(results_text([busy], 40).plain, "16") == EXPECTED


def test_variants_are_groups_in_their_order_even_if_points_come_mixed(make: Any) -> None:
    points = [make("b", 1), make("a", 1), make("b", 2), make("a", 2)]
    lines = results_text(points, 120).plain.splitlines()
    assert [line.split()[0] for line in lines[3:9]] == ["b", "1", "2", "a", "1", "2"]


def test_what_is_null_is_a_dash(make: Any) -> None:
    text = results_text(
        [make("v", None, None, None, output=None, uncached=None, ttft=(None,) * 5, hits=None, saved=0, requests=0)], 120
    ).plain
    assert row_of(text, NO_VALUE) == [NO_VALUE] * 11 + ["0", "0"]
    assert f"note: no request finished in the window: v at {NO_VALUE}" in text


@pytest.mark.parametrize(
    ("number", "said"),
    [(0.0, "0"), (0.00042, "0.000420"), (0.45, "0.450"), (9.999, "10.0"), (99.94, "99.9"), (99.96, "100"), (123456.7, "123,457")],
)
def test_numbers_have_three_digits_at_least(number: float, said: str, make: Any) -> None:
    assert row_of(results_text([make("v", 1, number)], 160).plain, "1")[1] == said


@pytest.mark.parametrize(("tokens", "said"), [(999, "999"), (999_600, "1.00M"), (39_000_000, "39.0M"), (2_400_000_000_000, "2.40T")])
def test_tokens_saved_are_scaled(tokens: int, said: str, make: Any) -> None:
    assert row_of(results_text([make("v", 1, saved=tokens)], 160).plain, "1")[-1] == said


def test_rejections_are_told_below(make: Any) -> None:
    text = results_text([make("a", 1), make("a", 8, rejected=3), make("a", 16, rejected=1200), make("b", 8, rejected=1)], 160).plain
    assert "note: requests rejected, too large for HBM (in no other figure): a at 8 (3), 16 (1,200); b at 8 (1)" in text
    assert "rejected" not in results_text([make("a", 1)], 160).plain


FAULTS = (
    FaultWindow("node 1 down", 600.0, 900.0, 1137, 8012.3, 0.71, 41.23, 4),
    FaultWindow("SSD slow", 1800.5, None, 37, 11012.3, 0.904, 9.3, 0),
    FaultWindow("pool lossy", 0.0, 30.0001, 0, None, None, None, 0),
)


@pytest.mark.parametrize("width", [100, 160])
def test_faults_stand_below_the_rows_beside_the_whole_point(width: int, busy: Any, make: Any) -> None:
    points = [make("HBM only", 16), replace(busy, faults=FAULTS), make("open", None, 100.0, faults=FAULTS[:1])]
    lines = results_text(points, width).plain.split(LEGEND[0])[0].splitlines()
    first = lines.index("HBM + DRAM", lines.index("HBM + DRAM") + 1)
    below = [re.split(r"\s{2,}", line.strip()) for line in lines[first:]]
    assert below[:6] == [
        ["HBM + DRAM"],
        ["16", "node 1 down, 600 to 900 s", "8,012", "12,011", "71.0", "90.2", "41.2", "1,234", "1,137", "4"],
        ["16", "SSD slow, from 1,800.5 s", "11,012", "12,011", "90.4", "90.2", "9.30", "1,234", "37", "0"],
        ["16", "pool lossy, 0 to 30 s", NO_VALUE, "12,011", NO_VALUE, "90.2", NO_VALUE, "1,234", "0", "0"],
        ["open"],
        [NO_VALUE, "node 1 down, 600 to 900 s", "8,012", "100", "71.0", "95.0", "41.2", "3.00", "1,137", "4"],
    ]
    assert max(map(len, lines)) <= width
    numbers = [line for line in lines[first - 1 :] if len(line) > len("HBM + DRAM")]
    assert len({len(line) for line in numbers}) == 1


def test_without_faults_there_is_no_table_of_them(cliff: Any) -> None:
    assert "fault" not in results_text(cliff, 160).plain


def test_wear_is_told_of_the_hardest_point_of_each_variant(make: Any) -> None:
    points = [
        make("HBM only", 1),
        make("SSD", 1, ssd=SsdWear(1e12, 0.1, 50.0)),
        make("SSD", 8, ssd=SsdWear(8.6e13, 8.6, 5 / 8.6)),
        make("unrated", None, ssd=SsdWear(1e12, 0.1, None)),
        make("no window", 1, ssd=SsdWear(None, None, None)),
    ]
    said = [line for line in results_text(points, 100).plain.splitlines() if line.startswith("SSD wear")]
    assert said == [
        "SSD wear: SSD at 8: 8.60 drive writes a day, worn out in 0.581 years",
        f"SSD wear: unrated at {NO_VALUE}: 0.100 drive writes a day",
    ]


def test_in_a_pipe_there_are_no_colours_and_no_cuts(busy: Any, cliff: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = io.StringIO()
    show_results(Result("1", {}, (*cliff, busy), ""), console=Console(file=out))
    assert "\x1b" not in out.getvalue() and "…" not in out.getvalue()
    assert out.getvalue().rstrip("\n") == results_text([*cliff, busy], 160).plain


def test_on_a_terminal_the_names_are_coloured_and_markup_is_text(make: Any) -> None:
    out = io.StringIO()
    show_results(
        Result("1", {}, (make("[red]x[/red]", 1),), ""), console=Console(file=out, force_terminal=True, width=120, color_system="standard")
    )
    assert "\x1b[" in out.getvalue() and "[red]x[/red]" in out.getvalue()


def test_json_prints_the_summary_document(busy: Any) -> None:
    out = io.StringIO()
    result = Result("1.0", {"name": "x"}, (busy,), "")
    show_results(result, console=Console(file=out), as_json=True)
    assert json.loads(out.getvalue()) == json.loads(result.to_json())


def test_no_points_is_a_header_and_a_legend() -> None:
    assert results_text([], 120).plain.splitlines()[-1] == LEGEND[-1]
