"""YAML 1.2 with marks: a document becomes plain values and, for each of them, the line and column it stands at.

Stricter than YAML where a loose reading would hide a mistake: a key twice in one mapping is a mistake, and so are anchors, aliases and
tags. Scalars are those of YAML 1.2's core schema: `1e9` is a number; `no`, `on`, `12:30:00` and `1_000` are text. Keys are always text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from kvsim.errors import Problem, ScenarioError

NULL, BOOL, INT, FLOAT, STR, SEQ, MAP = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map"))
DEEPEST = 32

_CORE = (
    (NULL, re.compile(r"^(?:~|null|Null|NULL|)$")),
    (BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")),
    (INT, re.compile(r"^(?:[-+]?[0-9]{1,400}|0o[0-7]{1,400}|0x[0-9a-fA-F]{1,400})$")),
    (FLOAT, re.compile(r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$")),
)

Where = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file or an override; `line` and `col` count from 1, None: unknown."""

    file: str
    line: int | None = None
    col: int | None = None

    def problem(self, message: str, path: str = "") -> Problem:
        """A mistake here."""
        return Problem(message, path, self.file, self.line, self.col)


@dataclass(frozen=True, slots=True)
class Document:
    """Plain `data` of dicts, lists and scalars, and the marks of keys (or, in lists, of items) and of values by path."""

    data: Any
    keys: Mapping[Where, Mark]
    values: Mapping[Where, Mark]


class _CoreResolver:
    """Tags of scalars by YAML 1.2's core schema, mixed into PyYAML's loader and dumper."""

    def resolve(self, kind: type[Node], value: Any, implicit: Any) -> str:
        if kind is MappingNode:
            return MAP
        if kind is SequenceNode:
            return SEQ
        return next((tag for tag, pattern in _CORE if implicit[0] and pattern.match(value)), STR)


class _Refused(yaml.MarkedYAMLError):
    """YAML that scenarios don't use."""


class _Loader(_CoreResolver, yaml.SafeLoader):
    """Composes nodes; values are made by `_Builder`."""

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _Refused(None, None, "anchors and aliases (& and *) are not supported: repeat the value", event.start_mark)
        if getattr(event, "tag", None) not in (None, "!"):
            raise _Refused(None, None, "tags (!) are not supported: quote text, write numbers bare", event.start_mark)
        return super().compose_node(parent, index)


class _Dumper(_CoreResolver, yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would read as something else."""

    def resolve(self, kind: type[Node], value: Any, implicit: Any) -> str:
        tag = _CoreResolver.resolve(self, kind, value, implicit)
        older: str = yaml.SafeDumper.resolve(self, kind, value, implicit)  # type: ignore[no-untyped-call]
        return tag if tag == older or (tag, older) == (FLOAT, STR) else "read differently"


def _represent_text(dumper: _Dumper, text: str) -> ScalarNode:
    # PyYAML writes these line breaks into single quotes, and folds them when it reads them there.
    return dumper.represent_scalar(STR, text, style='"' if any(c in text for c in "\x85\u2028\u2029") else None)


_Dumper.add_representer(str, _represent_text)


@dataclass(slots=True)
class _Builder:
    """Values, marks and mistakes of a tree of nodes."""

    file: str
    problems: list[Problem]
    keys: dict[Where, Mark]
    values: dict[Where, Mark]

    def mark(self, node: Node) -> Mark:
        return Mark(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def build(self, node: Node, path: Where) -> Any:
        self.values[path] = self.mark(node)
        if len(path) > DEEPEST:
            self.problems.append(self.mark(node).problem("is nested too deeply", show_path(path[:3])))
            return None
        if isinstance(node, MappingNode):
            return dict(self._items(node, path))
        if isinstance(node, SequenceNode):
            return [self._item(child, (*path, i)) for i, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _item(self, node: Node, path: Where) -> Any:
        self.keys[path] = self.mark(node)
        return self.build(node, path)

    def _items(self, node: MappingNode, path: Where) -> Iterator[tuple[str, Any]]:
        for key, value in node.value:
            mark = self.mark(key)
            if not isinstance(key, ScalarNode):
                self.problems.append(mark.problem("a key must be text", show_path(path)))
                continue
            deeper = (*path, key.value)
            if (before := self.keys.get(deeper)) is not None:
                self.problems.append(mark.problem(f"given twice, first in line {before.line}", show_path(deeper)))
                continue
            self.keys[deeper] = mark
            yield key.value, self.build(value, deeper)

    def _scalar(self, node: Node, path: Where) -> Any:
        text: str = node.value
        if node.tag == NULL:
            return None
        if node.tag == BOOL:
            return text.lower() == "true"
        if node.tag == INT:
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        if node.tag == FLOAT:
            number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            return int(number) if number.is_integer() else number  # 1e9 is as whole a number as 1000000000
        if any("\ud800" <= c <= "\udfff" for c in text):
            self.problems.append(self.mark(node).problem("half of a surrogate pair is no character", show_path(path)))
        return text


def read(path: Path) -> Document:
    """The document in the file `path`. Raises `ScenarioError` with every mistake found."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ScenarioError(Problem(f"cannot be read, {(error.strerror or str(error)).lower()}", file=str(path))) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        raise ScenarioError(Problem("is not UTF-8", "", str(path), before.count(b"\n") + 1, len(before) - before.rfind(b"\n"))) from None
    return parse(text, str(path))


def parse(text: str, file: str) -> Document:
    """The document that `text` is; `file` names it in mistakes. Raises `ScenarioError` with every mistake found."""
    builder = _Builder(file, [], {}, {})
    try:
        node = yaml.compose(text, _Loader)
        data = builder.build(node, ()) if node is not None else None
    except yaml.MarkedYAMLError as error:
        raise ScenarioError(_syntax_problem(error, file)) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Mark(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise ScenarioError(place.problem(f"the character U+{ord(text[error.position]):04X} is not allowed in YAML")) from None
    except RecursionError:
        raise ScenarioError(Problem("is nested too deeply", file=file)) from None
    if builder.problems:
        raise ScenarioError(*builder.problems)
    return Document(data, builder.keys, builder.values)


def _syntax_problem(error: yaml.MarkedYAMLError, file: str) -> Problem:
    what = " ".join(part for part in (error.context, error.problem) if part)
    if not isinstance(error, _Refused):
        what = f"is not YAML: {what}"
    place = error.problem_mark or error.context_mark
    return Mark(file, place.line + 1, place.column + 1).problem(what) if place else Problem(what, file=file)


def dump(data: Any) -> str:
    """YAML text of plain `data`, keys in their order, that `parse` reads back as the same."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=1 << 30)
    return text


def show_path(path: Where) -> str:
    """`workload.clients.concurrency[2]`; keys with a dot or a space are quoted."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            plain = part if re.fullmatch(r"[^\s.\[\]'\"]+", part) else repr(part)
            shown += f".{plain}" if shown else plain
    return shown
