"""`kvsim schema`: JSON Schema of scenario files."""

from __future__ import annotations

import json

import click


@click.command()
def schema() -> None:
    """Print the JSON Schema of scenario files: keys, defaults, and the parameters of every policy, generator and model."""
    from kvsim.scenario import Scenario

    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "kvsim scenario"} | Scenario.model_json_schema()
    click.echo(json.dumps(document, indent=1, ensure_ascii=False))
