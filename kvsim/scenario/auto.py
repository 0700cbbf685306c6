"""The word `auto` beside another type: kept as it is, for what can only be known when the cluster is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class OrAuto:
    """Marks a field as `auto` or a value of the type `inner`."""

    inner: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            lambda value, read: AUTO if value == AUTO else read(value),
            handler.generate_schema(self.inner),
            serialization=core_schema.wrap_serializer_function_ser_schema(lambda value, write: AUTO if value == AUTO else write(value)),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"const": AUTO}, TypeAdapter(self.inner).json_schema()]}
