"""`kvsim verify`: does the engine take the decisions a real one took?"""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a line a case.")
def verify(folder: Path, as_json: bool) -> None:
    """Replay the recorded engine decisions in FOLDER; a line a case, exit 1 if one doesn't hold."""
    import json
    from dataclasses import asdict

    from kvsim.verify.golden import verify as replay

    verdicts = []
    for verdict in replay(folder):
        verdicts.append(verdict)
        if not as_json:
            mark = "ok  " if verdict.difference is None else "FAIL"
            click.echo(f"{mark} {verdict.case:24} {verdict.requests:>5} requests {verdict.steps:>6} steps  {verdict.text}")
    failed = [v for v in verdicts if v.difference is not None]
    if as_json:
        click.echo(json.dumps({"cases": [asdict(v) | {"holds": v.difference is None} for v in verdicts], "failed": len(failed)}, indent=1))
    else:
        click.echo(f"{len(verdicts) - len(failed)} of {len(verdicts)} cases hold")
    if failed:
        sys.exit(1)
