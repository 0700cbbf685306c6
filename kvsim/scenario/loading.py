"""From a file and overrides to a `Scenario`, with every mistake at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvsim.errors import Problem, ScenarioError, did_you_mean
from kvsim.scenario import document
from kvsim.scenario.document import Document, Mark, Where, show_path
from kvsim.scenario.mistakes import is_unknown_key, sentence
from kvsim.scenario.packaged import locate
from kvsim.scenario.paths import make_absolute
from kvsim.scenario.scenario import PARTS, Scenario, known_keys
from kvsim.scenario.tree import OVERRIDE, Tree

Override = tuple[tuple[str, ...], Document, Mark]


def load(path: str | Path, overrides: Iterable[str] = (), seed: int | None = None) -> Scenario:
    """The scenario in the file `path`, with `overrides` (`dotted.path=YAML`) and `seed` in place of what the file says.

    Paths in the file are relative to its folder, or else to the current one; paths in overrides to the current folder.
    Raises `ScenarioError` with every mistake in the file, the overrides and the variants.
    """
    file, _ = locate(path)
    text = document.read(file)
    if not isinstance(text.data, dict):
        raise ScenarioError(Mark(str(file), 1, 1).problem("expected a mapping with workload and cluster"))
    tree = Tree(text.data, dict(text.keys), dict(text.values), PARTS)
    problems: list[Problem] = []
    _apply(tree, _overrides(overrides, problems), problems)
    if seed is not None:
        tree.set(("seed",), Document(seed, {}, {}), Mark("--seed"))
    tree.data.setdefault("name", file.stem)
    make_absolute(tree, problems)
    return _checked(tree, problems)


def arms(scenario: Scenario) -> list[tuple[str, Scenario]]:
    """(name, scenario without variants) of every variant of a scenario that was loaded, in their order."""
    tree, problems = Tree(scenario.to_dict(), {}, {}, PARTS), list[Problem]()
    made = [(name, _arm(tree, name, problems)) for name in scenario.variants]
    if problems:
        raise ScenarioError(*problems)
    return [(name, arm) for name, arm in made if arm is not None]


def _checked(tree: Tree, problems: list[Problem]) -> Scenario:
    """The scenario of `tree`, whose variants hold too. What is wrong at the place of an earlier problem is its consequence."""
    places = {_place(p) for p in problems}
    found: list[Problem] = []
    scenario = _scenario(tree, found)
    said = {(_place(p), p.message) for p in found}
    variants = tree.data.get("variants")
    if isinstance(variants, dict):
        resolved = Tree(scenario.to_dict(), tree.keys, tree.values, PARTS) if scenario is not None else tree
        of_arms: list[Problem] = []
        for name in variants:
            _arm(resolved, name, of_arms)
        found += [p for p in of_arms if (_place(p), p.message) not in said]
    problems = problems + [p for p in found if _place(p) not in places]
    if problems or scenario is None:
        raise ScenarioError(*sorted(problems, key=lambda p: (p.line is None, _place(p))))
    return scenario


def _place(problem: Problem) -> tuple[str, int, int]:
    return problem.file, problem.line or 0, problem.col or 0


def _arm(tree: Tree, name: str, problems: list[Problem]) -> Scenario | None:
    """The variant `name` of `tree`, itself without variants; None, and problems, where it is no scenario."""
    own = tree.copy()
    changes = own.data.pop("variants")[name]
    if not isinstance(changes, dict):
        return None
    where: Where = ("variants", name)
    overrides: list[Override] = []
    for dotted, value in changes.items():
        at = (*where, dotted)
        key = tree.keys.get(at) or Mark("")
        try:
            path = _dotted(dotted)
            if path[0] in ("name", "variants"):
                raise ValueError(f"a variant cannot set {path[0]}")
            overrides.append((path, _cut(tree, at, value), key))
        except ValueError as error:
            problems.append(key.problem(str(error), show_path(at)))
    before = len(problems)
    _apply(own, overrides, problems)
    if len(problems) > before:
        return None
    return _scenario(own, problems, f"{show_path(where)}: ")


def _cut(tree: Tree, at: Where, value: Any) -> Document:
    """The value at `at` as a document of its own."""
    keys = {known[len(at) :]: mark for known, mark in tree.keys.items() if known[: len(at)] == at and len(known) > len(at)}
    return Document(value, keys, {known[len(at) :]: mark for known, mark in tree.values.items() if known[: len(at)] == at})


def _scenario(tree: Tree, problems: list[Problem], prefix: str = "") -> Scenario | None:
    try:
        return Scenario.model_validate_json(json.dumps(tree.data), strict=True)
    except ValidationError as error:
        for e in error.errors(include_url=False):
            where, message = e["loc"], sentence(e)
            if e["type"] == "extra_forbidden":
                message += did_you_mean(str(where[-1]), known_keys(where[:-1]))
            problems.append(tree.problem(where, message, at_key=is_unknown_key(e), prefix=prefix))
    return None


def _overrides(texts: Iterable[str], problems: list[Problem]) -> list[Override]:
    found: list[Override] = []
    for text in texts:
        dotted, equals, value = text.partition("=")
        mark = Mark(f"{OVERRIDE}{dotted}")
        try:
            if not equals:
                raise ValueError("expected dotted.path=VALUE")
            path = _dotted(dotted.strip())
            parsed = document.parse(value, mark.file)
        except ScenarioError as error:
            problems.extend(error.problems)
        except ValueError as error:
            problems.append(mark.problem(str(error)))
        else:
            found.append((path, Document(parsed.data, dict.fromkeys(parsed.keys, mark), dict.fromkeys(parsed.values, mark)), mark))
    return found


def _dotted(text: str) -> tuple[str, ...]:
    """`a.b.c` as a path; raises `ValueError`."""
    path = tuple(text.split("."))
    if not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part) for part in path):
        raise ValueError(f"{text!r} is not a dotted path such as 'cluster.tiers.dram.capacity'")
    if path[0] == "variants" and len(path) > 1:
        raise ValueError("variants can only be set whole")
    return path


def _apply(tree: Tree, overrides: list[Override], problems: list[Problem]) -> None:
    """Wider paths first, and the name of a registered part before its parameters; else in the order given, the last one wins."""

    def rank(override: Override) -> tuple[int, bool]:
        path = override[0]
        return len(path), PARTS.get(path[:-1]) != path[-1]

    for path, value, key in sorted(overrides, key=rank):
        try:
            tree.set(path, value, key)
        except ScenarioError as error:
            problems.extend(error.problems)
