"""File names in a scenario: relative to the scenario's folder, or else to the current one; absolute in a loaded scenario."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvsim.errors import Problem
from kvsim.scenario.document import Where
from kvsim.scenario.tree import OVERRIDE, Tree

STDIN = "-"
PATHS: dict[Where, str] = {("workload", "trace"): "", ("cluster", "model"): ".json"}  # and the suffix that tells a path from a name


def make_absolute(tree: Tree, problems: list[Problem]) -> None:
    """Make the file names in `tree` and in its variants absolute; those of files that don't exist become problems."""
    for path, suffix in PATHS.items():
        for holder, where in _holders(tree.data, path):
            value = holder.get(str(where[-1]))
            if isinstance(value, str) and value.endswith(suffix) and value not in ("", STDIN):
                holder[str(where[-1])] = _found(tree, where, value, problems)


def _holders(data: dict[str, Any], path: Where) -> Iterator[tuple[dict[str, Any], Where]]:
    """The mappings that hold `path`, in the scenario itself and in its variants, and where that is."""
    yield from _descend(data, path, path)
    variants = data.get("variants")
    for name, changes in variants.items() if isinstance(variants, dict) else ():
        for dotted in changes if isinstance(changes, dict) else ():
            parts = tuple(dotted.split("."))
            if path[: len(parts)] == parts:
                inner = (dotted, *path[len(parts) :])
                yield from _descend(changes, inner, ("variants", name, *inner))


def _descend(data: Any, path: Where, where: Where) -> Iterator[tuple[dict[str, Any], Where]]:
    for part in path[:-1]:
        data = data.get(part) if isinstance(data, dict) else None
    if isinstance(data, dict):
        yield data, where


def _found(tree: Tree, where: Where, value: str, problems: list[Problem]) -> str:
    mark = tree.values.get(where)
    folders = [Path.cwd()] if mark is None or mark.file.startswith(OVERRIDE) else [Path(mark.file).parent, Path.cwd()]
    candidates = list(dict.fromkeys(folder.absolute() / value for folder in folders))
    found = next((candidate for candidate in candidates if candidate.exists()), None)
    if found is None:
        problems.append(tree.problem(where, f"there is no {' nor '.join(map(str, candidates))}"))
        return value
    return str(found)
