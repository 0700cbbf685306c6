"""The terminal's answer to a run: one line a variant and concurrency, under a heading a variant.

The layout spreads with the width it is given and closes up to about 100 columns with HBM and DRAM. Numbers are never cut: on a narrower
terminal lines are longer than it. Columns of SSD and shared pool are there when a point has hits in them. Below the rows a line for
each fault sets its own time beside the whole point, and one for each variant with SSDs tells of their wear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

from kvsim.metrics.declared import value
from kvsim.metrics.result import Result
from kvsim.metrics.summary import FaultWindow, Point

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

NO_VALUE = "\N{EN DASH}"
PIPED_WIDTH = 160
LEGEND = (
    "total: prompt + answer, cached or not · uncached: prompt no cache had · TTFT: time to first token",
    f"interactivity: speed one user sees · ideal: with an infinite cache (theoretical) · {NO_VALUE}: not measured",
)
FAULT_FIGURES = ("tok/s/GPU", "hit rate, %", "TTFT p99, s")
CONCURRENCY_WIDTH = 7  # that of its head, so that both tables start alike


@dataclass(frozen=True, slots=True)
class _Column:
    """`before` stands between this column's cells and those to the left, where it is not just space."""

    heads: tuple[str, ...]
    path: str
    show: Callable[[float], str]
    before: str = ""


@dataclass(frozen=True, slots=True)
class _Group:
    """Columns that belong together, under one title."""

    title: str
    columns: tuple[_Column, ...]


class _Spacing(NamedTuple):
    """Blanks between groups, between the columns of a group, and around the signs between tiers."""

    groups: int
    columns: int
    signs: int


_SPACINGS = (_Spacing(4, 2, 1), _Spacing(3, 2, 1), _Spacing(3, 1, 1), _Spacing(2, 1, 1), _Spacing(2, 1, 0), _Spacing(1, 1, 0))


def show_results(result: Result, *, console: Console | None = None, as_json: bool = False) -> None:
    """Print the table of `result`, or its summary document; plain text without colours where the output is no terminal."""
    from rich.console import Console

    console = console or Console()
    if as_json:
        console.file.write(result.to_json().decode())
        return
    width = console.width if console.is_terminal else PIPED_WIDTH
    console.print(results_text(result.points, width), soft_wrap=True, highlight=False)


def results_text(points: Sequence[Point], width: int) -> Text:
    """The table of `points`, variants in the order they first come, with its legend; fits `width` columns if its numbers let it."""
    from rich.text import Text

    variants: dict[str, list[Point]] = {}
    for point in points:
        variants.setdefault(point.variant, []).append(point)
    groups = _groups(points)
    layout = next((fit for spacing in _SPACINGS if (fit := _Layout(groups, points, spacing)).width <= width), None)
    layout = layout or _Layout(groups, points, _SPACINGS[-1])
    text = Text()
    for line in layout.header():
        text.append(line.rstrip() + "\n", style="bold")
    for variant, its in variants.items():
        text.append(f"{variant}\n", style="bold cyan")
        for point in its:
            text.append(layout.row(point) + "\n")
    for line, style in _fault_lines(variants):
        text.append(line.rstrip() + "\n", style=style)
    text.append("\n".join(["", *LEGEND]), style="dim")
    for line in _wear(variants):
        text.append(f"\n{line}", style="dim")
    for note in _notes(points):
        text.append(f"\n{note}", style="yellow")
    return text


class _Layout:
    """Widths of all columns for one spacing, and the lines they make."""

    def __init__(self, groups: Sequence[_Group], points: Sequence[Point], spacing: _Spacing) -> None:
        self._groups, self._spacing = groups, spacing
        self._widths = {column: self._column_width(column, points) for group in groups for column in group.columns}
        for group in groups:
            spare = len(group.title) + 2 - self._group_width(group) if group.title else 0
            self._widths[group.columns[0]] += max(spare, 0)
        self.width = sum(map(self._group_width, groups)) + spacing.groups * (len(groups) - 1)

    def header(self) -> list[str]:
        """Three lines: single columns have a word on each, groups a ruled title above their columns."""
        blank, ruled, last = [], [], []
        for group in self._groups:
            width = self._group_width(group)
            if group.title:
                blank.append(" " * width)
                ruled.append(f" {group.title} ".center(width, "─"))
                last.append(self._join(group, [column.heads[0] for column in group.columns]))
            else:
                for line, head in zip((blank, ruled, last), group.columns[0].heads, strict=True):
                    line.append(head.rjust(width))
        return [(" " * self._spacing.groups).join(line) for line in (blank, ruled, last)]

    def row(self, point: Point) -> str:
        """The numbers of one point."""
        return (" " * self._spacing.groups).join(self._join(g, [_cell(point, column) for column in g.columns]) for g in self._groups)

    def _join(self, group: _Group, cells: Sequence[str]) -> str:
        return "".join(
            self._before(group, i) + cell.rjust(self._widths[c]) for i, (c, cell) in enumerate(zip(group.columns, cells, strict=True))
        )

    def _before(self, group: _Group, i: int) -> str:
        sign = group.columns[i].before
        if i == 0:
            return ""
        if not sign:
            return " " * self._spacing.columns
        return f" {sign} " if sign.isalpha() else sign.center(1 + 2 * self._spacing.signs)

    def _column_width(self, column: _Column, points: Sequence[Point]) -> int:
        return max([*map(len, column.heads), *(len(_cell(point, column)) for point in points)])

    def _group_width(self, group: _Group) -> int:
        return len(self._join(group, [""] * len(group.columns)))


