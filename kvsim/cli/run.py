"""`kvsim run`: simulate a scenario, show its table, write its results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kvsim.scenario import Scenario


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the results (default: kvsim-out/NAME of the file)."
)
@click.option("--set", "overrides", multiple=True, metavar="a.b=VALUE", help="Override a key of the scenario; may be given many times.")
@click.option("--seed", type=click.IntRange(min=0), help="Another seed than the scenario's.")
@click.option(
    "--timeline",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write what happened when as a Chrome trace for Perfetto (.json or .json.gz), a file a point.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary document instead of the table.")
@click.option("-q", "--quiet", is_flag=True, help="No progress bar and no table.")
def run(
    scenario: Path, out: Path | None, overrides: tuple[str, ...], seed: int | None, timeline: Path | None, as_json: bool, quiet: bool
) -> None:
    """Simulate SCENARIO (a YAML file): every variant at every concurrency.

    Prints a table, and writes summary.json, requests.parquet, scenario.yaml and plots into the folder of the results.
    """
    from kvsim import simulation
    from kvsim.report.plot import write_plots
    from kvsim.report.table import show_results
    from kvsim.scenario import load, locate

    path, note = locate(scenario)
    if note and not quiet:
        click.echo(note, err=True)
    loaded = load(path, overrides, seed)
    if timeline is not None:
        timeline.parent.mkdir(parents=True, exist_ok=True)
    with _Bar(loaded, shown=not quiet and not as_json) as bar:
        result = simulation.run(loaded, progress=bar.tell, timeline=timeline)
    folder = out or Path("kvsim-out") / scenario.stem
    result.write(folder)
    written = write_plots(result, folder)
    if as_json:
        show_results(result, as_json=True)
    elif not quiet:
        show_results(result)
        if timeline is not None:
            specs = simulation.points_of(loaded)
            paths = [str(simulation.timeline_path(timeline, spec, len(specs))) for spec in specs]
            click.echo(f"\ntimelines, to open in https://ui.perfetto.dev: {', '.join(paths)}")
        click.echo(f"\nwritten to {folder}: summary.json, requests.parquet, scenario.yaml, {', '.join(p.name for p in written)}")


class _Bar:
    """A progress bar over all points, on stderr where that is a terminal."""

    def __init__(self, scenario: Scenario, *, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        from kvsim.simulation import points_of

        self.points = {(p.variant, p.concurrency): i for i, p in enumerate(points_of(scenario))}
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
        )
        self.bar = Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
        self.task = self.bar.add_task("starting", total=len(self.points))

    def tell(self, variant: str, concurrency: int | None, share: float) -> None:
        """See `kvsim.simulation.Progress`."""
        what = variant if concurrency is None else f"{variant}, {concurrency} sessions"
        self.bar.update(self.task, completed=self.points[variant, concurrency] + share, description=what)

    def __enter__(self) -> _Bar:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()
