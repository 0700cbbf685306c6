"""What serves, in the vocabulary of a scenario: nodes, engines, tiers, links, routers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import InitErrorDetails

from kvsim.scenario.auto import OrAuto
from kvsim.scenario.base import Auto, Count, Model
from kvsim.scenario.facts import Fact
from kvsim.scenario.mistakes import mistake
from kvsim.scenario.parts import Chosen, Part
from kvsim.scenario.quantities import Capacity, Seconds

LinkName = Annotated[str | dict[str, Any], OrAuto(Annotated[Any, Fact("link")])]
RouterChoice = Annotated[Chosen, Part("policy", "kvsim.router", "ROUTER")]
Share = Annotated[float, Field(gt=0, le=1)]


class Parallelism(Model):
    """GPUs of a node: `tp` of them shard every layer of an engine; `dp` engines (ranks) attend apart, each with caches of its own;
    `ep` spreads whole experts (1: they are sharded like the rest)."""

    tp: Count = 1
    dp: Count = 1
    ep: Count = 1

    @model_validator(mode="after")
    def _known(self) -> Parallelism:
        if self.ep not in (1, self.tp * self.dp):
            self.refuse(mistake(f"must be 1 or tp x dp ({self.tp * self.dp}), got {self.ep}", ("ep",)))
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
    """Host memory as the tier below HBM. Bytes count on the node; tokens and blocks count in each engine. `auto`: the hardware's link.

    `layout`: how the KV of a block lies in memory, and so in how many pieces it is copied; `copy`: by the copy engine (dma), by a kernel
    on the GPU, or as vLLM chooses. `layerwise`: a load overlaps with the layers it is not needed for yet.
    """

    capacity: Capacity
    eviction: Annotated[Chosen, Part("policy", "kvsim.cache.eviction", "EVICTION")] = Field(default="lru", validate_default=True)
    offload: Annotated[Chosen, Part("policy", "kvsim.cache.offload", "OFFLOAD")] = Field(default="vllm-native", validate_default=True)
    link: LinkName = "auto"
    layout: Literal["layer-wise", "layer-joint", "cross-layer"] = "cross-layer"
    copy_by: Literal["auto", "dma", "kernel"] = "auto"
    layerwise: bool = False

    @model_validator(mode="after")
    def _eviction_is_free(self) -> Dram:
        own = getattr(self.offload.parameters, "own_eviction", None)
        if own is not None and self.eviction.name != own:
            self.refuse(mistake(f"{self.offload.name} evicts by {own} and by nothing else", ("eviction",)))
        return self


class Ssd(Model):
    """Local NVMe, shared by the engines of a node; all figures are of the node. Below DRAM, or with GPUDirect Storage (`gds`) below HBM.

    `drives` of the link's rate each; `endurance`: drive writes a day they are rated for over five years.
    """

    capacity: Capacity
    drives: Count = 1
    link: LinkName = "auto"
    gds: bool = False
    endurance: Annotated[float, Field(gt=0)] | None = 1.0


class Pool(Model):
    """A store of KV that all nodes share, reached over their NICs. Below DRAM, or without DRAM below HBM. Figures are of the cluster.

    `replicas` of each block are kept; a block that was read stays for `lease`; above `high_water` of it `evict_share` of the capacity is
    freed.
    """

    capacity: Capacity
    link: LinkName = "auto"
    replicas: Count = 1
    lease: Seconds = 10.0
    high_water: Share = 0.9
    evict_share: Share = 0.05


class Tiers(Model):
    """Where KV blocks are kept."""

    hbm: Hbm = Hbm()
    dram: Dram | None = None
    ssd: Ssd | None = None
    pool: Pool | None = None

    @model_validator(mode="after")
    def _fit_together(self) -> Tiers:
        found: list[InitErrorDetails] = []
        if self.ssd is not None and self.dram is None and not self.ssd.gds:
            found.append(mistake("without DRAM an SSD is only reached by GPUDirect Storage: set gds: true, or give a dram tier", ("ssd",)))
        if self.ssd is not None and self.pool is not None and self.dram is None:
            found.append(mistake("without DRAM one of ssd and pool can be below HBM, not both", ("pool",)))
        for name in ("ssd", "pool"):
            if getattr(self, name) is not None and self.dram is not None and not getattr(self.dram.offload.parameters, "tiering", False):
                message = f"{self.dram.offload.name} has no tier below the host: use offload: vllm-native, or leave {name} out"
                found.append(mistake(message, ("dram", "offload")))
        self.refuse(*found)
        return self


class Split(Model):
    """Nodes that only prefill and nodes that only decode. `router` chooses the decode node (cluster.router: the prefill node).

    Prefix caches and the tiers below HBM are the prefill nodes'; `decode_prefix_cache`: HBM of decode nodes is one too.
    """

    prefill: Annotated[int, Field(ge=0)]
    decode: Annotated[int, Field(ge=0)]
    router: RouterChoice = Field(default="least-loaded", validate_default=True)
    decode_prefix_cache: bool = False
    link: LinkName = "auto"

    @model_validator(mode="after")
    def _both_ends(self) -> Split:
        found = [mistake(f"a split needs a {name} node", (name,)) for name in ("prefill", "decode") if getattr(self, name) < 1]
        self.refuse(*found)
        return self


Dtype = Literal["auto", "bf16", "fp8", "fp4"]


class Cluster(Model):
    """Nodes of GPUs and what they run: one engine a node, or one for each data-parallel rank."""

    nodes: Count = 1
    hardware: Annotated[str | dict[str, Any], Fact("hardware")]
    gpus_per_node: Count = 1
    model: Annotated[str | dict[str, Any], Fact("model", ".json")]
    weight_dtype: Dtype = "auto"
    kv_dtype: Dtype = "auto"
    gpu_memory_utilization: Share = 0.92
    parallelism: Parallelism = Parallelism()
    engine: Engine = Engine()
    tiers: Tiers = Tiers()
    split: Split | None = None
    router: RouterChoice = Field(default="session-hash", validate_default=True)
    step_time: Annotated[Chosen, Part("model", "kvsim.engine.step_time", "STEP_TIME")] = Field(default="roofline", validate_default=True)

    @model_validator(mode="after")
    def _adds_up(self) -> Cluster:
        p, found = self.parallelism, list[InitErrorDetails]()
        if p.tp * p.dp != self.gpus_per_node:
            what = "one engine takes a whole node" if p.dp == 1 else "tp x dp are the GPUs of a node"
            found.append(
                mistake(
                    f"must equal gpus_per_node ({self.gpus_per_node}), {what}; got {p.tp * p.dp}",
                    ("parallelism", "tp" if p.dp == 1 else "dp"),
                )
            )
        if self.split is not None and self.split.prefill + self.split.decode != self.nodes:
            message = f"{self.split.prefill} prefill + {self.split.decode} decode nodes are not the {self.nodes} nodes of the cluster"
            found.append(mistake(message, ("split",)))
        self.refuse(*found)
        self.refuse(*self._tiers_no_model_can_fill())
        return self

    def _tiers_no_model_can_fill(self) -> list[InitErrorDetails]:
        """Tiers that hold not even one block, and HBM that the GPU doesn't have."""
        from kvsim import catalog
        from kvsim.engine.build import block_bytes, deployment
        from kvsim.errors import KvsimError

        p = self.parallelism
        try:
            d = deployment(self.model, self.hardware, tp=p.tp, dp=p.dp, ep=p.ep, weight_dtype=self.weight_dtype, kv_dtype=self.kv_dtype)
            of_rank, of_node = block_bytes(d, self.engine.block_tokens)
        except KvsimError:
            return []  # told when the engine is built
        found: list[InitErrorDetails] = []
        for name, size in (("hbm", of_rank), ("dram", of_rank * self.gpus_per_node), ("ssd", of_node), ("pool", of_node)):
            tier = getattr(self.tiers, name)
            if tier is None or tier.capacity == "auto" or tier.capacity.unit != "bytes":
                continue
            amount = tier.capacity.amount
            if 0 < amount < size:
                message = f"holds not even one block of {self.engine.block_tokens} tokens, which takes {size:,.0f} bytes"
                found.append(mistake(message, ("tiers", name, "capacity")))
            if name == "hbm" and amount > catalog.hardware(self.hardware).hbm:
                found.append(mistake("is more than the GPU has", ("tiers", name, "capacity")))
        return found