def _groups(points: Sequence[Point]) -> list[_Group]:
    tiers = [_Column(("HBM",), "hit_rate.hbm", _percent, "="), _Column(("DRAM",), "hit_rate.dram", _percent, "+")]
    for name, path in (("SSD", "hit_rate.ssd"), ("pool", "hit_rate.pool")):
        if any(value(point, path) for point in points):
            tiers.append(_Column((name,), path, _percent, "+"))
    per_gpu = (("total", "total"), ("output", "output"), ("uncached", "uncached_input"))
    return [
        _Group("", (_Column(("", "concur-", "rency"), "concurrency", _count),)),
        _Group("tok/s per GPU", tuple(_Column((head,), f"throughput.{name}_tok_s_per_gpu", _three_digits) for head, name in per_gpu)),
        _Group("", (_Column(("interac-", "tivity p50", "tok/s/user"), "interactivity_tok_s_user.p50", _three_digits),)),
        _Group("TTFT, s", tuple(_Column((q,), f"ttft_s.{q}", _three_digits) for q in ("p50", "p99"))),
        _Group(
            "hit rate, % of prompt",
            (_Column(("total",), "hit_rate.total", _percent), *tiers, _Column(("ideal",), "hit_rate.theoretical", _percent, "of")),
        ),
        _Group("", (_Column(("pre-", "emp-", "tions"), "preemptions", _count),)),
        _Group("", (_Column(("prompt", "tokens", "saved"), "prefill_tokens.saved", _tokens),)),
    ]


def _cell(point: Point, column: _Column) -> str:
    number = value(point, column.path)
    return NO_VALUE if number is None else column.show(number)


def _fault_lines(variants: Mapping[str, Sequence[Point]]) -> Iterator[tuple[str, str]]:
    """(line, style) of the table of faults, none where nothing failed."""
    rows = {name: cells for name, its in variants.items() if (cells := [_fault_cells(p, fault) for p in its for fault in p.faults])}
    if not rows:
        return
    heads = [" " * CONCURRENCY_WIDTH, "fault", *["during", "whole"] * len(FAULT_FIGURES), "requests", "retried"]
    widths = [max(map(len, column)) for column in zip(heads, *chain.from_iterable(rows.values()), strict=True)]
    titles = [" " * (widths[0] + 2 + widths[1])]
    titles += [f" {title} ".center(widths[2 + 2 * i] + 2 + widths[3 + 2 * i], "─") for i, title in enumerate(FAULT_FIGURES)]
    yield "", ""
    yield "  ".join(titles), "bold"
    yield _fault_row(heads, widths), "bold"
    for variant, cells in rows.items():
        yield variant, "bold cyan"
        for row in cells:
            yield _fault_row(row, widths), ""


def _fault_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    concurrency, fault, *numbers, requests, retried = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    pairs = [f"{during}  {overall}" for during, overall in zip(numbers[::2], numbers[1::2], strict=True)]
    return "  ".join([f"{concurrency}  {fault.strip().ljust(widths[1])}", *pairs, f"{requests}  {retried}"])


def _fault_cells(point: Point, fault: FaultWindow) -> list[str]:
    end = f"from {_seconds(fault.start_s)} s" if fault.end_s is None else f"{_seconds(fault.start_s)} to {_seconds(fault.end_s)} s"
    figures = (
        (_three_digits, fault.total_tok_s_per_gpu, point.throughput.total_tok_s_per_gpu),
        (_percent, fault.hit_rate, point.hit_rate.total),
        (_three_digits, fault.ttft_p99_s, point.ttft_s.p99),
    )
    shown = [NO_VALUE if number is None else show(number) for show, *pair in figures for number in pair]
    return [_concurrency(point), f"{fault.what}, {end}", *shown, _count(fault.requests), _count(fault.retried)]


def _wear(variants: Mapping[str, Sequence[Point]]) -> Iterator[str]:
    """The hardest point of each variant whose SSDs were measured."""
    for variant, its in variants.items():
        worn = [(ssd.drive_writes_per_day or 0.0, p, ssd) for p in its if (ssd := p.ssd) and ssd.drive_writes_per_day is not None]
        if worn:
            writes, point, ssd = max(worn, key=lambda one: one[0])
            life = "" if ssd.life_years is None else f", worn out in {_three_digits(ssd.life_years)} years"
            yield f"SSD wear: {variant} at {_concurrency(point)}: {_three_digits(writes)} drive writes a day{life}"


def _notes(points: Sequence[Point]) -> list[str]:
    """What the numbers alone would hide."""
    notes = []
    for said, which in (
        ("requests rejected, too large for HBM (in no other figure)", [(p, p.rejected) for p in points if p.rejected]),
        ("no request finished in the window", [(p, None) for p in points if not p.requests]),
    ):
        if which:
            by_variant = groupby(which, key=lambda pair: pair[0].variant)
            places = (f"{variant} at {', '.join(_place(p, count) for p, count in pairs)}" for variant, pairs in by_variant)
            notes.append(f"note: {said}: {'; '.join(places)}")
    return notes


def _place(point: Point, count: int | None) -> str:
    return _concurrency(point) if count is None else f"{_concurrency(point)} ({count:,})"


def _concurrency(point: Point) -> str:
    return NO_VALUE if point.concurrency is None else _count(point.concurrency)


def _seconds(seconds: float) -> str:
    """To the millisecond, as far as it is not zeros."""
    return f"{seconds:,.3f}".rstrip("0").rstrip(".")


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _tokens(number: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            return _three_digits(number / size) + unit
    return _count(number)


def _percent(share: float) -> str:
    text = f"{100 * share:.1f}"
    return "100" if text == "100.0" else text


def _three_digits(number: float) -> str:
    """Three significant digits, whole numbers in full: 12,011 · 134 · 91.9 · 8.20 · 0.450."""
    if number == 0:
        return "0"
    return f"{number:,.0f}" if abs(number) >= 99.95 else f"{number:#.3g}"
