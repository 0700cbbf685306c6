"""Plots by their artists: a label a point, inside the axes, off each other; and files for whatever comes."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from kvsim.metrics.result import Result
from kvsim.report.plot import hit_rate_figure, throughput_figure, write_plots
from kvsim.report.table import NO_VALUE

PNG = b"\x89PNG\r\n"


def labels(figure: Figure) -> list[tuple[str, Any]]:
    """(text, box in pixels) of the labels in the first axes; leader lines have no text."""
    canvas: Any = FigureCanvasAgg(figure)
    figure.draw(canvas.get_renderer())
    notes = [t for t in figure.axes[0].texts if isinstance(t, Annotation) and t.get_text()]
    return [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in notes]


def inside(figure: Figure) -> list[str]:
    frame = figure.axes[0].bbox
    return [text for text, box in labels(figure) if frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    return [(a, b) for (a, one), (b, two) in combinations(labels(figure), 2) if one.overlaps(two)]


def test_the_cliff_has_a_label_a_point_and_a_name_a_line(cliff: Any) -> None:
    figure = throughput_figure(cliff, "the cliff")
    expected = sorted([str(p.concurrency) for p in cliff] + ["HBM only", "HBM + DRAM"])
    assert sorted(text for text, _ in labels(figure)) == expected
    assert sorted(inside(figure)) == expected
    assert overlapping(figure) == []


def test_labels_stand_beside_their_points_and_names_beside_the_last(cliff: Any) -> None:
    figure = throughput_figure(cliff)
    axes = figure.axes[0]
    found = labels(figure)
    for point in cliff:
        at = axes.transData.transform((point.interactivity_tok_s_user.p50, point.throughput.total_tok_s_per_gpu))
        gaps = [_gap(box, at) for text, box in found if text == str(point.concurrency)]
        assert min(gaps) < 25, point.concurrency
    for name in ("HBM only", "HBM + DRAM"):
        last = next(p for p in cliff if (p.variant, p.concurrency) == (name, 64))
        at = axes.transData.transform((last.interactivity_tok_s_user.p50, last.throughput.total_tok_s_per_gpu))
        assert _gap(dict(found)[name], at) < 60


def _gap(box: Any, at: Any) -> float:
    return math.hypot(max(box.x0 - at[0], at[0] - box.x1, 0), max(box.y0 - at[1], at[1] - box.y1, 0))


@pytest.mark.parametrize("seed", range(4))
def test_labels_of_eight_close_points_do_not_overlap(seed: int, make: Any) -> None:
    rng = np.random.default_rng(seed)
    points = [make("close", 100 + k, 10_000 + 300 * rng.standard_normal(), 50 + rng.standard_normal()) for k in range(8)]
    figure = throughput_figure([*points, make("far", 1, 3000, 100)])
    assert len(inside(figure)) == 8 + 1 + 2
    assert overlapping(figure) == []


def test_lines_go_by_concurrency_and_break_at_what_was_not_measured(make: Any) -> None:
    points = [make("a", 4, 400, 30), make("a", 1, 100, 50), make("a", 2, None, 40), make("a", 8, 500, None), make("b", 1, None, None)]
    figure = throughput_figure(points)
    line = figure.axes[0].lines[0]
    np.testing.assert_array_equal(np.asarray(line.get_ydata(), float), [100, np.nan, 400, 500])
    assert [text for text, _ in labels(figure)] == ["1", "4", "a"]
    assert [t.get_text() for t in figure.texts][-1] == "not measured: a at 2, a at 8, b at 1"


def test_variants_differ_in_colour_marker_and_dash(make: Any) -> None:
    lines = throughput_figure([make(f"v{k}", 1, 100 * k, 10) for k in range(7)]).axes[0].lines
    assert len({line.get_color() for line in lines}) == len({line.get_marker() for line in lines}) == 7
    assert len({(line.get_marker(), line.get_linestyle(), line.get_color()) for line in lines}) == 7


def test_nothing_covers_the_data_with_a_legend(cliff: Any) -> None:
    assert throughput_figure(cliff).axes[0].get_legend() is None
    figure = hit_rate_figure(cliff)
    canvas: Any = FigureCanvasAgg(figure)
    figure.draw(canvas.get_renderer())
    (legend,) = figure.legends
    boxes = [axes.get_tightbbox(canvas.get_renderer()) for axes in figure.axes]
    assert not any(legend.get_window_extent(canvas.get_renderer()).overlaps(box) for box in boxes if box is not None)


def test_bars_of_a_panel_are_its_tiers_and_the_line_is_the_theoretical_rate(make: Any) -> None:
    points = [
        make("a", 8, hits=(0.5, 0.25, 0.0, 0.125), ideal=0.96),
        make("a", 2, hits=(0.9, 0.0, 0.0, 0.0)),
        make("b", 1, hits=None, ideal=None),
    ]
    first, second = hit_rate_figure(points).axes
    heights = {str(c.get_label()): [bar.get_height() for bar in c] for c in first.containers}
    assert heights == {"HBM": [90, 50], "DRAM": [0, 25], "shared pool": [0, 12.5]}
    assert [bar.get_y() for bar in first.containers[2]] == [90, 75]
    (ideal,) = (c for c in first.collections if c.get_label() == "infinite cache (theoretical)")
    assert [segment[0][1] for segment in ideal.get_segments()] == [97.8, 96]  # type: ignore[attr-defined]
    assert [t.get_text() for t in first.texts] == ["90", "88"] and [t.get_text() for t in second.texts] == [NO_VALUE]
    assert [t.get_text() for t in first.get_xticklabels()] == ["2", "8"]
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["a", "b"]


@pytest.mark.parametrize(
    "points",
    [
        [],
        [("one", 8, 9000.0, 30.0)],
        [("open", None, 9000.0, 30.0)],
        [("same", c, 9000.0, 30.0) for c in (1, 2, 4)] + [("twin", c, 9000.0, 30.0) for c in (1, 2, 4)],
        [("gone", 1, None, None), ("gone", 2, None, None)],
        [("idle", 1, 0.0, 0.0)],
        [("half", 1, 5.0, None), ("half", 2, None, 5.0), ("half", 4, 1e-9, 1e9)],
        [
            (f"a variant with quite a long name, number {k}, ${k}/h$ and $more$", c, 10.0 * c, 5.0 + k)
            for k in range(9)
            for c in range(1, 15)
        ],
    ],
    ids=["none", "one", "open loop", "identical", "null", "zero", "extremes", "many"],
)
def test_both_files_come_out_whatever_the_points(points: Any, make: Any, tmp_path: Path) -> None:
    built = tuple(make(*values, hits=None if values[2] is None else (0.5, 0.1, 0.0, 0.0)) for values in points)
    paths = write_plots(Result("1", {"name": "x" * 300} if points else {}, built, ""), tmp_path)
    assert [path.name for path in paths] == ["throughput.png", "hit-rate.png"]
    assert all(path.read_bytes().startswith(PNG) for path in paths)
    measured = [p for p in built if None not in (p.throughput.total_tok_s_per_gpu, p.interactivity_tok_s_user.p50)]
    figure = throughput_figure(built)
    numbered = [p for p in measured if p.concurrency is not None]
    assert sum(text in {str(p.concurrency) for p in numbered} for text in inside(figure)) == len(numbered)


def test_open_loop_points_have_their_variants_names_only(make: Any) -> None:
    points = [make("HBM only", None, 3100, 22), make("HBM + DRAM", None, 9100, 41, hits=(0.3, 0.4, 0.1, 0.1))]
    figure = throughput_figure(points)
    assert sorted(inside(figure)) == ["HBM + DRAM", "HBM only"] and overlapping(figure) == []
    assert not any("concurrency" in t.get_text() for t in figure.texts)
    hits = hit_rate_figure(points)
    assert [[t.get_text() for t in axes.get_xticklabels()] for axes in hits.axes] == [[NO_VALUE], [NO_VALUE]]
    assert hits.get_supxlabel() == "open loop: no fixed concurrency"
    both = throughput_figure([*points, make("closed", 8, 5000, 30)])
    assert sorted(inside(both)) == ["8", "HBM + DRAM", "HBM only", "closed"]
    assert any("concurrency" in t.get_text() for t in both.texts)


@pytest.mark.parametrize("draw", [throughput_figure, hit_rate_figure])
def test_dollars_in_names_are_dollars(draw: Any, make: Any) -> None:
    figure = draw([make("$2/h or $3/h", 1), make("$2/h or $3/h", 2, None)], "$5 to $9")
    named = [t for t in figure.findobj(lambda artist: isinstance(artist, Text)) if "$" in t.get_text()]
    assert len(named) >= 2 and not any(t.get_parse_math() for t in named)


def test_plots_leave_pyplot_alone(cliff: Any, tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, kvsim.report.plot as p; p.throughput_figure([]).savefig(sys.argv[1]); print('matplotlib.pyplot' in sys.modules)"
    root = Path(__file__).parents[2]
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.png")], capture_output=True, text=True, check=True, cwd=root)
    assert out.stdout.strip() == "False"
