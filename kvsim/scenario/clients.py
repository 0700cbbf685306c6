"""Who sends requests, in the vocabulary of a scenario."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, ValidationError, WithJsonSchema, model_validator

from kvsim.scenario.base import Count, Model
from kvsim.scenario.mistakes import mistake, show
from kvsim.scenario.quantities import PositiveSeconds, Seconds

Mode = Literal["closed-loop", "open-loop", "agentx"]
AGENTX_WINDOW_S = 3600.0
# Keys that say something in some modes only.
ONLY: dict[str, tuple[Mode, ...]] = {
    "concurrency": ("closed-loop", "agentx"),
    "warmup": ("closed-loop", "open-loop"),
    "arrivals": ("open-loop",),
    "rate": ("open-loop",),
    "time_scale": ("open-loop",),
    "max_context": ("agentx",),
}


def _concurrency(value: Any) -> tuple[int, ...]:
    levels = value if isinstance(value, list) else [value]
    found = [
        mistake(f"expected a whole number of live sessions, at least 1, got {show(level)}", (i,) if isinstance(value, list) else ())
        for i, level in enumerate(levels)
        if isinstance(level, bool) or not isinstance(level, int) or level < 1
    ]
    if not levels:
        found = [mistake("names no concurrency to run at")]
    elif not found:
        found = [mistake(f"{n} is given twice", (i,)) for i, n in enumerate(levels) if n in levels[:i]]
    if found:
        raise ValidationError.from_exception_data("concurrency", found)
    return tuple(levels)


Concurrency = Annotated[
    tuple[int, ...],
    PlainValidator(_concurrency),
    PlainSerializer(list),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1}]}
    ),
]


class Clients(Model):
    """Who sends. `closed-loop`: `concurrency` live sessions at a time; `open-loop`: sessions begin at their time, whatever the state of the
    cluster; `agentx`: the rules of the AgentX benchmark, with `concurrency` live session trees. Each number of `concurrency` is a point.

    `duration` is the measured window, after `warmup` (agentx: after its own warm-up; 3600 s if not given); null runs until `max_sessions`
    (null: every session of the workload once) are done.
    """

    mode: Mode = "closed-loop"
    concurrency: Concurrency | None = None
    duration: PositiveSeconds | None = None
    warmup: Seconds = 0.0
    max_sessions: Count | None = None
    arrivals: Literal["recorded", "poisson"] = "recorded"
    rate: Annotated[float, Field(gt=0)] | None = None
    time_scale: Annotated[float, Field(gt=0)] = 1.0
    max_context: Count | None = None

    @model_validator(mode="after")
    def _keys_of_the_mode(self) -> Clients:
        found = [
            mistake(f"says nothing where mode is {self.mode}, only where it is {' or '.join(modes)}", (name,))
            for name, modes in ONLY.items()
            if self.mode not in modes and getattr(self, name) != type(self).model_fields[name].default
        ]
        if self.mode in ONLY["concurrency"] and self.concurrency is None:
            found.append(mistake("is missing", ("concurrency",)))
        if self.mode == "open-loop" and self.arrivals == "poisson" and self.rate is None:
            found.append(mistake("is missing: sessions a second, for arrivals: poisson", ("rate",)))
        if self.mode == "open-loop" and self.arrivals == "recorded" and self.rate is not None:
            found.append(mistake("says nothing where arrivals are recorded: use time_scale, or arrivals: poisson", ("rate",)))
        self.refuse(*found)
        return self

    @property
    def levels(self) -> tuple[int | None, ...]:
        """Concurrencies to run at; (None,) for an open loop."""
        return self.concurrency if self.concurrency is not None else (None,)

    @property
    def window_s(self) -> float | None:
        """Length of the measured window; None: until all sessions are done."""
        return AGENTX_WINDOW_S if self.mode == "agentx" and self.duration is None else self.duration
