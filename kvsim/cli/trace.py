"""`kvsim trace`: look at traces."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table

    from kvsim.workload.stats import Distribution, TraceStats


@click.group()
def trace() -> None:
    """Look at traces."""


@trace.command()
@click.argument("file")
@click.option("--format", "format_", default="auto", show_default=True, help="Trace format, or auto to find it from the first lines.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def stats(file: str, format_: str, as_json: bool) -> None:
    """Sizes, times and the infinite-cache hit rate of FILE: a trace file, a directory of them, or - for stdin."""
    from kvsim.workload.load import load
    from kvsim.workload.stats import trace_stats

    result = trace_stats(load(file, format_))
    if as_json:
        click.echo(json.dumps(result.as_dict(), allow_nan=False))
        return
    from rich.console import Console

    console = Console()
    console.print(_facts(result))
    console.print(_distributions(result))
    for note in result.notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False)


def _facts(s: TraceStats) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=f"{s.name} ({s.format})", title_justify="left", box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in (
        ("requests", f"{s.requests:,}"),
        ("sessions", f"{s.sessions:,}" + (f" ({s.streams - s.sessions:,} sub-agents)" if s.streams > s.sessions else "")),
        ("duration", _seconds(s.duration_s) if s.duration_s is not None else "arrivals are not recorded"),
        ("input", f"{_tokens(s.input_tokens.sum)} tokens"),
        ("output", f"{_tokens(s.output_tokens.sum)} tokens"),
        ("blocks", f"{s.unique_blocks:,} unique of {s.prompt_blocks:,} in prompts, {s.block_tokens} tokens each, {s.scope} ids"),
        ("footprint", f"{_tokens(s.unique_tokens)} tokens"),
        ("infinite-cache hit rate", f"{_percent(s.theoretical_hit_rate)} of blocks, {_percent(s.theoretical_hit_rate_tokens)} of tokens"),
    ):
        table.add_row(name, value)
    return table


def _distributions(s: TraceStats) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    columns = ("mean", "p10", "p50", "p90", "p99", "max")
    for column in columns:
        table.add_column(column, justify="right")
    rows: tuple[tuple[str, Distribution | None, bool], ...] = (
        ("input tokens", s.input_tokens, False),
        ("new input tokens", s.new_tokens, False),
        ("output tokens", s.output_tokens, False),
        ("requests a session", s.turns, False),
        ("delay before a turn", s.delay_s, True),
        ("session duration", s.session_duration_s, True),
    )
    for name, values, timed in rows:
        if values is not None:
            table.add_row(name, *(_seconds(getattr(values, c)) if timed else f"{getattr(values, c):,.0f}" for c in columns))
    return table


def _seconds(value: float) -> str:
    from kvsim.units import human

    return human(value, "seconds")


def _tokens(value: float) -> str:
    from kvsim.units import human

    return human(value, "tokens")


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.2%}"
