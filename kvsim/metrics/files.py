"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """`write` to a file beside `path` that then takes its place: readers see the old file or the new one, never a part."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(part)
        os.replace(part, path)
    except BaseException:
        with suppress(FileNotFoundError):
            part.unlink()
        raise
