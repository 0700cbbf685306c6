"""A model's shape as far as it costs memory and time: parameters, weight bytes, KV bytes; made from a Hugging Face config.json.

Counted: embeddings, attention, feed-forward layers, experts, routers. Not counted: norms and biases (below 0.1%), vision towers,
multi-token-prediction layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.catalog.attention import Compressed, Gqa, Group, Linear, Mla, Parameters
from kvsim.catalog.dtypes import BYTES, divided, dtype_bytes
from kvsim.errors import CatalogError, did_you_mean

FAMILIES = ("dense", "moe_gqa", "mla_moe", "sparse_hybrid")


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Gated feed-forward layers: dense ones of `dense_width`, and mixtures of `experts` of `expert_width` that use `top_k` a token.

    `shared_width`: expert that every token uses. `latent`: width the routed experts work in, with a projection there and back
    (None: the model's own).
    """

    dense_layers: int
    dense_width: int
    moe_layers: int = 0
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    shared_width: int = 0
    latent: int | None = None

    def parameters(self, hidden: int) -> Parameters:
        """Of all that every token uses: dense layers, shared experts, latent projections, routers."""
        sharded = 3 * hidden * (self.dense_layers * self.dense_width + self.moe_layers * self.shared_width)
        replicated = self.moe_layers * hidden * (self.experts + 2 * (self.latent or 0))
        return Parameters(sharded, replicated)

    def expert_parameters(self, hidden: int) -> int:
        """Of one expert in one layer."""
        return 3 * (self.latent or hidden) * self.expert_width


@dataclass(frozen=True, slots=True)
class Weights:
    """Formats that weights are kept in: routed `experts`, and all other layers (`dense`). Embeddings and output head are bf16 always."""

    dense: str
    experts: str

    @classmethod
    def of(cls, text: str) -> Weights:
        """From `DENSE+EXPERTS`, or one format for both. Raises `CatalogError`."""
        dense, _, experts = text.partition("+")
        weights = cls(dense, experts or dense)
        for dtype in (weights.dense, weights.experts):
            if dtype not in BYTES:
                raise CatalogError(f"{dtype!r} is no type of weights{did_you_mean(dtype, BYTES)}")
        return weights

    def __str__(self) -> str:
        return self.dense if self.dense == self.experts else f"{self.dense}+{self.experts}"

    def asked_for(self, dtype: str, *, moe: bool) -> Weights:
        """As `dtype` asks for: `auto` or these themselves; `bf16` or `fp8` for all layers; `fp4` for routed experts.

        A model without experts takes `fp4` for all; experts that have 4 bits already stay as they are. Raises `CatalogError`.
        """
        if dtype in ("auto", str(self)):
            return self
        other = Weights.of(dtype)
        if not moe or "+" in dtype or dtype_bytes(dtype) >= 1:
            return other
        return self if dtype_bytes(self.experts) < 1 else Weights(self.dense, dtype)


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of a model. `tied`: the output head is the embedding."""

    model_type: str
    layers: int
    hidden: int
    vocab: int
    tied: bool
    max_context: int
    attention: tuple[Group, ...]
    feed_forward: FeedForward

    @property
    def is_moe(self) -> bool:
        """Whether it has routed experts."""
        return self.feed_forward.experts > 0

    @property
    def family(self) -> str:
        """Which of the `FAMILIES` of step-time efficiencies it belongs to."""
        if any(isinstance(g, Linear | Compressed) or (isinstance(g, Gqa | Mla) and g.top_k) for g in self.attention):
            return "sparse_hybrid"
        if not self.is_moe:
            return "dense"
        return "mla_moe" if any(isinstance(g, Mla) for g in self.attention) else "moe_gqa"

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding, and as many of the output head."""
        return self.vocab * self.hidden

    @property
    def dense_parameters(self) -> Parameters:
        """Of all layers without routed experts, embedding and head."""
        total = self.feed_forward.parameters(self.hidden)
        for group in self.attention:
            total += group.parameters(self.hidden)
        return total

    @property
    def expert_parameters(self) -> int:
        """Of all routed experts."""
        return self.feed_forward.moe_layers * self.feed_forward.experts * self.feed_forward.expert_parameters(self.hidden)

    @property
    def active_expert_parameters(self) -> int:
        """Of the routed experts that one token uses."""
        return self.feed_forward.moe_layers * self.feed_forward.top_k * self.feed_forward.expert_parameters(self.hidden)

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        return embeddings + self.dense_parameters.total + self.expert_parameters

    @property
    def active_parameters(self) -> int:
        """That a token is multiplied with: the embedding, which is only read, is not."""
        return self.embedding_parameters + self.dense_parameters.total + self.active_expert_parameters

    @property
    def replicated(self) -> bool:
        """Whether every rank of tensor parallelism keeps the same KV of the context: then one copy serves all."""
        return all(isinstance(group, Mla | Compressed | Linear) for group in self.attention)

    def check(self, tp: int, dp: int = 1, ep: int = 1) -> None:
        """Raise `CatalogError` where the model cannot be divided so. `ep`: ranks that whole experts are spread over; 1: all are sharded."""
        for name, n in (("tp", tp), ("dp", dp), ("ep", ep)):
            if n < 1:
                raise CatalogError(f"{name} must be at least 1, got {n}")
        if (tp * dp) % ep:
            raise CatalogError(f"ep ({ep}) must divide tp x dp ({tp} x {dp})")
        if ep > 1 and ep > self.feed_forward.experts:
            raise CatalogError(f"ep ({ep}) is more than the model's {self.feed_forward.experts} experts")
        for group in self.attention:
            if group.heads % tp:
                raise CatalogError(f"tp ({tp}) must divide the {group.heads} attention heads")

    def expert_share(self, tp: int, dp: int = 1, ep: int = 1) -> float:
        """Part of all routed experts' weights that is on the fullest rank."""
        experts = self.feed_forward.experts
        return divided(experts, ep) / experts / (tp * dp // ep) if experts else 0.0

    def weight_bytes(self, weights: Weights, tp: int, dp: int = 1, ep: int = 1) -> float:
        """Bytes of weights on the fullest rank. With `dp` attention is repeated, the experts are spread over all tp x dp ranks."""
        self.check(tp, dp, ep)
        embeddings = self.embedding_parameters * (1 if self.tied else 2) / tp * dtype_bytes("bf16")
        dense = self.dense_parameters.rank(tp) * dtype_bytes(weights.dense)
        return embeddings + dense + self.expert_parameters * self.expert_share(tp, dp, ep) * dtype_bytes(weights.experts)

    def kv_bytes_per_token(self, kv_dtype: str, tp: int = 1) -> float:
        """Bytes that one more token of context takes on each rank for good; `tp` times as many on the node."""
        return sum(group.kv_bytes(kv_dtype, tp) for group in self.attention)

    def state_bytes(self, kv_dtype: str, tp: int = 1) -> float:
        """Bytes that a request takes on each rank whatever its length: full windows, states of linear attention."""
        return sum(group.state_bytes(kv_dtype, tp) for group in self.attention)

    def kv_bytes(self, n_tokens: int, kv_dtype: str, tp: int = 1) -> float:
        """Bytes of a request of `n_tokens` on each rank; windows count for what is in them."""
        return sum(n_tokens * g.kv_bytes(kv_dtype, tp) + g.state_bytes(kv_dtype, tp, n_tokens) for g in self.attention)
