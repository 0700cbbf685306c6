"""Fixtures of all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("kvsim", deadline=None)  # the first call of a kernel compiles it
settings.load_profile("kvsim")


@pytest.fixture
def shared() -> Path:
    """The folder of large public inputs: KVSIM_SHARED, or `shared` beside the checkout; skips where there is none."""
    folder = Path(os.environ.get("KVSIM_SHARED") or Path(__file__).parents[2] / "shared")
    if not folder.is_dir():
        pytest.skip("the large inputs are not here: set KVSIM_SHARED to their folder")
    return folder
