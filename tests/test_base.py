"""The modules everything else stands on: quantities, errors, registries, random streams, linking of kernels."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim import units
from kvsim.errors import KvsimError, Problem, ScenarioError, UnitError, UnknownNameError, did_you_mean
from kvsim.jit import JIT_DISABLED, bundle, kernel, link
from kvsim.registry import Registry
from kvsim.rng import stream

KINDS = sorted(units.UNITS)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("64GiB", "bytes", 64 * 2**30),
        ("1.5TB", "bytes", 1.5e12),
        ("55GB/s", "bandwidth", 55e9),
        ("400Gbps", "bandwidth", 50e9),
        ("2us", "seconds", 2e-6),
        ("1h", "seconds", 3600.0),
        ("3.2M", "tokens", 3.2e6),
        (8192, "tokens", 8192.0),
        ("$2.31/h", "usd_per_hour", 2.31),
        ("1,000 MB", "bytes", 1e9),
        ("989TFLOPS", "flops", 989e12),
        ("1.9kW", "watts", 1900.0),
        (0, "bytes", 0.0),
        ("0", "seconds", 0.0),
    ],
)
def test_quantities_read(text: str | int, kind: str, value: float) -> None:
    assert units.parse(text, kind) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("64", "bytes", "has no unit"),
        (64, "bytes", "has no unit"),
        ("55GB/s", "bytes", "is a quantity of bandwidth, not of bytes"),
        ("64Gib", "bytes", "unknown unit 'Gib', did you mean 'GiB'?"),
        ("much", "bytes", "is not a quantity"),
        (True, "bytes", "expected a quantity"),
        (math.inf, "tokens", "finite"),
        (None, "seconds", "expected a quantity"),
    ],
)
def test_quantities_that_cannot_be_meant(text: object, kind: str, says: str) -> None:
    with pytest.raises(UnitError, match=says) as caught:
        units.parse(text, kind)  # type: ignore[arg-type]
    assert units.EXAMPLE[kind] in str(caught.value) or "finite" in says


@given(st.sampled_from(KINDS), st.floats(1e-9, 1e18), st.booleans())
def test_shown_quantities_read_back_exactly(kind: str, value: float, binary: bool) -> None:
    assert units.parse(units.show(value, kind, binary=binary), kind) == value


@given(st.sampled_from(KINDS), st.integers(1, 999), st.sampled_from([1.0, 1e3, 1e6, 1e9]))
def test_quantities_for_people_are_right_to_three_digits(kind: str, digits: int, scale: float) -> None:
    assert units.parse(units.human(digits * scale, kind), kind) == pytest.approx(digits * scale, rel=5e-3)


def test_problems_show_what_is_known_of_their_place() -> None:
    assert str(Problem("bad", "a.b", "f.yaml", 3, 7)) == "f.yaml:3:7: a.b: bad"
    assert str(Problem("bad", file="f.yaml", line=3)) == "f.yaml:3: bad"
    assert str(Problem("bad")) == "bad"
    error = ScenarioError(Problem("one", "a"), "two")
    assert isinstance(error, KvsimError)
    assert str(error) == "a: one\ntwo"


def test_did_you_mean() -> None:
    assert did_you_mean("capasity", ["capacity", "link"]) == ", did you mean 'capacity'?"
    assert did_you_mean("xyz", ["b", "a"]) == " (known: a, b)"
    assert did_you_mean("xyz", map(str, range(100))) == ""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry whose package has one module, `one.py`, that registers `first`."""
    package = tmp_path / "plugged"
    package.mkdir()
    (package / "__init__.py").write_text("from kvsim.registry import Registry\nPARTS = Registry('part', 'plugged')\n")
    (package / "one.py").write_text(
        "from plugged import PARTS\n\n@PARTS.register('first', source='a paper')\nclass First:\n    '''The first.\n\n    More.\n    '''\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from plugged import PARTS  # type: ignore[import-not-found]

    yield PARTS
    for name in [name for name in sys.modules if name.partition(".")[0] == "plugged"]:
        del sys.modules[name]


def test_a_registry_imports_its_package_on_first_use(registry: Registry) -> None:
    assert list(registry) == ["first"]
    assert "first" in registry and "second" not in registry
    entry = registry.entry("first")
    assert (entry.summary, entry.source, registry["first"]) == ("The first.", "a paper", entry.value)
    assert registry.describe() == [entry]


def test_a_registry_knows_each_name_once(registry: Registry) -> None:
    assert "first" in registry
    with pytest.raises(ValueError, match="part 'first' is already registered by plugged.one.First"):

        @registry.register("first")
        class Other:
            """Another."""

    with pytest.raises(ValueError, match="has no docstring"):

        @registry.register("second")
        class Silent:
            pass


def test_a_registry_guesses_what_was_meant(registry: Registry) -> None:
    with pytest.raises(UnknownNameError, match="unknown part 'frist', did you mean 'first'?"):
        registry["frist"]


def test_streams_are_named_and_independent() -> None:
    one = stream(7, "lengths", 3).random(4)
    assert np.array_equal(one, stream(7, "lengths", 3).random(4))
    for other in (stream(8, "lengths", 3), stream(7, "lengths", 4), stream(7, "lengths"), stream(7, "lengths3")):
        assert not np.array_equal(one, other.random(4))


def test_streams_are_the_same_in_every_process() -> None:
    code = "from kvsim.rng import stream; print(stream(42, 'a', 1).random())"
    runs = [
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        for seed in "12"
    ]
    assert {float(run.stdout) for run in runs} == {stream(42, "a", 1).random()}


@kernel
def part(x):  # type: ignore[no-untyped-def]
    return x


@kernel
def double(x):  # type: ignore[no-untyped-def]
    return 2 * x


@kernel
def triple(x):  # type: ignore[no-untyped-def]
    return 3 * x


@kernel
def plain(x):  # type: ignore[no-untyped-def]
    return x + 1


@kernel
def middle(x):  # type: ignore[no-untyped-def]
    return part(x) + plain(x)


@kernel
def root(x):  # type: ignore[no-untyped-def]
    return 10 * middle(x)


def test_link_replaces_a_part_all_the_way_down() -> None:
    assert root(5) == 10 * (5 + 6)
    doubled, tripled = link(root, {"part": double}), link(root, {"part": triple})
    assert (doubled(5), tripled(5), root(5)) == (10 * (10 + 6), 10 * (15 + 6), 110)
    assert link(root, {"part": double}) is doubled


def test_linked_copies_are_named_by_their_parts_and_copy_no_more_than_needed() -> None:
    doubled, tripled = link(root, {"part": double}), link(root, {"part": triple})
    names = {getattr(f, "py_func", f).__qualname__ for f in (root, doubled, tripled)}
    assert len(names) == 3
    assert getattr(doubled, "py_func", doubled).__globals__["middle"] is not middle
    inner = getattr(doubled, "py_func", doubled).__globals__["middle"]
    assert getattr(inner, "py_func", inner).__globals__["plain"] is plain


def test_link_refuses_a_part_nobody_uses() -> None:
    with pytest.raises(LookupError, match="root uses no nonsense"):
        link(root, {"nonsense": double})


@kernel
def total(b):  # type: ignore[no-untyped-def]
    s = 0
    for i in range(b.inner.values.shape[0]):
        for j in range(b.inner.values.shape[1]):
            s += b.inner.values[i, j] * b.weights[j]
    b.weights[0] += 1
    return s


def test_bundles_read_and_write_their_arrays() -> None:
    class Inner(NamedTuple):
        values: Any

    class Outer(NamedTuple):
        weights: Any
        inner: Inner

    outer = Outer(np.array([1, 10]), Inner(np.array([[1, 2], [3, 4], [5, 6]])))
    assert total(bundle(outer)) == (1 + 20) + (3 + 40) + (5 + 60)
    assert outer.weights.tolist() == [2, 10]
    if not JIT_DISABLED:
        with pytest.raises(ValueError, match="contiguous"):
            bundle(Outer(np.arange(4)[::2], outer.inner))
