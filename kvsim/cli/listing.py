"""`kvsim list`: what there is to choose from."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.registry import Registry

REGISTRIES = {
    "eviction": "kvsim.cache.eviction:EVICTION",
    "formats": "kvsim.workload.formats:FORMATS",
    "offload": "kvsim.cache.offload:OFFLOAD",
    "routers": "kvsim.router:ROUTER",
    "step-time": "kvsim.engine.step_time:STEP_TIME",
    "synthetic": "kvsim.workload.synthetic:SYNTHETIC",
}
KINDS = sorted({"hardware", "links", "models", "scenarios", *REGISTRIES})


@click.command()
@click.argument("kind", type=click.Choice(KINDS), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def listing(kind: str | None, as_json: bool) -> None:
    """Names of one KIND with what they are and where they come from; without a KIND, all of them."""
    import json

    from rich.console import Console
    from rich.table import Table

    kinds = [kind] if kind else list(KINDS)
    if as_json:
        rows = [{"kind": k, **dict(zip(("name", "what", "source"), row, strict=True))} for k in kinds for row in _rows(k)]
        click.echo(json.dumps(rows, indent=1))
        return
    console = Console()
    if not console.is_terminal:
        console.width = 160
    for k in kinds:
        table = Table(title=k, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for head in ("name", "what", "source"):
            table.add_column(head, overflow="fold", style="bold" if head == "name" else "")
        for row in _rows(k):
            table.add_row(*row)
        console.print(table)
        console.print()


def _rows(kind: str) -> list[tuple[str, str, str]]:
    from kvsim import catalog
    from kvsim.units import human

    if kind == "hardware":
        found = [catalog.hardware(n) for n in catalog.names("hardware")]
        return [
            (
                h.name,
                f"{human(h.hbm, 'bytes')} at {human(h.hbm_bandwidth, 'bandwidth')}, {human(h.bf16, 'flops')} bf16, host link {h.host_link}",
                h.source,
            )
            for h in found
        ]
    if kind == "links":
        links = [catalog.link(n) for n in catalog.names("link")]
        return [
            (x.name, f"{human(x.bandwidth, 'bandwidth')} a direction, {human(x.latency, 'seconds')} a transfer", x.source) for x in links
        ]
    if kind == "models":
        models = [catalog.model(n) for n in catalog.names("model")]
        return [
            (
                m.name,
                f"{m.architecture.parameters / 1e9:,.0f}B parameters, {m.architecture.active_parameters / 1e9:,.0f}B active, "
                f"{m.architecture.kv_bytes_per_token('fp8', 1):,.0f} B of KV a token in fp8, weights {m.weights}",
                m.source,
            )
            for m in models
        ]
    if kind == "scenarios":
        from kvsim.scenario.packaged import FOLDERS

        own = next(folder for folder in FOLDERS if folder.is_dir())
        return [(f"scenarios/{path.name}", _title(path), "comes with kvsim") for path in sorted(own.glob("*.yaml"))]
    return [(e.name, e.summary, e.source) for e in _registry(kind).describe()]


def _title(path: Path) -> str:
    """The scenario's `name`; read as text, since a scenario may need a trace before it can be loaded."""
    return next(
        line.removeprefix("name:").strip().strip('"') for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("name:")
    )


def _registry(kind: str) -> Registry:
    module, _, name = REGISTRIES[kind].partition(":")
    found: Registry = getattr(import_module(module), name)
    return found
