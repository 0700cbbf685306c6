"""Named random streams spawned from one seed: adding a stream never changes the numbers another one draws."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """An independent generator for `name` under `seed`; the same pair gives the same numbers in every process."""
    digest = hashlib.sha256("\x1f".join(map(str, name)).encode()).digest()
    key = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=key))
