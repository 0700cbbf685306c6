"""Ranges of routers' parameters: each check raises ValueError with the parameter's name and its range."""

from __future__ import annotations


def at_least(name: str, value: float, low: float) -> None:
    """Raises ValueError unless `value` is `low` or more."""
    if not value >= low:
        raise ValueError(f"{name} must be at least {low}, not {value}")


def above(name: str, value: float, low: float, unit: str = "") -> None:
    """Raises ValueError unless `value` is more than `low`."""
    if not value > low:
        raise ValueError(f"{name} must be above {low}{unit and ' ' + unit}, not {value}")


def within(name: str, value: float, low: float, high: float) -> None:
    """Raises ValueError unless `value` lies between `low` and `high`, both included."""
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {value}")


def one_of(name: str, value: str, names: tuple[str, ...]) -> None:
    """Raises ValueError unless `value` is one of `names`."""
    if value not in names:
        raise ValueError(f"{name} must be one of {', '.join(names)}, not {value!r}")
