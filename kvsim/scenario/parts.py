"""Registered parts in a scenario: a name, or a mapping of the name and the part's parameters, checked against its registry.

`offload: vllm-native` and `offload: {policy: vllm-native, store_threshold: 2}` both become a `Chosen`: the name, and the registered
frozen dataclass with those parameters. Registries are imported when the first part of their kind is read.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields
from functools import cache
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, create_model
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from kvsim.errors import KvsimError, did_you_mean
from kvsim.registry import Registry
from kvsim.scenario.mistakes import UNKNOWN_KEY, mistake, mistakes_of, show

STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A registered part by its name, and its parameters: an instance of the registered class."""

    name: str
    parameters: Any


@dataclass(frozen=True, slots=True)
class Part:
    """Marks a field as a part of the registry `module:attribute`; `key` names the part in its mapping (`policy`, `kind`, `model`)."""

    key: str
    module: str
    attribute: str

    @property
    def registry(self) -> Registry:
        """The registry, imported now."""
        found: Registry = getattr(importlib.import_module(self.module), self.attribute)
        return found

    def read(self, value: Any) -> Chosen:
        """The part that `value` names. Raises `ValidationError` with every mistake in it."""
        given = {self.key: value} if isinstance(value, str) else value
        if not isinstance(given, Mapping):
            raise _all([mistake(f"expected a name or a mapping with {self.key!r}, got {show(value)}")])
        name = given.get(self.key)
        if not isinstance(name, str) or name not in self.registry:
            raise _all([self._misnamed(name, value)])
        parameters = {key: v for key, v in given.items() if key != self.key}
        return Chosen(name, construct(self.registry[name], parameters))

    def _misnamed(self, name: Any, value: Any) -> InitErrorDetails:
        registry = self.registry
        known = ", ".join(registry)
        if name is None:
            return mistake(f"names no {registry.kind}: give it as {self.key!r} (known: {known})")
        where = () if isinstance(value, str) else (self.key,)
        near = did_you_mean(name, registry) if isinstance(name, str) else f" (known: {known})"
        return mistake(f"unknown {registry.kind} {show(name)}{near}", where)

    def write(self, chosen: Chosen) -> str | dict[str, Any]:
        """The name alone where the part has no parameters, else a mapping of all of them."""
        parameters = {field.name: _plain(getattr(chosen.parameters, field.name)) for field in _parameters(type(chosen.parameters))}
        return {self.key: chosen.name} | parameters if parameters else chosen.name

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        entries = self.registry.describe()
        bare = [e.name for e in entries if all(_has_default(field) for field in _parameters(e.value))]
        mappings = [_mapping_schema(self.key, entry.name, entry.summary, entry.value) for entry in entries]
        return {"anyOf": [{"enum": bare}, *mappings], "description": f"{self.registry.kind}: its name, or a mapping with its parameters"}


def construct(cls: type, given: Mapping[str, Any]) -> Any:
    """`cls(**given)` with every value checked against its field's type. Raises `ValidationError` with every mistake."""
    known = {field.name: field for field in _parameters(cls)}
    found: list[InitErrorDetails] = []
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            found.append(mistake(f"unknown key{did_you_mean(name, known)}", (name,), UNKNOWN_KEY))
            continue
        try:
            values[name] = read_field(cls, name, value)
        except ValidationError as error:
            found.extend(mistakes_of(error, (name,)))
        except KvsimError as error:
            found.append(mistake(str(error), (name,)))
    found.extend(mistake(f"needs {name!r}") for name, field in known.items() if name not in given and not _has_default(field))
    if not found:
        try:
            return cls(**values)
        except (KvsimError, ValueError) as error:
            found.append(mistake(str(error)))
    raise _all(found)


def read_field(cls: type, name: str, value: Any) -> Any:
    """`value` as the type of the field `name`. Raises `ValidationError`, and what a nested dataclass itself raises."""
    read: Any = _field_model(cls, name).model_validate_json(json.dumps({"value": value}), strict=True)
    return read.value


def _all(found: Iterable[InitErrorDetails]) -> ValidationError:
    return ValidationError.from_exception_data("scenario", list(found))


def _parameters(cls: type) -> list[Field[Any]]:
    return [field for field in fields(cls) if field.init]


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


@cache
def _field_model(cls: type, name: str) -> type[BaseModel]:
    """A model of one field: pydantic hands its strictness on to plain dataclasses in the field's type."""
    hints = get_type_hints(cls, include_extras=True)
    return create_model(f"{cls.__name__}.{name}", __config__=STRICT, value=(hints[name], ...))


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)  # a default may be written as a whole number where a parameter read from a file is a float
    return value


def _mapping_schema(key: str, name: str, summary: str, cls: type) -> dict[str, Any]:
    properties: dict[str, Any] = {key: {"const": name}}
    for field in _parameters(cls):
        whole = _field_model(cls, field.name).model_json_schema()
        of_field = {k: v for k, v in whole["properties"]["value"].items() if k != "title"}
        if "$ref" in of_field:
            of_field = whole["$defs"][of_field["$ref"].rpartition("/")[2]]
        if field.default is not MISSING:
            of_field = of_field | {"default": _plain(field.default)}
        properties[field.name] = of_field
    required = [key, *(field.name for field in _parameters(cls) if not _has_default(field))]
    return {"type": "object", "description": summary, "properties": properties, "required": required, "additionalProperties": False}
