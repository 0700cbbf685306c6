"""The exception tree: every mistake of the user is a `KvsimError` that can show itself; bugs keep their traceback."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake at one place: `file:line:col: path: message`, each part left out where it is unknown.

    `line` and `col` count from 1.
    """

    message: str
    path: str = ""
    file: str = ""
    line: int | None = None
    col: int | None = None

    def __str__(self) -> str:
        place = self.file
        if self.line is not None:
            place += f":{self.line}"
            if self.col is not None:
                place += f":{self.col}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


class KvsimError(Exception):
    """A mistake in the user's input. The command line prints it without a traceback and exits with 2."""

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = tuple(p if isinstance(p, Problem) else Problem(p) for p in problems)
        super().__init__("\n".join(map(str, self.problems)))


class ScenarioError(KvsimError):
    """A scenario file or an override that does not say something kvsim can run."""


class TraceError(KvsimError):
    """A trace that cannot be read as what it claims to be."""


class CatalogError(KvsimError):
    """A catalog entry or a model configuration with a missing, unknown or sourceless field."""


class UnitError(KvsimError, ValueError):
    """A quantity with no unit, or with a unit of another kind."""


class UnknownNameError(KvsimError, LookupError):
    """A name that nothing is registered under."""


class LawError(AssertionError):
    """A conservation law that does not hold: a bug of kvsim, never of the user."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the nearest known name, else `` (known: ...)`` while the list is short, else nothing."""
    import difflib

    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f", did you mean {near[0]!r}?"
    return f" (known: {', '.join(names)})" if 0 < len(names) <= 24 else ""
