"""Facts as data: hardware, links and models, each entry with its source and date."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kvsim import units
from kvsim.catalog.architecture import DTYPE_BYTES, Architecture, from_config
from kvsim.errors import CatalogError, Problem, UnitError, did_you_mean

FOLDER = Path(__file__).parent
SECTIONS = {"hardware": "hardware.yaml", "link": "links.yaml", "model": "models.yaml"}
_HARDWARE = {
    "hbm": "bytes",
    "hbm_bandwidth": "bandwidth",
    "bf16": "flops",
    "fp8": "flops",
    "fp4": "flops",
    "scaleup": "bandwidth",
    "dram": "bytes",
}
_LINK = {"bandwidth": "bandwidth", "latency": "seconds", "per_fragment": "seconds"}


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU: bytes, bytes/s a direction, dense flop/s (None: the GPU has no such unit)."""

    name: str
    hbm: float
    hbm_bandwidth: float
    bf16: float
    fp8: float | None
    fp4: float | None
    scaleup: float
    host_link: str
    dram: float
    source: str
    date: str
    note: str

    def flops(self, dtype: str) -> float:
        """Rate of matrix products in `dtype`, or in the next wider type that the GPU has."""
        return next(
            rate for rate in (self.fp4 if dtype == "fp4" else None, self.fp8 if dtype in ("fp4", "fp8") else None, self.bf16) if rate
        )


@dataclass(frozen=True, slots=True)
class Link:
    """A link in one direction: bytes/s, seconds a transfer, seconds a fragment."""

    name: str
    bandwidth: float
    latency: float
    per_fragment: float
    source: str
    date: str
    note: str


@dataclass(frozen=True, slots=True)
class Model:
    """A model: its architecture and the type its weights are usually served in."""

    name: str
    weights: str
    architecture: Architecture
    source: str
    date: str


def names(section: str) -> list[str]:
    """Names of a section (`hardware`, `link`, `model`), sorted."""
    return sorted(_entries(section))


def hardware(name: str | Mapping[str, Any]) -> Hardware:
    """The GPU of that name, or of these fields. Raises `CatalogError`."""
    return _hardware(*_entry("hardware", name))


def link(name: str | Mapping[str, Any]) -> Link:
    """The link of that name, or of these fields. Raises `CatalogError`."""
    return _link(*_entry("link", name))


def model(name: str | Mapping[str, Any]) -> Model:
    """The model of that name, of that config.json (a path that ends in .json), or of these fields. Raises `CatalogError`."""
    if isinstance(name, str) and name.endswith(".json"):
        return model_from_config(name)
    return _model(*_entry("model", name))


def inline(section: str, fields: Mapping[str, Any]) -> Any:
    """The entry that `fields` describe; source and date are the user's own. Raises `CatalogError` naming the field."""
    return {"hardware": hardware, "link": link, "model": model}[section](fields)


def model_from_config(path: str | Path) -> Model:
    """A model from a Hugging Face config.json; weights in the type the file states, else bf16."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogError(Problem(f"cannot be read: {error.strerror}", file=str(path))) from None
    except ValueError as error:
        raise CatalogError(Problem(f"is not JSON: {error}", file=str(path))) from None
    if not isinstance(config, dict):
        raise CatalogError(Problem("is not a model configuration: not an object", file=str(path)))
    quantised = str(config.get("quantization_config", {})).lower()
    weights = "fp4" if "fp4" in quantised else "fp8" if "fp8" in quantised else "bf16"
    return Model(Path(path).parent.name or Path(path).stem, weights, from_config(config, str(path)), str(path), "")


@cache
def _entries(section: str) -> dict[str, tuple[dict[str, Any], str]]:
    """Entries by name, each with where it stands; one without source and date is refused."""
    return read_section(FOLDER / SECTIONS[section])


def read_section(path: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """The entries of a catalog file: name -> (fields, `file:line`). Raises `CatalogError` for one without source or date."""
    text = path.read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    root = yaml.compose(text, Loader=loader)
    entries: dict[str, tuple[dict[str, Any], str]] = {}
    raw = yaml.load(text, Loader=loader)
    assert root is not None
    for key, _ in root.value:
        place = f"{path.name}:{key.start_mark.line + 1}"
        fields = raw[key.value]
        for needed in ("source", "date"):
            if not fields.get(needed):
                raise CatalogError(Problem(f"an entry needs a {needed}", f"{key.value}.{needed}", place))
        if key.value in entries:
            raise CatalogError(Problem("is there twice", key.value, place))
        entries[key.value] = (fields | {"date": str(fields["date"])}, place)
    return entries


def _entry(section: str, name: str | Mapping[str, Any]) -> tuple[str, Mapping[str, Any], str]:
    if not isinstance(name, str):
        return "inline", {"source": "given in the scenario", "date": "given", "note": "", **name}, ""
    entries = _entries(section)
    if name not in entries:
        raise CatalogError(f"the catalog has no {section} {name!r}{did_you_mean(name, entries)}")
    fields, place = entries[name]
    return name, fields, place


def _quantities(fields: Mapping[str, Any], kinds: Mapping[str, str], others: set[str], place: str) -> dict[str, Any]:
    """`fields` with quantities in SI; every field must be there and known."""
    known = set(kinds) | others
    for key in fields:
        if key not in known:
            raise CatalogError(Problem(f"unknown field{did_you_mean(key, known)}", str(key), place))
    if missing := sorted(known - set(fields) - {"fp8", "fp4"}):
        raise CatalogError(Problem("is missing", missing[0], place))
    out = dict(fields)
    for key, kind in kinds.items():
        value = fields.get(key)
        try:
            out[key] = None if value is None and key in ("fp8", "fp4") else units.parse(value, kind)  # type: ignore[arg-type]
        except UnitError as error:
            raise CatalogError(Problem(str(error), key, place)) from None
    return out


def _hardware(name: str, fields: Mapping[str, Any], place: str) -> Hardware:
    return Hardware(name, **_quantities(fields, _HARDWARE, {"host_link", "source", "date", "note"}, place))


def _link(name: str, fields: Mapping[str, Any], place: str) -> Link:
    return Link(name, **_quantities({"per_fragment": 0, "latency": 0, **fields}, _LINK, {"source", "date", "note"}, place))


def _model(name: str, fields: Mapping[str, Any], place: str) -> Model:
    for key in fields:
        if key not in ("weights", "config", "source", "date", "note"):
            raise CatalogError(Problem(f"unknown field{did_you_mean(key, ('weights', 'config'))}", key, place))
    config, weights = fields.get("config"), fields.get("weights", "bf16")
    if not isinstance(config, Mapping):
        raise CatalogError(Problem("is missing: the fields of the model's config.json", "config", place))
    if weights not in DTYPE_BYTES:
        raise CatalogError(Problem(f"{weights!r} is no type of weights{did_you_mean(str(weights), DTYPE_BYTES)}", "weights", place))
    return Model(name, weights, from_config(config, place), fields["source"], fields["date"])
