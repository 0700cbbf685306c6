"""Catalog files: YAML entries with the line each field stands in; one without source and date is refused.

An entry becomes a frozen dataclass by the dataclass's own fields: `quantity(...)` fields are text with a unit ('80GB', '3.35TB/s'),
the others plain values. A field that is unknown, missing or of the wrong kind is refused with file and line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kvsim import units
from kvsim.errors import CatalogError, Problem, UnitError, did_you_mean

FOLDER = Path(__file__).parent
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """Fields of an entry as they were written, and where: `lines` by dotted path, "" for the entry itself."""

    name: str
    fields: Mapping[str, Any]
    file: str = ""
    lines: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def refuse(self, message: str, path: str = "") -> CatalogError:
        """The mistake at `path`, or, where that isn't there, at what is nearest around it."""
        near = path
        while near and near not in self.lines:
            near = near.rpartition(".")[0]
        # An entry given in a scenario has no place of its own: its reader adds one, by the path within the entry.
        shown = ".".join(filter(None, (self.name, path))) if self.file else path
        return CatalogError(Problem(message, shown, self.file, self.lines.get(near)))


def quantity(kind: str, *, default: Any = MISSING) -> Any:
    """A dataclass field that is a quantity of `kind` (a key of `kvsim.units.UNITS`); with `default` None it may be left out or null."""
    return dataclasses.field(default=default, metadata={"quantity": kind})


@cache
def entries(file: str) -> Mapping[str, Entry]:
    """The entries of a catalog file of this package, by name."""
    return read(FOLDER / file)


def read(path: Path) -> dict[str, Entry]:
    """The entries of the file `path`. Raises `CatalogError` with file and line."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise CatalogError(Problem(f"is not YAML: {error.problem}", "", path.name, *where)) from None
    lines: dict[str, int] = {}
    top = _value(root, "", path.name, lines) if root is not None else {}
    if not isinstance(top, Mapping):
        raise CatalogError(Problem("expected entries by name", file=path.name))
    found = {}
    for name, fields in top.items():
        own = {key.removeprefix(name).removeprefix("."): line for key, line in lines.items() if key == name or key.startswith(f"{name}.")}
        entry = Entry(name, fields, path.name, own)
        if not isinstance(fields, Mapping):
            raise entry.refuse(f"expected a mapping, got {fields!r}")
        for needed in ("source", "date"):
            if not fields.get(needed):
                raise entry.refuse(f"an entry needs a {needed}", needed)
        found[name] = entry
    return found


def _value(node: Node, path: str, file: str, lines: dict[str, int]) -> Any:
    if isinstance(node, MappingNode):
        out: dict[str, Any] = {}
        for key_node, value in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            deeper = f"{path}.{key}" if path else key
            if key in out:
                raise CatalogError(Problem(f"is there twice, first in line {lines[deeper]}", deeper, file, line))
            lines[deeper] = line
            out[key] = _value(value, deeper, file, lines)
        return out
    if isinstance(node, SequenceNode):
        return [_value(item, path, file, lines) for item in node.value]
    assert isinstance(node, ScalarNode)
    try:
        return SafeConstructor().construct_object(node)
    except (ConstructorError, ValueError) as error:
        raise CatalogError(Problem(f"cannot be read: {error}", path, file, node.start_mark.line + 1)) from None


def build(cls: type[T], entry: Entry) -> T:
    """An instance of the dataclass `cls` from `entry`; its field `name` is the entry's name. Raises `CatalogError`."""
    known: dict[str, Field[Any]] = {f.name: f for f in dataclasses.fields(cls) if f.name != "name"}  # type: ignore[arg-type]
    for key in entry.fields:
        if key not in known:
            raise entry.refuse(f"unknown field{did_you_mean(key, known)}", key)
    values = {}
    for name, f in known.items():
        if name in entry.fields:
            values[name] = _field(f, entry)
        elif f.default is MISSING and f.default_factory is MISSING:
            raise entry.refuse("is missing", name)
    try:
        return cls(**{"name": entry.name, **values})
    except CatalogError as error:  # found by the class itself: it knows the field, the entry knows the place
        raise CatalogError(*(entry.refuse(p.message, p.path).problems[0] for p in error.problems)) from None


def _field(f: Field[Any], entry: Entry) -> Any:
    value = entry.fields[f.name]
    if value is None and f.default is None:
        return None
    if kind := f.metadata.get("quantity"):
        return _quantity(value, kind, f.name, entry)
    if f.name == "date":
        return str(value)
    if f.name == "note":
        return _notes(value, entry)
    expected = {"int": int, "float": (int, float), "str": str}.get(str(f.type).removesuffix(" | None"))
    if expected is not None and (isinstance(value, bool) or not isinstance(value, expected)):  # type: ignore[arg-type]
        words = {"int": "a whole number", "float": "a number", "str": "text"}
        raise entry.refuse(f"expected {words[str(f.type).removesuffix(' | None')]}, got {value!r}", f.name)
    return value


def _quantity(value: Any, kind: str, name: str, entry: Entry) -> float:
    try:
        number = units.parse(value, kind)
    except UnitError as error:
        raise entry.refuse(str(error), name) from None
    if number < 0:
        raise entry.refuse(f"must not be negative, got {value!r}", name)
    return number


def _notes(value: Any, entry: Entry) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise entry.refuse("expected a mapping of field names to what is to be known of them", "note")
    for key in value:
        if key not in entry.fields:
            raise entry.refuse(f"is about a field that the entry doesn't have{did_you_mean(key, entry.fields)}", f"note.{key}")
    return dict(value)
