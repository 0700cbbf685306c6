"""Plots of a result: throughput against interactivity, and the hit rate by tier.

Figures are made without pyplot, so two runs in one process share nothing. Colours are those of Okabe and Ito (2008), which
colour-blind readers can tell apart; markers, dashes and hatches say the same again for those who print without colour.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from kvsim.metrics.declared import value
from kvsim.metrics.result import Result
from kvsim.metrics.summary import Point
from kvsim.report.labels import Label, place_labels
from kvsim.report.table import NO_VALUE

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)), (0, (10, 3)))
TIERS = (
    ("hbm", "HBM", "#0072B2", ""),
    ("dram", "DRAM", "#E69F00", ""),
    ("ssd", "SSD", "#009E73", "///"),
    ("pool", "shared pool", "#CC79A7", "..."),
)
BETTER = "up and to the right is better"
NUMBERED = f"numbers at the points: concurrency, that is sessions live at once · {BETTER}"
X, Y = "interactivity_tok_s_user.p50", "throughput.total_tok_s_per_gpu"
GREY = "#555555"
INK = 0.7  # text is darker than the line it belongs to: thin strokes look paler
MARKER_PT = 7.0
DPI = 120
HEADER_IN = 1.1  # title, explanation and legend above the panels
MOST_PANELS_A_ROW = 3


def write_plots(result: Result, directory: Path | str) -> list[Path]:
    """Write `throughput.png` and `hit-rate.png` into `directory`, which must exist; returns their paths."""
    title = str(result.scenario.get("name") or "")
    paths = []
    for name, draw in (("throughput.png", throughput_figure), ("hit-rate.png", hit_rate_figure)):
        paths.append(Path(directory) / name)
        draw(result.points, title).savefig(paths[-1], dpi=DPI)
    return paths


def throughput_figure(points: Sequence[Point], title: str = "") -> Figure:
    """Throughput per GPU over interactivity p50: a line a variant through its concurrencies, each point labelled with its own.

    A point without a concurrency (open loop) has the name of its variant alone. Points that lack one of the two values interrupt
    their line and are named below the plot. Every other variant has hollow markers, through which the points below them are seen.
    """
    figure = Figure(figsize=(9, 6), dpi=DPI)
    axes = figure.add_axes((0.1, 0.13, 0.87, 0.73))
    _title(
        figure,
        title or "Throughput against interactivity",
        BETTER if _open_loop(points) else NUMBERED,
    )
    variants = _by_variant(points)
    shown = {name: np.array([[_number(p, X), _number(p, Y)] for p in its]) for name, its in variants.items()}
    _limits(axes, np.concatenate([np.zeros((0, 2)), *shown.values()]))
    labels: list[Label] = []
    names: list[Label] = []
    lines: list[NDArray[np.float64]] = []
    for i, (variant, at) in enumerate(shown.items()):
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(
            at[:, 0], at[:, 1], color=colour, linestyle=DASHES[i % len(DASHES)], linewidth=1.8, label=variant,
            marker=MARKERS[i % len(MARKERS)], **_face(colour, hollow=i % 2 == 1),
        )  # fmt: skip
        there = np.flatnonzero(np.isfinite(at).all(axis=1))
        numbered = [k for k in there if variants[variant][k].concurrency is not None]
        labels += [_beside(at[k], _concurrency(variants[variant][k]), 18, colour, 8.5) for k in numbered]
        names += [_beside(at[there[-1]], _wrapped(variant), 90, colour, 10.5, bold=True)] if there.size else []
        lines += _unbroken(at)
    place_labels(figure, axes, [*labels, *names], lines, MARKER_PT + 2)
    axes.set_xlabel("interactivity p50, tokens/s one user sees")
    axes.set_ylabel("throughput, tokens/s per GPU (prompt + answer)")
    _note_missing(
        figure, [p for name, its in variants.items() for p, at in zip(its, shown[name], strict=True) if not np.isfinite(at).all()]
    )
    return figure


def hit_rate_figure(points: Sequence[Point], title: str = "") -> Figure:
    """Hit rate by tier, stacked, over concurrency: a panel a variant, with the total above each bar and the theoretical rate as a line."""
    variants = _by_variant(points)
    columns = min(MOST_PANELS_A_ROW, max(len(variants), 1))
    rows = math.ceil(len(variants) / columns) or 1
    height = HEADER_IN + 0.6 + 2.7 * rows
    layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - HEADER_IN / height))
    figure = Figure(figsize=(max(2.0 + 3.6 * columns, 7.0), height), dpi=DPI, layout=layout)
    _title(figure, title or "Hit rate by tier", "share of prompt tokens found in each tier · above the bars: all tiers together, %")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    tiers = [tier for tier in TIERS if tier[0] in ("hbm", "dram") or any(value(p, f"hit_rate.{tier[0]}") for p in points)]
    for panel, (variant, its) in zip(panels, variants.items(), strict=False):
        _hit_panel(panel, its, tiers)
        panel.set_title(_wrapped(variant), loc="left", fontsize=10.5, fontweight="bold", parse_math=False)
    for panel in panels[len(variants) :]:
        panel.set_visible(False)
    figure.supxlabel("open loop: no fixed concurrency" if _open_loop(points) else "concurrency (sessions live at once)", fontsize=10)
    figure.supylabel("% of prompt tokens", fontsize=10)
    if variants:
        line, *bars = panels[0].get_legend_handles_labels()[0]
        figure.legend(
            handles=[*bars, line],
            loc="center left",
            bbox_to_anchor=(0.02, 1 - 0.9 / height),
            ncols=5,
            fontsize=9,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
        )
    return figure


def _hit_panel(axes: Axes, points: Sequence[Point], tiers: Sequence[tuple[str, str, str, str]]) -> None:
    at = np.arange(float(len(points)))
    floor = np.zeros(len(points))
    for key, name, colour, hatch in tiers:
        share = np.nan_to_num([100 * _number(p, f"hit_rate.{key}") for p in points])
        axes.bar(at, share, bottom=floor, width=0.75, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=name)
        floor += share
    ideal = np.array([100 * _number(p, "hit_rate.theoretical") for p in points])
    axes.hlines(ideal, at - 0.45, at + 0.45, color="black", linewidth=1.6, label="infinite cache (theoretical)")
    size = 8.5 if len(points) <= 10 else 6.5
    for x, point in zip(at, points, strict=True):
        total = value(point, "hit_rate.total")
        axes.text(x, 105, NO_VALUE if total is None else f"{100 * total:.0f}", ha="center", va="center", fontsize=size)
    spare = max(4 - len(points), 0) / 2
    axes.set_xlim(-0.6 - spare, len(points) - 0.4 + spare)
    axes.set_ylim(0, 110)
    axes.set_yticks(range(0, 101, 20))
    axes.set_xticks(at, [_concurrency(p) for p in points], fontsize=size)
    _plain(axes)
    axes.grid(axis="x", visible=False)


def _by_variant(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points of each variant by concurrency, variants in the order they first come."""
    variants: dict[str, list[Point]] = {}
    for point in points:
        variants.setdefault(point.variant, []).append(point)
    return {name: sorted(its, key=lambda p: -1 if p.concurrency is None else p.concurrency) for name, its in variants.items()}


