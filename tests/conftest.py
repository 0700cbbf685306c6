"""Fixtures of all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The first call of a kernel compiles it: no deadlines. The same examples each time, unless HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("kvsim", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kvsim"))


@pytest.fixture
def shared() -> Path:
    """The folder of large public inputs: KVSIM_SHARED, or `shared` beside the checkout; skips where there is none."""
    folder = Path(os.environ.get("KVSIM_SHARED") or Path(__file__).parents[2] / "shared")
    if not folder.is_dir():
        pytest.skip("the large inputs are not here: set KVSIM_SHARED to their folder")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The large inputs take kernels even to be read."""
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow_without_jit)
