"""What all models of the scenario's vocabulary share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import InitErrorDetails

from kvsim.scenario.parts import STRICT

Count = Annotated[int, Field(ge=1)]
Auto = Literal["auto"]


class Model(BaseModel):
    """Frozen, no unknown keys, no conversions between types."""

    model_config = STRICT

    def refuse(self, *found: InitErrorDetails) -> None:
        """Raise the mistakes found, if any."""
        if found:
            raise ValidationError.from_exception_data(type(self).__name__, list(found))
