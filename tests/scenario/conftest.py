"""A small scenario that holds, and a way to write files and read what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvsim.errors import ScenarioError
from kvsim.scenario import load

SMALL = """\
name: small
workload:
  synthetic: {kind: chat, sessions: 8}
  clients: {concurrency: 2}
cluster:
  hardware: h100
  model: llama-3.1-8b
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a text to a file in a new folder."""

    def to(text: str, name: str = "s.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return to


@pytest.fixture
def mistakes(write: Callable[..., Path]) -> Callable[..., list[str]]:
    """What `load` finds wrong with a text and overrides, a line each, the file called `s.yaml`."""

    def of(text: str, *overrides: str, seed: int | None = None) -> list[str]:
        path = write(text)
        with pytest.raises(ScenarioError) as caught:
            load(path, overrides, seed)
        return str(caught.value).replace(str(path), "s.yaml").splitlines()

    return of
