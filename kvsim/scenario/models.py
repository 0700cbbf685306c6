"""The vocabulary of a scenario as frozen models: what may be said, what it defaults to, and what cannot be meant together."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainSerializer, PlainValidator, ValidationError, WithJsonSchema, model_validator
from pydantic_core import InitErrorDetails

from kvsim.scenario.auto import OrAuto
from kvsim.scenario.facts import Fact
from kvsim.scenario.mistakes import mistake, show
from kvsim.scenario.parts import STRICT, Chosen, Part
from kvsim.scenario.quantities import Capacity, PositiveSeconds, Seconds

Count = Annotated[int, Field(ge=1)]
Auto = Literal["auto"]
MISSING_TRACE = (
    "this scenario replays a trace that does not come with it: name one with --set workload.trace=PATH, "
    "or describe a synthetic load under workload.synthetic"
)


class Model(BaseModel):
    """Frozen, no unknown keys, no conversions between types."""

    model_config = STRICT

    def refuse(self, *found: InitErrorDetails) -> None:
        """Raise the mistakes found, if any."""
        if found:
            raise ValidationError.from_exception_data(type(self).__name__, list(found))


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
    """Who sends: `concurrency` live sessions at a time, each point of the list a run of its own.

    `duration` is the measured window, after `warmup`; null runs until `max_sessions` (null: every session of the workload once) are done.
    """

    mode: Literal["closed-loop"] = "closed-loop"
    concurrency: Concurrency
    duration: PositiveSeconds | None = None
    warmup: Seconds = 0.0
    max_sessions: Count | None = None


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


class Parallelism(Model):
    """GPUs of one engine: `tp` shards every layer; `ep` spreads the experts (1: they are sharded like the rest)."""

    tp: Count = 1
    dp: Count = 1
    ep: Count = 1

    @model_validator(mode="after")
    def _known(self) -> Parallelism:
        if self.dp != 1:
            self.refuse(mistake("data-parallel attention is not yet supported, use 1", ("dp",)))
        if self.ep not in (1, self.tp):
            self.refuse(mistake(f"must be 1 or tp ({self.tp}), got {self.ep}", ("ep",)))
        return self


class Engine(Model):
    """The serving engine and the limits of its scheduler; `auto` is the default of vLLM's API server on this GPU."""

    kind: Literal["vllm"] = "vllm"
    block_tokens: Count = 16
    max_num_seqs: Annotated[int | Auto, OrAuto(Count)] = "auto"
    max_num_batched_tokens: Annotated[int | Auto, OrAuto(Count)] = "auto"
    long_prefill_token_threshold: Annotated[int, Field(ge=0)] = 0


class Hbm(Model):
    """The KV pool in GPU memory. Bytes count on each GPU; tokens and blocks count in the engine. `auto`: what weights leave free."""

    capacity: Annotated[Capacity | Auto, OrAuto(Capacity)] = "auto"
    eviction: Literal["lru"] = "lru"


class Dram(Model):
    """Host memory as the tier below HBM. Bytes count on the node; tokens and blocks count in the engine. `auto`: the hardware's link."""

    capacity: Capacity
    eviction: Annotated[Chosen, Part("policy", "kvsim.cache.eviction", "EVICTION")] = Field(default="lru", validate_default=True)
    offload: Annotated[Chosen, Part("policy", "kvsim.cache.offload", "OFFLOAD")] = Field(default="vllm-native", validate_default=True)
    link: Annotated[str | dict[str, Any], OrAuto(Annotated[Any, Fact("link")])] = "auto"

    @model_validator(mode="after")
    def _eviction_is_free(self) -> Dram:
        own = getattr(self.offload.parameters, "own_eviction", None)
        if own is not None and self.eviction.name != own:
            self.refuse(mistake(f"{self.offload.name} evicts by {own} and by nothing else", ("eviction",)))
        return self


def _not_yet(value: Any) -> None:
    if value is not None:
        raise ValueError("a tier on SSD is not yet supported, use null")


class Tiers(Model):
    """Where KV blocks are kept."""

    hbm: Hbm = Hbm()
    dram: Dram | None = None
    ssd: Annotated[None, PlainValidator(_not_yet), WithJsonSchema({"type": "null"})] = None


class Router(Model):
    """Which node serves a session: `session-hash` goes by a hash of its name."""

    policy: Literal["session-hash"] = "session-hash"


Dtype = Literal["auto", "bf16", "fp8", "fp4"]


class Cluster(Model):
    """Nodes of GPUs, one engine a node, and what it runs."""

    nodes: Count = 1
    hardware: Annotated[str | dict[str, Any], Fact("hardware")]
    gpus_per_node: Count = 1
    model: Annotated[str | dict[str, Any], Fact("model", ".json")]
    weight_dtype: Dtype = "auto"
    kv_dtype: Dtype = "auto"
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.92
    parallelism: Parallelism = Parallelism()
    engine: Engine = Engine()
    tiers: Tiers = Tiers()
    router: Router = Router()
    step_time: Annotated[Chosen, Part("model", "kvsim.engine.step_time", "STEP_TIME")] = Field(default="roofline", validate_default=True)

    @model_validator(mode="after")
    def _gpus_are_used(self) -> Cluster:
        if self.parallelism.tp != self.gpus_per_node:
            message = f"must equal gpus_per_node ({self.gpus_per_node}), one engine takes a whole node; got {self.parallelism.tp}"
            self.refuse(mistake(message, ("parallelism", "tp")))
        return self
