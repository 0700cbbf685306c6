"""GPU memory left for KV blocks: a share of HBM, less weights, activations and what the runtime keeps.

Law. pool = utilisation x HBM - weights - activations - runtime - reserve - states, all on the fullest rank. As in vLLM, `utilisation` is a
share of the whole HBM, and what is outside it is not used. vLLM measures activations in a trial run, which is estimated here as the
larger of its two parts:
- a forward pass of the token budget, in bf16: per token 8 x hidden, 3 x the width of a feed-forward layer on the rank, and for each
  routed copy its input or gated output and the product of both;
- the sampler over `max_num_seqs` rows of the vocabulary: 39 bytes each (fp32 logits, probabilities, sums, and the sort of top-p).
Runtime: 0.13 GiB of context, 0.42 GiB more for communicators of more than one rank. CUDA graphs are captured outside of the utilisation.
`states` are windows and states of linear attention of requests that are to be resident at once.

Not modelled: fragmentation, workspaces of attention kernels, expert-parallel exchange buffers (set `reserve` for those).
Source: 39 bytes, 8 x hidden, context and communicators from vLLM 0.11 memory profiles on H100 (docs/catalog.md compares them).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.catalog import Hardware, Model, Weights
from kvsim.errors import KvsimError

GIB = 2.0**30
BF16 = 2
SAMPLER_BYTES = 39
HIDDEN_COPIES, WIDTH_COPIES = 8, 3
CONTEXT_BYTES, COMMUNICATOR_BYTES = 0.13 * GIB, 0.42 * GIB


@dataclass(frozen=True, slots=True)
class HbmBudget:
    """Bytes on one GPU, and what of them is left; `bytes_per_token` on that GPU."""

    hbm: float
    utilisation: float
    weights: float
    activations: float
    runtime: float
    reserve: float
    states: float
    bytes_per_token: float

    @property
    def pool(self) -> float:
        """Left for KV blocks; negative where the model doesn't fit."""
        return self.hbm * self.utilisation - self.weights - self.activations - self.runtime - self.reserve - self.states

    @property
    def tokens(self) -> int:
        """Tokens of KV cache in the engine: its ranks hold the same tokens, each its share of them."""
        return int(self.pool / self.bytes_per_token) if self.bytes_per_token else 0

    def lines(self) -> list[str]:
        """Each term on a line, the sum last."""
        spent = {
            "weights": self.weights,
            "activations": self.activations,
            "runtime": self.runtime,
            "reserve": self.reserve,
            "states of requests": self.states,
        }
        return [
            f"{self.hbm * self.utilisation / GIB:.2f} GiB a GPU, {self.utilisation:.0%} of {self.hbm / GIB:.2f} GiB",
            *(f"less {value / GIB:.2f} GiB {name}" for name, value in spent.items() if value),
            f"leaves {self.pool / GIB:.2f} GiB for KV, {self.tokens:,} tokens of {self.bytes_per_token:,.0f} bytes",
        ]

    def describe(self) -> str:
        """The lines in one sentence."""
        return ", ".join(self.lines())


def hbm_budget(
    model: Model,
    hardware: Hardware,
    *,
    tp: int,
    dp: int = 1,
    ep: int = 1,
    weight_dtype: str = "auto",
    kv_dtype: str = "bf16",
    utilisation: float = 0.92,
    max_num_seqs: int = 1024,
    max_num_batched_tokens: int = 8192,
    reserve: float = 0.0,
    resident: int = 0,
) -> HbmBudget:
    """The budget of one GPU. `resident`: requests whose windows and states are set aside.

    Raises `KvsimError` where the model doesn't fit.
    """
    a = model.architecture
    weights = Weights.of(model.weights).asked_for(weight_dtype, moe=a.is_moe)
    budget = HbmBudget(
        hbm=hardware.hbm,
        utilisation=utilisation,
        weights=a.weight_bytes(weights, tp, dp, ep),
        activations=activation_bytes(model, tp=tp, dp=dp, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens),
        runtime=CONTEXT_BYTES + (COMMUNICATOR_BYTES if tp * dp > 1 else 0.0),
        reserve=reserve,
        states=resident * a.state_bytes(kv_dtype, tp),
        bytes_per_token=a.kv_bytes_per_token(kv_dtype, tp),
    )
    if budget.pool <= 0:
        spent = ", ".join(budget.lines()[:-1])
        raise KvsimError(
            f"model does not fit: weights {budget.weights / GIB:.1f} GiB/GPU of {hardware.hbm / GIB:.1f} GiB "
            f"({model.name} in {weights} on {tp * dp} x {hardware.name}; {spent}: {-budget.pool / GIB:.1f} GiB short)"
        )
    return budget


def activation_bytes(model: Model, *, tp: int, dp: int = 1, max_num_seqs: int, max_num_batched_tokens: int) -> float:
    """Peak of the trial run, see the module."""
    a, ff = model.architecture, model.architecture.feed_forward
    width = max(ff.dense_width, ff.shared_width) / tp
    numbers = HIDDEN_COPIES * a.hidden + WIDTH_COPIES * width
    if a.is_moe:
        inner = ff.expert_width / (tp * dp)
        numbers += ff.top_k * (max(2 * inner, ff.latent or a.hidden) + inner)
    return max(max_num_batched_tokens * BF16 * numbers, max_num_seqs * SAMPLER_BYTES * a.vocab)
