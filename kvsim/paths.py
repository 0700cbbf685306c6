"""Where kvsim keeps what it can rebuild: compiled kernels and loaded traces."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """Folder of everything kvsim caches: `KVSIM_CACHE_DIR`, else `XDG_CACHE_HOME`/kvsim, else ~/.cache/kvsim."""
    own = os.environ.get("KVSIM_CACHE_DIR")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvsim"
