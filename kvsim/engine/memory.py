"""GPU memory left for KV blocks: utilisation times HBM, less weights, activations, per-request state and what the runtime keeps.

vLLM's rule (gpu_memory_utilization counts of the whole GPU); the terms it measures by a trial run are estimated here: activations as 32
bytes a token of the budget and hidden unit, 1.5 GiB for context, graphs and NCCL buffers. Against pools that engines report: Kimi-K3
on 8 B300 3.02M tokens for 3.25M, Qwen3-32B on 2 H100 (utilisation 0.95) 301k for 307k.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.catalog import Hardware, Model
from kvsim.errors import KvsimError
from kvsim.units import human

RUNTIME_BYTES = 1.5 * 2**30
ACTIVATION_BYTES = 32


@dataclass(frozen=True, slots=True)
class HbmBudget:
    """Bytes on one GPU, and the tokens the rest of them holds."""

    hbm: float
    utilisation: float
    weights: float
    activations: float
    state: float
    runtime: float
    bytes_per_token: float

    @property
    def pool(self) -> float:
        """Left for KV blocks."""
        return self.hbm * self.utilisation - self.weights - self.activations - self.state - self.runtime

    @property
    def tokens(self) -> int:
        """Tokens of KV cache in the engine: its ranks hold the same tokens, each its share of them."""
        return int(self.pool / self.bytes_per_token)

    def describe(self) -> str:
        """One line that adds up."""
        parts = (("weights", self.weights), ("activations", self.activations), ("request state", self.state), ("runtime", self.runtime))
        spent = ", ".join(f"{human(v, 'bytes')} {name}" for name, v in parts if v)
        whole, used, left = (human(v, "bytes") for v in (self.hbm, self.hbm * self.utilisation, max(self.pool, 0.0)))
        return f"{used} of {whole} a GPU less {spent}: {left} for KV"


def hbm_budget(
    model: Model,
    hardware: Hardware,
    *,
    tp: int,
    weight_dtype: str,
    kv_dtype: str,
    utilisation: float,
    max_num_seqs: int,
    max_num_batched_tokens: int,
) -> HbmBudget:
    """The budget of one GPU under tensor parallelism `tp`. Raises `KvsimError` where nothing is left for KV blocks."""
    a = model.architecture
    budget = HbmBudget(
        hbm=hardware.hbm,
        utilisation=utilisation,
        weights=a.weight_bytes(weight_dtype, tp),
        activations=ACTIVATION_BYTES * max_num_batched_tokens * a.hidden,
        state=a.state_bytes(kv_dtype, tp) * max_num_seqs,
        runtime=RUNTIME_BYTES,
        bytes_per_token=a.kv_bytes_per_token(kv_dtype, tp),
    )
    if budget.pool <= 0:
        raise KvsimError(f"cluster.model: {model.name} does not fit {tp} x {hardware.name} at {weight_dtype}: {budget.describe()}")
    return budget
