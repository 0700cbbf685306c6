"""What a contiguous fragment costs a link: a law of two parameters, or a measured curve; by direction and way of copying."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any, Protocol

from kvsim import units
from kvsim.errors import CatalogError, Problem, UnitError, did_you_mean

_LAW = {"bandwidth": "bandwidth", "per_fragment": "seconds"}


class Cost(Protocol):
    """What fragments cost one behind another."""

    def seconds(self, n_bytes: float) -> float:
        """Time of a fragment of `n_bytes`."""


@dataclass(frozen=True, slots=True)
class Law:
    """`per_fragment` seconds, and the bytes at `bandwidth`."""

    bandwidth: float
    per_fragment: float = 0.0

    def seconds(self, n_bytes: float) -> float:
        """Time of a fragment of `n_bytes`."""
        return self.per_fragment + n_bytes / self.bandwidth


@dataclass(frozen=True, slots=True)
class Curve:
    """Bytes/s (`rates`) that fragments of so many bytes (`sizes`, increasing) were measured to reach.

    Between two sizes the logarithm of a fragment's time is linear in that of its size, and so is the rate's. A fragment smaller than all
    takes what the smallest does; one larger than all goes at the rate of the largest.
    """

    sizes: tuple[float, ...]
    rates: tuple[float, ...]

    def seconds(self, n_bytes: float) -> float:
        """Time of a fragment of `n_bytes`."""
        sizes, rates = self.sizes, self.rates
        if n_bytes <= sizes[0]:
            return sizes[0] / rates[0]
        if n_bytes >= sizes[-1]:
            return n_bytes / rates[-1]
        above = bisect_right(sizes, n_bytes)
        share = log(n_bytes / sizes[above - 1]) / log(sizes[above] / sizes[above - 1])
        rate: float = rates[above - 1] * (rates[above] / rates[above - 1]) ** share
        return n_bytes / rate


@dataclass(frozen=True, slots=True)
class Copying:
    """One way of copying: costs to the GPU (`up`) and from it (`down`); `duplex`: share of both that is left when both run."""

    up: Cost
    down: Cost
    duplex: float = 1.0


def share(value: Any, path: str) -> float:
    """A number above 0 and at most 1. Raises `CatalogError`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise _refuse(f"must be above 0 and at most 1, got {value!r}", path)
    return float(value)


def copying(fields: Any, path: str, *, known: tuple[str, ...], default: Copying) -> Copying:
    """The way of copying at `path` of an entry: of the `known` fields, those not given are `default`'s. Raises `CatalogError`."""
    if isinstance(fields, Copying):
        return fields
    if not isinstance(fields, Mapping):
        raise _refuse(f"expected a mapping of {', '.join(known)}, got {fields!r}", path)
    for key in fields:
        if key not in known:
            raise _refuse(f"unknown field{did_you_mean(str(key), known)}", f"{path}.{key}")
    up, down = (cost(fields[way], f"{path}.{way}") if way in fields else own for way, own in (("up", default.up), ("down", default.down)))
    return Copying(up, down, share(fields.get("duplex", default.duplex), f"{path}.duplex"))


def cost(fields: Any, path: str) -> Cost:
    """From `{bandwidth: 48GB/s, per_fragment: 0.2us}`, or from sizes and the rates they reached, `{4KiB: 12.5GB/s, 8KiB: 24.4GB/s, ...}`.

    Raises `CatalogError` with the path of what cannot be.
    """
    if not isinstance(fields, Mapping) or not fields:
        raise _refuse(f"expected bandwidth and per_fragment, or a rate for each size of fragment, got {fields!r}", path)
    if all(str(key)[:1].isdigit() for key in fields):
        return _curve(fields, path)
    for key in fields:
        if key not in _LAW:
            raise _refuse(f"unknown field{did_you_mean(str(key), _LAW)}", f"{path}.{key}")
    if "bandwidth" not in fields:
        raise _refuse("is missing", f"{path}.bandwidth")
    law = Law(**{key: _quantity(value, _LAW[key], f"{path}.{key}") for key, value in fields.items()})
    if law.per_fragment < 0:
        raise _refuse(f"must not be negative, got {fields['per_fragment']!r}", f"{path}.per_fragment")
    return law


def _curve(fields: Mapping[Any, Any], path: str) -> Curve:
    sizes, rates = list[float](), list[float]()
    for key, value in fields.items():
        at = f"{path}.{key}"
        sizes.append(_quantity(key, "bytes", at))
        rates.append(_quantity(value, "bandwidth", at))
        if sizes[-1] <= max(sizes[:-1], default=0.0):
            raise _refuse(f"sizes must be more than 0 and increase, got {key!r}", at)
    return Curve(tuple(sizes), tuple(rates))


def _quantity(value: Any, kind: str, path: str) -> float:
    try:
        number = units.parse(value, kind)
    except UnitError as error:
        raise _refuse(str(error), path) from None
    if kind == "bandwidth" and not number > 0:
        raise _refuse(f"must be more than 0, got {value!r}", path)
    return number


def _refuse(message: str, path: str) -> CatalogError:
    return CatalogError(Problem(message, path))
