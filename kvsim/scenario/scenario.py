"""`Scenario`: what the user asked for, as a frozen value that can be written down and read back as the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args

from pydantic import BaseModel, Field, JsonValue, model_validator

from kvsim.scenario import document
from kvsim.scenario.base import Model
from kvsim.scenario.cluster import Cluster
from kvsim.scenario.document import Where
from kvsim.scenario.mistakes import mistake
from kvsim.scenario.models import Fault, Workload
from kvsim.scenario.parts import Part

BASE = "base"


class Scenario(Model):
    """A workload on a cluster, and named `variants` of it: overrides by dotted path, each an arm that runs at every concurrency."""

    name: Annotated[str, Field(min_length=1)] = "scenario"
    seed: Annotated[int, Field(ge=0)] = 0
    workload: Workload
    cluster: Cluster
    faults: list[Fault] = Field(default_factory=list)
    variants: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _faults_hit_something(self) -> Scenario:
        nodes, tiers = self.cluster.nodes, self.cluster.tiers
        found = []
        for i, fault in enumerate(self.faults):
            if fault.node is not None and fault.node >= nodes:
                counted = "there is one node, number 0" if nodes == 1 else f"the nodes are numbered 0 to {nodes - 1}"
                found.append(mistake(f"there is no node {fault.node}: {counted}", ("faults", i, "node")))
            if fault.kind in ("ssd-slow", "ssd-full") and tiers.ssd is None:
                found.append(mistake("there is no SSD (cluster.tiers.ssd)", ("faults", i, "kind")))
            if fault.kind == "pool-lost" and tiers.pool is None:
                found.append(mistake("there is no shared pool (cluster.tiers.pool)", ("faults", i, "kind")))
            if fault.link == "nic" and tiers.pool is None and self.cluster.split is None:
                found.append(mistake("nothing goes over the NICs: there is neither a shared pool nor a split", ("faults", i, "link")))
            if fault.link == "host" and tiers.dram is None:
                found.append(mistake("nothing goes over the host links: there is no DRAM tier", ("faults", i, "link")))
        self.refuse(*found)
        return self

    def arms(self) -> list[tuple[str, Scenario]]:
        """(name, scenario without variants) of every variant, in their order; without variants the one arm is called `base`."""
        if not self.variants:
            return [(BASE, self)]
        from kvsim.scenario.loading import arms

        return arms(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values in the vocabulary of a scenario file, every default spelled out."""
        return self.model_dump(mode="json")

    def dump(self) -> str:
        """YAML that `load` reads back as this scenario."""
        return document.dump(self.to_dict())


def _fields(model: type[BaseModel], where: Where = ()) -> Iterator[tuple[Where, type[BaseModel] | Part]]:
    """Every model and every registered part in `model`, by path."""
    yield where, model
    for name, field in model.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _fields(kind, (*where, name))
        for part in _parts(field.annotation, *field.metadata):
            yield (*where, name), part


def _parts(*of: Any) -> Iterator[Part]:
    for thing in of:
        if isinstance(thing, Part):
            yield thing
        else:
            yield from _parts(*get_args(thing))


MODELS: Mapping[Where, type[BaseModel]] = {where: of for where, of in _fields(Scenario) if isinstance(of, type)}
PARTS: Mapping[Where, str] = {where: of.key for where, of in _fields(Scenario) if isinstance(of, Part)}


def known_keys(where: Where) -> list[str]:
    """The keys of the mapping at `where`, if it is one of the scenario's own."""
    model = MODELS.get(where)
    return list(model.model_fields) if model else []