def _open_loop(points: Sequence[Point]) -> bool:
    return bool(points) and all(point.concurrency is None for point in points)


def _number(point: Point, path: str) -> float:
    number = value(point, path)
    return math.nan if number is None else float(number)


def _concurrency(point: Point) -> str:
    return NO_VALUE if point.concurrency is None else str(point.concurrency)


def _face(colour: str, *, hollow: bool) -> dict[str, Any]:
    """The look of a marker; hollow ones lie on top and leave those below them visible."""
    if hollow:
        return {"markersize": MARKER_PT, "markerfacecolor": "none", "markeredgecolor": colour, "markeredgewidth": 1.4, "zorder": 4}
    return {"markersize": MARKER_PT + 1.5, "markerfacecolor": colour, "markeredgecolor": "white", "markeredgewidth": 0.7, "zorder": 3}


def _beside(at: NDArray[np.float64], text: str, reach_pt: float, colour: str, size: float, *, bold: bool = False) -> Label:
    style = {"color": tuple(INK * np.array(to_rgb(colour))), "fontsize": size, "fontweight": "bold" if bold else "normal", "zorder": 5}
    return Label(text, float(at[0]), float(at[1]), reach_pt, style)


def _unbroken(at: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The stretches of a line between the points it lacks."""
    holes = ~np.isfinite(at).all(axis=1)
    pieces = np.split(at, np.flatnonzero(holes))
    return [kept for piece in pieces if len(kept := piece[np.isfinite(piece).all(axis=1)])]


def _limits(axes: Axes, at: NDArray[np.float64]) -> None:
    """From zero, so that lengths compare, to some room for labels beyond the largest value."""
    complete = at[np.isfinite(at).all(axis=1)]
    most = complete.max(axis=0, initial=0)
    axes.set_xlim(0, 1.08 * most[0] or 1)
    axes.set_ylim(0, 1.12 * most[1] or 1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.10g}"))
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _title(figure: Figure, title: str, explanation: str) -> None:
    height = figure.get_figheight()
    figure.text(
        0.02, 1 - 0.28 / height, textwrap.shorten(title, 90, placeholder="…"), fontsize=13, fontweight="bold", va="center", parse_math=False
    )
    figure.text(0.02, 1 - 0.58 / height, explanation, fontsize=9.5, color=GREY, va="center")


def _note_missing(figure: Figure, missing: Sequence[Point]) -> None:
    if missing:
        names = ", ".join(f"{point.variant} at {_concurrency(point)}" for point in missing)
        figure.text(
            0.02, 0.02, textwrap.shorten(f"not measured: {names}", 130, placeholder=" …"), fontsize=8.5, color=GREY, parse_math=False
        )


def _wrapped(name: str) -> str:
    return textwrap.fill(name, 26)
