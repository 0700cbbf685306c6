"""A scenario as plain values that know where they were written, so that overrides can replace them and mistakes can point at them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.errors import Problem, ScenarioError
from kvsim.scenario.document import Document, Mark, Where, show_path

OVERRIDE = "--set "  # how the "file" of an override's marks begins


@dataclass(slots=True)
class Tree:
    """`data` with the marks of keys and values, as in a `Document`; `parts`: paths of registered parts and the key that names each."""

    data: dict[str, Any]
    keys: dict[Where, Mark]
    values: dict[Where, Mark]
    parts: Mapping[Where, str]

    def copy(self) -> Tree:
        """A tree of its own with the same content."""
        return Tree(copy.deepcopy(self.data), dict(self.keys), dict(self.values), self.parts)

    def set(self, path: tuple[str, ...], new: Document, key: Mark) -> None:
        """Put `new` at `path`, making mappings on the way. Naming another registered part drops the parameters of the one before it.

        Raises `ScenarioError`, placed at `key`, where the path leads through something that is not a mapping.
        """
        here: dict[str, Any] = self.data
        for depth, name in enumerate(path[:-1], start=1):
            below = here.get(name)
            if isinstance(below, str) and path[:depth] in self.parts:
                below = here[name] = {self.parts[path[:depth]]: below}
            if below is None:
                below = here[name] = {}
            if not isinstance(below, dict):
                raise ScenarioError(key.problem(f"{show_path(path[:depth])} is not a mapping: set it whole"))
            here = below
        if self.parts.get(path[:-1]) == path[-1] and here.get(path[-1]) != new.data:
            here.clear()
        self._forget(path)
        here[path[-1]] = copy.deepcopy(new.data)
        self.keys |= {(*path, *deeper): mark for deeper, mark in new.keys.items()} | {path: key}
        self.values |= {(*path, *deeper): mark for deeper, mark in new.values.items()}

    def _forget(self, path: Where) -> None:
        for marks in (self.keys, self.values):
            for known in [known for known in marks if known[: len(path)] == path]:
                del marks[known]

    def problem(self, where: Where, message: str, *, at_key: bool = False, prefix: str = "") -> Problem:
        """A mistake at `where`: placed at the value (or its key), at something within it, or at the nearest mapping around it."""
        first, second = (self.keys, self.values) if at_key else (self.values, self.keys)
        within = (mark for known, mark in self.keys.items() if known[: len(where)] == where)
        mark = first.get(where) or second.get(where) or next(within, None)
        around = where
        while mark is None and around:
            around = around[:-1]
            mark = self.keys.get(around) or self.values.get(around)
        mark, path = mark or Mark(""), show_path(where)
        return mark.problem(message, "" if mark.file == f"{OVERRIDE}{path}" else prefix + path)
