"""Rows that keep the recorder's laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvsim.metrics.recorder import COLUMNS, HITS, MISSED


def blank_row(**values: Any) -> dict[str, Any]:
    """A row of zeros but for `values`; computed tokens and the cold misses make up what hits and other misses leave of the input."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS, 0) | {"rejected": False} | values
    hits = sum(row[name] for name in HITS)
    row["computed_tokens"] = values.get("computed_tokens", row["input_tokens"] - hits)
    if "missed_cold" not in values:
        row["missed_cold"] = row["input_tokens"] - hits - sum(row[name] for name in MISSED if name != "missed_cold")
    return row


def to_columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows as columns."""
    return {name: np.array([row[name] for row in rows], column.dtype) for name, column in COLUMNS.items()}


@pytest.fixture
def row() -> Any:
    return blank_row


@pytest.fixture
def columns() -> Any:
    return to_columns


@pytest.fixture
def random_columns() -> Any:
    """n lawful rows from a seed, one in ten rejected."""

    def make(n: int, seed: int = 0) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        rows = []
        for i in range(n):
            times = np.sort(rng.uniform(0, 100, 4))
            parts = rng.multinomial(int(rng.integers(1, 5000)), np.ones(len(HITS) + len(MISSED)) / (len(HITS) + len(MISSED)))
            rejected = bool(rng.random() < 0.1)
            values = dict(zip((*HITS, *MISSED), (int(p) for p in parts * (not rejected)), strict=True))
            rows.append(
                blank_row(
                    request=i, session=int(rng.integers(0, 5)), arrival_s=times[0], scheduled_s=np.nan if rejected else times[1],
                    first_token_s=np.nan if rejected else times[2], finish_s=times[3], input_tokens=int(parts.sum()),
                    output_tokens=int(rng.integers(1, 50)), rejected=rejected, **values,
                    **({"computed_tokens": 0} if rejected else {}),
                )
            )  # fmt: skip
        return to_columns(rows)

    return make
