"""Facts in a scenario: the name of a catalog entry, or its fields inline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from kvsim.errors import KvsimError, did_you_mean
from kvsim.scenario.mistakes import mistake, show


@dataclass(frozen=True, slots=True)
class Fact:
    """Marks a field as an entry of the catalog's `section`: its name, or a mapping of its fields; `path_suffix`: or a file."""

    section: str
    path_suffix: str = ""

    def read(self, value: Any) -> str | dict[str, Any]:
        """`value` if it names or describes an entry. Raises `ValidationError` or `ValueError`."""
        from kvsim import catalog

        if isinstance(value, str):
            if self.path_suffix and value.endswith(self.path_suffix):
                self._check(catalog.model, value)
            elif value not in (names := catalog.names(self.section)):
                raise ValueError(f"the catalog has no {self.section} {value!r}{did_you_mean(value, names)}")
            return value
        if not isinstance(value, dict):
            raise ValueError(f"expected a name or a mapping, got {show(value)}")
        self._check(catalog.inline, self.section, value)
        return value

    def _check(self, make: Callable[..., Any], *arguments: Any) -> None:
        try:
            make(*arguments)
        except KvsimError as error:
            found = [
                mistake(str(problem)) if problem.file else mistake(problem.message, tuple(problem.path.split(".")) if problem.path else ())
                for problem in error.problems
            ]
            raise ValidationError.from_exception_data(self.section, found) from None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        from kvsim import catalog

        named: dict[str, Any] = {"enum": list(catalog.names(self.section))}
        file = [{"type": "string", "pattern": f"{self.path_suffix}$"}] if self.path_suffix else []
        return {"anyOf": [named, *file, {"type": "object"}], "description": f"{self.section}: a catalog name, or its fields"}
