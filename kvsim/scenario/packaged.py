"""Scenarios that come with kvsim, found under `scenarios/` wherever kvsim is run from."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
FOLDERS = (_PACKAGE / "_scenarios", _PACKAGE.parent / "scenarios")  # in a wheel, in a checkout


def locate(path: str | Path) -> tuple[Path, str | None]:
    """(file, note): `path` itself, or, where there is no such file and it names one of kvsim's own, that one and a note that says so."""
    path = Path(path)
    if not path.exists() and path.parent == Path("scenarios"):
        for folder in FOLDERS:
            own = folder / path.name
            if own.is_file():
                return own, f"there is no {path} here: using the one that comes with kvsim, {own}"
    return path, None
