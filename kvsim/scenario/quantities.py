"""Quantities as pydantic types: text with a unit in a scenario ('64GiB', '55GB/s', '3600s'), an SI float in Python, and back.

The unit names are those of `kvsim.units`; a bare number passes only where it is 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from kvsim import units
from kvsim.errors import UnitError


@dataclass(frozen=True, slots=True)
class Quantity:
    """Marks a float as a quantity of `kind` (a key of `kvsim.units.UNITS`) that is not negative; `positive`: nor zero."""

    kind: str
    positive: bool = False

    def read(self, value: Any) -> float:
        """`value` in SI. Raises `UnitError`, or `ValueError` if it is out of range."""
        number = units.parse(value, self.kind)
        if number < 0 or (self.positive and number == 0):
            raise ValueError(f"must be {'more than 0' if self.positive else '0 or more'}, got {value!r}")
        return number

    def show(self, number: float) -> str:
        """The text of `number`, which reads back as exactly that."""
        return units.show(number, self.kind)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(self.show, return_schema=core_schema.str_schema())
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": ["string", "number"], "description": f"{self.kind.replace('_', ' ')}, such as {units.EXAMPLE[self.kind]!r}"}


Seconds = Annotated[float, Quantity("seconds")]
PositiveSeconds = Annotated[float, Quantity("seconds", positive=True)]

_COUNTED = re.compile(r"^(.*?)\s*(tokens|blocks)$")


@dataclass(frozen=True, slots=True)
class Capacity:
    """Size of a tier: so many bytes, tokens or blocks; the last two are whole numbers."""

    amount: float
    unit: Literal["bytes", "tokens", "blocks"]

    @classmethod
    def read(cls, value: Any) -> Capacity:
        """From '1.5TB', '3.2M tokens', '800 blocks' or 0. Raises `UnitError` or `ValueError`."""
        if isinstance(value, str) and (counted := _COUNTED.match(value)):
            amount, unit = units.parse(counted[1], "tokens"), counted[2]
            if amount != int(amount):
                raise ValueError(f"must be a whole number of {unit}, got {value!r}")
        else:
            try:
                amount, unit = units.parse(value, "bytes"), "bytes"
            except UnitError as error:
                raise ValueError(f"{error}, '3.2M tokens' or '800 blocks'") from None
        if amount < 0:
            raise ValueError(f"must be 0 or more, got {value!r}")
        return cls(amount, unit)  # type: ignore[arg-type]

    def show(self) -> str:
        """The text that reads back as this."""
        return units.show(self.amount, "bytes") if self.unit == "bytes" else f"{self.amount:.0f} {self.unit}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.read, serialization=core_schema.plain_serializer_function_ser_schema(cls.show, return_schema=core_schema.str_schema())
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": ["string", "number"], "description": "such as '1.5TB', '3.2M tokens' or '800 blocks'"}
