"""From what a scenario says of a cluster to the engines that make it up: sizes, times and parts, in plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim import catalog
from kvsim.cache.offload import Connector, HostTier
from kvsim.engine.memory import hbm_budget
from kvsim.engine.step_time import Deployment, StepTime
from kvsim.engine.vllm import Chains, EngineConfig, VllmEngine
from kvsim.errors import ScenarioError

if TYPE_CHECKING:
    from kvsim.workload.workload import Workload

LARGE_BYTES, MIDDLE_BYTES = 160e9, 70 * 2**30
NULL_BLOCK = 1


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The host tier: bytes it may use in the engine's blocks, its policies, and the link of each GPU."""

    amount: float
    unit: str  # bytes | tokens | blocks
    offload: Any  # a registered offload preset
    eviction: str
    bandwidth: float
    latency_s: float
    per_fragment_s: float


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine: what it runs on, its scheduler's limits (None: vLLM's defaults for the GPU), its tiers, its step time (registered)."""

    deployment: Deployment
    block_tokens: int
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    long_prefill_token_threshold: int
    utilisation: float
    hbm_amount: float | None  # None: what the weights leave
    hbm_unit: str
    host: HostSpec | None
    step_time: Any


@dataclass(frozen=True, slots=True)
class Built:
    """An engine spec worked out: block bytes on one GPU, usable blocks of HBM and host, and the parts to make engines of."""

    spec: EngineSpec
    max_num_seqs: int
    max_num_batched_tokens: int
    block_bytes: float
    hbm_blocks: int
    host_blocks: int
    memory: str
    step_time: StepTime

    def engine(self, workload: Workload, *, window_start_s: float) -> VllmEngine:
        """A fresh engine over the ids of `workload`."""
        block = workload.block_tokens
        scale = block / self.spec.block_tokens
        return VllmEngine(
            EngineConfig(
                block_tokens=block,
                hbm_blocks=int(self.hbm_blocks / scale) + NULL_BLOCK,
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                long_prefill_token_threshold=self.spec.long_prefill_token_threshold,
                window_start_s=window_start_s,
            ),
            Chains(workload.run_offset, workload.run_start, workload.run_length, workload.unique_ids),
            self.step_time,
            self._connector(scale),
            ids=workload.unique_ids,
            longest_chain=int(workload.chain_blocks.max(initial=0)),
        )

    def _connector(self, scale: float) -> Connector:
        host = self.spec.host
        blocks = int(self.host_blocks / scale)
        if host is None or blocks == 0:
            return Connector(HostTier(0))
        seconds = (self.block_bytes / host.bandwidth + host.per_fragment_s) * scale
        connector: Connector = host.offload.connector(HostTier(blocks + NULL_BLOCK, host.eviction, host.latency_s, seconds, seconds))
        return connector


def work_out(spec: EngineSpec) -> Built:
    """Capacities and times of `spec`. Raises `KvsimError` where the model doesn't fit the GPUs."""
    d = spec.deployment
    seqs, batched = vllm_limits(d.hardware)
    seqs, batched = spec.max_num_seqs or seqs, spec.max_num_batched_tokens or batched
    per_token = d.model.architecture.kv_bytes_per_token(d.kv_dtype, d.tp)
    block_bytes = per_token * spec.block_tokens
    if spec.hbm_amount is None:
        budget = hbm_budget(
            d.model,
            d.hardware,
            tp=d.tp,
            weight_dtype=d.weight_dtype,
            kv_dtype=d.kv_dtype,
            utilisation=spec.utilisation,
            max_num_seqs=seqs,
            max_num_batched_tokens=batched,
        )
        hbm_blocks, memory = int(budget.pool / block_bytes), budget.describe()
    else:
        hbm_blocks, memory = _blocks(spec.hbm_amount, spec.hbm_unit, block_bytes, spec.block_tokens), "given"
    if hbm_blocks < 1:
        raise ScenarioError("cluster.tiers.hbm.capacity: holds not even one block")
    host_blocks = 0
    if spec.host is not None:
        # Bytes are the node's: each rank keeps its own copy of what it holds, unless the connector keeps one for ranks that hold the same.
        copies = 1 if d.model.architecture.replicated and getattr(spec.host.offload, "one_copy", False) else d.tp
        host_blocks = _blocks(spec.host.amount, spec.host.unit, block_bytes * copies, spec.block_tokens)
    return Built(spec, seqs, batched, block_bytes, hbm_blocks, host_blocks, memory, spec.step_time.build(d))


def vllm_limits(hardware: catalog.Hardware) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) that vLLM's API server takes by itself on a GPU (vLLM 0.33.0, `engine/arg_utils.py`)."""
    if hardware.hbm >= LARGE_BYTES:
        return 1024, 16384
    if hardware.hbm >= MIDDLE_BYTES and not hardware.name.startswith("a100"):
        return 1024, 8192
    return 256, 2048


def _blocks(amount: float, unit: str, block_bytes: float, block_tokens: int) -> int:
    return int(amount / {"bytes": block_bytes, "tokens": block_tokens, "blocks": 1}[unit])


def deployment(model: Any, hardware: Any, *, tp: int, ep: int, weight_dtype: str, kv_dtype: str) -> Deployment:
    """What an engine runs on; `auto` types are the model's own for weights, and bf16 for KV."""
    found = catalog.model(model)
    return Deployment(
        found,
        catalog.hardware(hardware),
        tp,
        ep,
        found.weights if weight_dtype == "auto" else weight_dtype,
        "bf16" if kv_dtype == "auto" else kv_dtype,
    )
