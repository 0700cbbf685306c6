"""Quantities as people write them ('64GiB', '400Gbps', '2us', '$2.31/h') to SI floats and back.

Inside kvsim everything is bytes, bytes per second, seconds, tokens and dollars; conversion happens only here, at the border.
Decimal and binary byte prefixes are told apart (GB = 10^9, GiB = 2^30); `b` is a bit only in rates per second written `Gbps`.
"""

from __future__ import annotations

import math
import re

from kvsim.errors import UnitError, did_you_mean

_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_PREFIX = _SI | _BINARY

UNITS: dict[str, dict[str, float]] = {
    "bytes": {f"{p}B": f for p, f in _PREFIX.items()},
    "bandwidth": {f"{p}B/s": f for p, f in _PREFIX.items()} | {f"{p}bps": f / 8 for p, f in _SI.items()},
    "seconds": {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0},
    "tokens": {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "tokens": 1.0, "ktokens": 1e3, "Mtokens": 1e6},
    "flops": {f"{p}FLOPS": f for p, f in _SI.items()} | {f"{p}FLOP/s": f for p, f in _SI.items()},
    "usd_per_hour": {"$/h": 1.0, "USD/h": 1.0},
    "usd": {"$": 1.0, "USD": 1.0},
    "watts": {"W": 1.0, "kW": 1e3, "MW": 1e6, "GW": 1e9},
}
EXAMPLE = {
    "bytes": "64GiB",
    "bandwidth": "55GB/s",
    "seconds": "3600s",
    "tokens": "8192",
    "flops": "989TFLOPS",
    "usd_per_hour": "$2.31/h",
    "usd": "$100",
    "watts": "1.9kW",
}

_NUMBER = re.compile(r"^\s*(\$?)\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")


def parse(value: str | int | float, kind: str) -> float:
    """Return `value` in SI. Text needs a unit of `kind` (a key of `UNITS`); a bare number passes only for 0 or where '' is a unit.

    Raises `UnitError` with the accepted form.
    """
    units = UNITS[kind]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UnitError(f"expected a quantity such as {EXAMPLE[kind]!r}, got {value!r}")
    if isinstance(value, (int, float)):
        if not math.isfinite(value):
            raise UnitError(f"expected a finite quantity, got {value!r}")
        if value == 0 or "" in units:
            return float(value)
        raise UnitError(f"{value!r} has no unit, write it like {EXAMPLE[kind]!r}")
    match = _NUMBER.match(value)
    if match is None:
        raise UnitError(f"{value!r} is not a quantity, write it like {EXAMPLE[kind]!r}")
    dollar, digits, unit = match.groups()
    unit = dollar + unit
    number = float(digits.replace("_", "").replace(",", ""))
    if unit not in units:
        if unit == "" and number == 0:
            return 0.0
        other = next((k for k, known in UNITS.items() if unit and unit in known), None)
        if not unit:
            why = "has no unit"
        elif other:
            why = f"is a quantity of {other.replace('_', ' ')}, not of {kind.replace('_', ' ')}"
        else:
            why = f"has the unknown unit {unit!r}{did_you_mean(unit, [u for u in units if u])}"
        raise UnitError(f"{value!r} {why}; write it like {EXAMPLE[kind]!r}")
    return number * units[unit]


def show(value: float, kind: str, *, binary: bool = False) -> str:
    """The shortest text that `parse` reads back to exactly `value`; three digits where exactness needs more than six."""
    if value == 0:
        return {"tokens": "0"}.get(kind, "0" + _base(kind))
    exact = [(number, text) for number, text in _candidates(value, kind, binary) if parse(text, kind) == value]
    if exact:
        return min(exact, key=lambda c: (len(c[1]), -c[0]))[1]
    return repr(float(value)) + _base(kind) if not kind.startswith("usd") else _dollars(repr(float(value)), kind)


def human(value: float, kind: str, *, binary: bool = False) -> str:
    """`value` to three significant digits in the unit that suits it, for people to read."""
    if value == 0:
        return show(0, kind)
    fitting = [c for c in _scaled(value, kind, binary) if 1 <= abs(c[0]) < 1000] or _scaled(value, kind, binary)
    number, unit = min(fitting, key=lambda c: abs(math.log10(abs(c[0])) - 1))
    text = f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"
    return _dollars(text, kind) if kind.startswith("usd") else text + unit


def _base(kind: str) -> str:
    return next(unit for unit, factor in UNITS[kind].items() if factor == 1.0)


def _dollars(number: str, kind: str) -> str:
    return f"${number}/h" if kind == "usd_per_hour" else f"${number}"


def _scaled(value: float, kind: str, binary: bool) -> list[tuple[float, str]]:
    preferred = [u for u in UNITS[kind] if u not in ("µs", "K", "KB", "KB/s", "Kbps", "min", "d", "tokens", "ktokens", "Mtokens")]
    if kind in ("bytes", "bandwidth"):
        preferred = [u for u in preferred if not u.endswith("bps") and (("i" in u) == binary or UNITS[kind][u] == 1.0)]
    return [(value / UNITS[kind][u], u) for u in preferred]


def _candidates(value: float, kind: str, binary: bool) -> list[tuple[float, str]]:
    scaled = _scaled(value, kind, binary)
    if kind in ("bytes", "bandwidth"):
        scaled = scaled + _scaled(value, kind, not binary)
    out = []
    for number, unit in scaled:
        text = f"{number:.6g}"
        if "e" in text and abs(number) >= 1e6:
            text = repr(int(number)) if number == int(number) else repr(number)
        out.append((number, _dollars(text, kind) if kind.startswith("usd") else text + unit))
    return out
