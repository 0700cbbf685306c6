"""The vocabulary of a scenario outside the cluster, as frozen models: what arrives, and what breaks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvsim.scenario.base import Model
from kvsim.scenario.clients import Clients
from kvsim.scenario.mistakes import mistake
from kvsim.scenario.parts import Chosen, Part
from kvsim.scenario.quantities import PositiveSeconds, Seconds

MISSING_TRACE = (
    "this scenario replays a trace that does not come with it: name one with --set workload.trace=PATH, "
    "or describe a synthetic load under workload.synthetic"
)


class Workload(Model):
    """What arrives: a recorded `trace`, or a `synthetic` load made from the seed."""

    trace: Annotated[str, Field(min_length=1)] | None = None
    format: str = "auto"
    synthetic: Annotated[Chosen, Part("kind", "kvsim.workload.synthetic", "SYNTHETIC")] | None = None
    clients: Clients

    @model_validator(mode="after")
    def _one_source(self) -> Workload:
        if self.trace is None and self.synthetic is None:
            self.refuse(mistake(MISSING_TRACE, ("trace",)))
        if self.trace is not None and self.synthetic is not None:
            self.refuse(mistake("a trace is given too: set one of workload.trace and workload.synthetic to null", ("synthetic",)))
        if self.format != "auto":
            self._check_format()
        return self

    def _check_format(self) -> None:
        if self.trace is None:
            self.refuse(mistake("is for traces, a synthetic load has none", ("format",)))
        from kvsim.errors import did_you_mean
        from kvsim.workload.formats import FORMATS

        if self.format not in FORMATS:
            self.refuse(mistake(f"unknown trace format {self.format!r}{did_you_mean(self.format, ['auto', *FORMATS])}", ("format",)))


class Fault(Model):
    """What breaks `at` a time of the run (null `until`: for good): a node, its SSD, one of its links, or the shared pool.

    `factor`: so many times as long a transfer takes (`ssd-slow`, `link-degraded`); `link`: the host link of its GPUs, or its NIC.
    """

    kind: Literal["node-down", "ssd-slow", "ssd-full", "link-degraded", "pool-lost"]
    at: Seconds
    until: PositiveSeconds | None = None
    node: Annotated[int, Field(ge=0)] | None = None
    factor: Annotated[float, Field(gt=1)] | None = None
    link: Literal["host", "nic"] | None = None

    @model_validator(mode="after")
    def _keys_of_the_kind(self) -> Fault:
        wanted = {
            "node": self.kind != "pool-lost",
            "factor": self.kind in ("ssd-slow", "link-degraded"),
            "link": self.kind == "link-degraded",
        }
        found = []
        for name, needed in wanted.items():
            given = getattr(self, name) is not None
            if needed and not given:
                found.append(mistake(f"is missing: {self.kind} needs it", (name,)))
            elif given and not needed:
                found.append(mistake(f"says nothing of {self.kind}", (name,)))
        if self.until is not None and self.until <= self.at:
            found.append(mistake(f"must be after the fault begins, at {self.at:g} s", ("until",)))
        self.refuse(*found)
        return self
