"""YAML as scenarios read it: 1.2 scalars, no silent repairs, and a place for everything."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import ScenarioError
from kvsim.scenario import document
from kvsim.scenario.document import Mark, parse, show_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 10**9),
        ("1.5e3", 1500),
        ("-2.5", -2.5),
        (".5", 0.5),
        ("1.", 1),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("+7", 7),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("12:30:00", "12:30:00"),
        ("1_000", "1_000"),
        ("2026-12-01", "2026-12-01"),
        ("0b11", "0b11"),
        ("1e", "1e"),
        ("64GiB", "64GiB"),
        ("'1'", "1"),
        ('"null"', "null"),
        ("<<", "<<"),
        ("=", "="),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    read = parse(f"a: {text}", "f").data["a"]
    assert (read, type(read)) == (value, type(value))


def test_not_a_number_is_a_number() -> None:
    assert math.isnan(parse("a: .nan", "f").data["a"])


def test_every_key_and_value_has_its_place() -> None:
    read = parse("# a comment\na:\n  b c: 1\n  d:\n  - x\n  - {e: y}\n", "f")
    assert read.data == {"a": {"b c": 1, "d": ["x", {"e": "y"}]}}
    assert read.keys == {
        ("a",): Mark("f", 2, 1),
        ("a", "b c"): Mark("f", 3, 3),
        ("a", "d"): Mark("f", 4, 3),
        ("a", "d", 0): Mark("f", 5, 5),
        ("a", "d", 1): Mark("f", 6, 5),
        ("a", "d", 1, "e"): Mark("f", 6, 6),
    }
    assert read.values[("a", "d", 1, "e")] == Mark("f", 6, 9)
    assert read.values[("a", "b c")] == Mark("f", 3, 8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3:1: a: given twice, first in line 1"),
        ("a: {b: 1, 'b': 2}", "f:1:11: a.b: given twice, first in line 1"),
        ("a: &x 1\nb: *x\n", "f:1:4: anchors and aliases (& and *) are not supported: repeat the value"),
        ("a: *x\n", "f:1:4: anchors and aliases (& and *) are not supported: repeat the value"),
        ("a: !!str 1", "f:1:4: tags (!) are not supported: quote text, write numbers bare"),
        ("a: !!python/object:os.system x", "f:1:4: tags (!) are not supported: quote text, write numbers bare"),
        ("? [1]\n: 2", "f:1:3: a key must be text"),
        ("a: [1", "f:1:6: is not YAML: while parsing a flow sequence expected ',' or ']', but got '<stream end>'"),
        ("a: b: c", "f:1:5: is not YAML: mapping values are not allowed here"),
        ("a: 1\n---\nb: 2\n", "f:2:1: is not YAML: expected a single document in the stream but found another document"),
        ("a: x\x07", "f:1:5: the character U+0007 is not allowed in YAML"),
        ('a: "\\ud800"', "f:1:4: a: half of a surrogate pair is no character"),
        ("[" * 3000, "f: is nested too deeply"),
    ],
)
def test_what_would_be_read_loosely_is_a_mistake(text: str, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "f")
    assert str(caught.value) == says


def test_deep_nesting_is_one_clear_mistake() -> None:
    with pytest.raises(ScenarioError, match="nested too deeply"):
        parse("a: " + "[" * 100 + "]" * 100, "f")


def test_all_mistakes_of_a_document_are_told() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse("a: 1\na: 2\nb: 3\nb: 4\n", "f")
    assert [p.line for p in caught.value.problems] == [2, 4]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="nowhere.yaml: cannot be read, no such file or directory"):
        document.read(tmp_path / "nowhere.yaml")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("a: 1\nb: é\n".encode("latin-1"))
    with pytest.raises(ScenarioError, match="latin.yaml:2:4: is not UTF-8"):
        document.read(latin)
    marked = tmp_path / "marked.yaml"
    marked.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert document.read(marked).data == {"a": 1, "b": 2}


def test_paths_show_as_people_write_them() -> None:
    assert show_path(("a", "b", 2, "c")) == "a.b[2].c"
    assert show_path(("variants", "HBM only", "a.b")) == "variants.'HBM only'.'a.b'"


TRICKY = st.sampled_from(
    ["1e9", "no", "12:30:00", "null", "~", "", " x", "1_0", "0o7", "- a", "a: b", "# c", "é\nx", "<<", "2026-12-01", "'", '"', "{", "*a"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | TRICKY
DATA = st.dictionaries(
    st.text() | TRICKY,
    st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=12),
)


@given(DATA)
def test_what_is_written_reads_back_as_the_same(data: dict[str, Any]) -> None:
    assert parse(document.dump(data), "f").data == data


@given(DATA)
def test_readers_of_yaml_1_1_find_the_same_text(data: dict[str, Any]) -> None:
    def texts(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: texts(v) for key, v in value.items()}
        if isinstance(value, list):
            return [texts(v) for v in value]
        return value if isinstance(value, str) else None

    assert texts(yaml.safe_load(document.dump(data))) == texts(data)
