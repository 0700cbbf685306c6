"""The direction of dependencies, the two libraries that live in few places, and what an import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kvsim

PACKAGE = Path(kvsim.__file__).parent
BASE = {"arrays", "bins", "errors", "jit", "paths", "registry", "rng", "units"}
LAYERS = (BASE, {"metrics"}, {"workload", "catalog"}, {"cache", "transfer"}, {"router", "engine"}, {"scenario"}, {"cluster", "simulation"},
          {"economics", "report", "sweep", "verify"}, {"cli"})  # fmt: skip
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
SEES_RESULTS_ONLY = {"economics", "report"}
WAITS = ("simulation.py", "cluster/", "workload/clients/", "transfer/")
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE or not path.name.startswith("__")]


def imports(path: Path) -> set[str]:
    """Everything `path` imports, in functions and for types too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_dependencies_point_one_way(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "numba":
            assert path.name == "jit.py"
        if top == "simpy":
            assert str(path.relative_to(PACKAGE)).startswith(WAITS)
        part = rest.partition(".")[0]
        if top == "kvsim" and part in RANK:
            assert RANK[part] <= RANK[own], f"{own} must not import {part}"
            assert own not in SEES_RESULTS_ONLY or part in {own, "metrics", *BASE}, f"{own} must not import {part}"


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import kvsim", {"numba", "matplotlib", "polars", "pydantic", "numpy", "click"}),
        (
            "from kvsim.cli.main import kvsim; kvsim.main(['--help'], standalone_mode=False)",
            {"numba", "matplotlib", "polars", "pydantic", "numpy"},
        ),
    ],
)
def test_imports_are_light(statement: str, heavy: set[str]) -> None:
    code = f"import sys; {statement}; print('loaded', *({heavy!r} & sys.modules.keys()))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "loaded"


def test_public_names_are_there_and_sorted() -> None:
    assert kvsim.__all__ == sorted(kvsim.__all__)
    assert all(hasattr(kvsim, name) for name in kvsim.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        kvsim.nothing  # noqa: B018
