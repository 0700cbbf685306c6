"""Facts as data: hardware, links and models, each entry with its source and date.

    hardware("b300")   link("pcie5")   model("kimi-k3")   model("path/to/config.json")   model({"config": {...}, "weights": "fp8"})

A name that is not there raises `CatalogError` with the nearest one that is. Entries may be given by their fields instead of a name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvsim.catalog.architecture import Architecture, Weights
from kvsim.catalog.config import WRAPPERS, architecture_from_config
from kvsim.catalog.entries import Hardware, Link, Model
from kvsim.catalog.loader import Entry, build, entries
from kvsim.catalog.quantisation import weights_of_config
from kvsim.errors import CatalogError, Problem, did_you_mean

__all__ = ["Architecture", "Hardware", "Link", "Model", "Weights", "hardware", "inline", "link", "model", "model_from_config", "names"]

SECTIONS = {"hardware": "hardware.yaml", "link": "links.yaml", "model": "models.yaml"}
INLINE = "inline"
_MODEL_FIELDS = ("checkpoint", "weights", "config", "config_of", "source", "date", "note")


def names(section: str) -> list[str]:
    """Names of a section (`hardware`, `link`, `model`), sorted."""
    return sorted(entries(SECTIONS[section]))


def hardware(name: str | Mapping[str, Any]) -> Hardware:
    """The GPU of that name, or of these fields."""
    found = build(Hardware, _entry("hardware", name))
    for at in ("host_link", "nic", "nvme"):
        if (other := getattr(found, at)) is not None and other not in (known := names("link")):
            raise _entry("hardware", name).refuse(f"the catalog has no link {other!r}{did_you_mean(other, known)}", at)
    return found


def link(name: str | Mapping[str, Any]) -> Link:
    """The link of that name, or of these fields."""
    return build(Link, _entry("link", name))


def model(name: str | Path | Mapping[str, Any]) -> Model:
    """The model of that name, of that config.json (a path that ends in .json), or of these fields.

    Fields are those of an entry (`config`, or `config_of` another model; `weights`), or a config.json as it is.
    """
    if isinstance(name, Path) or (isinstance(name, str) and name.endswith(".json")):
        return model_from_config(name)
    if not isinstance(name, str) and any(key in name for key in ("num_hidden_layers", *WRAPPERS)):
        return _of_config(INLINE, name, "", source="given")
    return _model(_entry("model", name))


def model_from_config(path: str | Path) -> Model:
    """A model from a Hugging Face config.json; weights in the formats the file states, else bf16."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogError(Problem(f"cannot be read: {error.strerror}", file=str(path))) from None
    except UnicodeDecodeError:
        raise CatalogError(Problem("is not JSON: not UTF-8 text", file=str(path))) from None
    except json.JSONDecodeError as error:
        raise CatalogError(Problem(f"is not JSON: {error.msg}", "", str(path), error.lineno, error.colno)) from None
    if not isinstance(config, dict):
        raise CatalogError(Problem("is not a model configuration: not a JSON object", file=str(path)))
    return _of_config(Path(path).resolve().parent.name or Path(path).stem, config, str(path), source=str(path))


def inline(section: str, fields: Mapping[str, Any]) -> Hardware | Link | Model:
    """The entry that `fields` describe. Raises `CatalogError` whose problems' paths are within the entry."""
    return {"hardware": hardware, "link": link, "model": model}[section](fields)  # type: ignore[return-value]


def _of_config(name: str, config: Mapping[str, Any], file: str, *, source: str) -> Model:
    architecture = architecture_from_config(config, file)
    return Model(name, str(config.get("_name_or_path") or name), str(weights_of_config(config, file)), architecture, source, "given")


def _entry(section: str, name: str | Mapping[str, Any]) -> Entry:
    if not isinstance(name, str):
        return Entry(INLINE, {"source": "given", "date": "given", **name})
    known = entries(SECTIONS[section])
    if name not in known:
        raise CatalogError(f"the catalog has no {section} {name!r}{did_you_mean(name, known)}")
    return known[name]


def _model(entry: Entry) -> Model:
    for key in entry.fields:
        if key not in _MODEL_FIELDS:
            raise entry.refuse(f"unknown field{did_you_mean(key, ('config', 'weights'))}", key)
    text = {key: entry.fields.get(key, "") for key in ("checkpoint", "weights", "config_of", "source", "date")}
    for key, value in text.items():
        if key != "date" and not isinstance(value, str):
            raise entry.refuse(f"expected text, got {value!r}", key)
    try:
        weights = Weights.of(text["weights"]) if text["weights"] else weights_of_config(entry.fields.get("config") or {})
    except CatalogError as error:
        raise entry.refuse(error.problems[0].message, "weights") from None
    shape = _shape(entry)
    note = entry.fields.get("note") or {}
    return Model(entry.name, text["checkpoint"] or entry.name, str(weights), shape, text["source"], str(text["date"]), note)


def _shape(entry: Entry) -> Architecture:
    config, other = entry.fields.get("config"), entry.fields.get("config_of")
    if (config is None) == (other is None):
        raise entry.refuse("needs one of config (the fields of a config.json) and config_of (the model it shares them with)", "config")
    if config is None:
        if "config" not in entries(SECTIONS["model"]).get(str(other), Entry("", {})).fields:
            raise entry.refuse(f"the catalog has no model {other!r} with a config{did_you_mean(str(other), names('model'))}", "config_of")
        return model(str(other)).architecture
    try:
        return architecture_from_config(config)
    except CatalogError as error:
        problems = [replace(p, path=f"config.{p.path}" if p.path else "config") for p in error.problems]
        raise CatalogError(*(entry.refuse(p.message, p.path).problems[0] for p in problems)) from None
