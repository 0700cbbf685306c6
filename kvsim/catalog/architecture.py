"""A model's architecture, read from its Hugging Face config.json: what sizes its KV cache, its weights and its work.

KV bytes a token and rank under tensor parallelism t (b bytes an element, L layers of the kind):
- MHA, GQA: 2 ceil(kv_heads / t) head_dim b L; a sliding window holds at most `window` tokens of it;
- MLA: (kv_lora_rank + qk_rope_head_dim) b L, the same on every rank;
- DSA (MLA with a sparse index): (kv_lora_rank b + 2 qk_rope_head_dim [+ 16 in fp8]) L + (index_head_dim + scales) a layer with an index;
- MSA: GQA + index_head_dim b a sparse layer; linear attention (KDA): a fixed state a request, shared by the ranks.

Source: the models' published configurations; formulas checked against pools that vLLM and SGLang report (docs/catalog.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvsim.errors import CatalogError, Problem, did_you_mean

Kind = Literal["gqa", "swa", "mla", "dsa", "msa", "linear"]
Family = Literal["dense", "moe_gqa", "mla_moe", "sparse_hybrid"]
DTYPE_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625}  # fp4: 4 bits and a one-byte scale for 16 weights
INDEX_SCALE_TOKENS = 128

SIZES = {"num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"}
ATTENTION = {
    "num_key_value_heads", "head_dim", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "index_head_dim", "index_n_heads", "index_topk", "index_full_layers", "indexer_types", "sliding_window", "use_sliding_window",
    "layer_types",
    "linear_attn_config", "sparse_attention_config", "max_window_layers", "attention_bias", "attention_dropout", "sliding_window_pattern",
}  # fmt: skip
UNREAD = ("attn", "attention", "window", "kv_", "qk_", "compress_ratio", "mamba", "ssm")  # a key like these must be known or refused


@dataclass(frozen=True, slots=True)
class Group:
    """Layers of one kind of attention. `limit`: tokens a query sees at most (window, top-k), 0: all; `index_*`: of its sparse index."""

    kind: Kind
    layers: int
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    latent: int = 0
    rope: int = 0
    limit: int = 0
    index_layers: int = 0
    index_heads: int = 0
    index_dim: int = 0

    def kv_bytes_per_token(self, b: float, tp: int) -> float:
        """Bytes a token takes on one rank while all of it is kept (0 for linear attention)."""
        index = self.index_layers * (
            self.index_dim * b if self.kind == "msa" else self.index_dim + 4 * math.ceil(self.index_dim / INDEX_SCALE_TOKENS)
        )
        if self.kind == "linear":
            return 0.0
        if self.kind == "mla":
            return self.latent * b * self.layers + self.rope * b * self.layers
        if self.kind == "dsa":
            return (self.latent * b + 2 * self.rope + (16 if b == 1 else 0)) * self.layers + index
        return math.ceil(self.kv_heads / tp) * (self.qk_dim + self.v_dim) * b * self.layers + (index if self.kind == "msa" else 0.0)

    def state_bytes(self, b: float, tp: int) -> float:
        """Bytes a request takes on one rank whatever its length: a full window, or the state of linear attention."""
        if self.kind == "swa":
            return self.limit * self.kv_bytes_per_token(b, tp)
        if self.kind == "linear":
            return self.layers * (self.heads * self.qk_dim * self.v_dim * 4 + 3 * 3 * self.heads * self.qk_dim * 2) / tp
        return 0.0


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of a model. Parameters: `dense` all that every token passes but embeddings and head, `expert` one routed expert of a layer."""

    family: Family
    layers: int
    hidden: int
    vocab: int
    groups: tuple[Group, ...]
    dense_parameters: int
    expert_parameters: int
    experts: int
    experts_per_token: int
    moe_layers: int
    expert_width: int
    max_context: int

    @property
    def parameters(self) -> int:
        """All of them, embeddings and head included."""
        return self.dense_parameters + self.experts * self.moe_layers * self.expert_parameters + 2 * self.vocab * self.hidden

    @property
    def active_parameters(self) -> int:
        """Those a token passes, the head included."""
        return self.dense_parameters + self.experts_per_token * self.moe_layers * self.expert_parameters + self.vocab * self.hidden

    def kv_bytes_per_token(self, kv_dtype: str, tp: int) -> float:
        """Bytes a further token takes on each rank, once windows are full."""
        b = DTYPE_BYTES[kv_dtype]
        return sum(g.kv_bytes_per_token(b, tp) for g in self.groups if g.kind != "swa")

    def state_bytes(self, kv_dtype: str, tp: int) -> float:
        """Bytes a request takes on each rank beside its tokens."""
        return sum(g.state_bytes(DTYPE_BYTES[kv_dtype], tp) for g in self.groups)

    @property
    def replicated(self) -> bool:
        """Whether every rank holds the same KV (MLA and its kin): then one copy serves all."""
        return all(g.kind in ("mla", "dsa", "linear") for g in self.groups)

    def weight_bytes(self, dtype: str, tp: int) -> float:
        """Bytes of weights on each rank: experts in `dtype`, the rest in it or in bf16 where it has 4 bits, embeddings and head in bf16."""
        rest = "bf16" if dtype == "fp4" else dtype
        experts = self.experts * self.moe_layers * self.expert_parameters * DTYPE_BYTES[dtype]
        return (experts + self.dense_parameters * DTYPE_BYTES[rest] + 2 * self.vocab * self.hidden * 2) / tp


def from_config(config: Mapping[str, Any], file: str = "") -> Architecture:
    """The architecture of a config.json. Raises `CatalogError` naming the field that is missing or not understood."""
    return _Reader(config.get("text_config") or config.get("llm_config") or config, file).architecture()


class _Reader:
    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        self.config, self.file = config, file

    def fail(self, field: str, what: str) -> CatalogError:
        return CatalogError(Problem(what, field, self.file))

    def number(self, *names: str, default: int | None = None) -> int:
        for name in names:
            value = self.config.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
            if value is not None:
                raise self.fail(name, f"must be a whole number, got {value!r}")
        if default is None:
            raise self.fail(names[0], f"the model configuration has no such field{did_you_mean(names[0], self.config)}")
        return default

    def architecture(self) -> Architecture:
        for key, value in self.config.items():
            speaks = any(mark in key for mark in UNREAD) and not key.startswith(("max_", "num_"))
            if speaks and key not in ATTENTION | SIZES and value not in (None, False, 0, "eager", "sdpa", "flash_attention_2"):
                raise self.fail(key, f"attention field that kvsim does not know{did_you_mean(key, ATTENTION)}")
        layers, hidden, vocab = (self.number(name) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
        groups = self.groups(layers)
        experts = self.number("n_routed_experts", "num_local_experts", "num_experts", default=0)
        per_token = self.number("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", default=0)
        if experts and not per_token:
            raise self.fail("num_experts_per_tok", "a mixture of experts needs it")
        dense_layers = min(self.number("first_k_dense_replace", default=0), layers) if experts else layers
        moe_layers = layers - dense_layers
        inner = self.number("moe_intermediate_size", "intermediate_size") if experts else 0
        width = self.number("routed_expert_hidden_size", default=hidden)
        dense_inner = self.number("dense_intermediate_size", "intermediate_size", default=inner)
        shared = self.number("n_shared_experts", "num_shared_experts", default=0)
        dense = sum(self.attention_parameters(g, hidden) for g in groups) + dense_layers * 3 * hidden * dense_inner
        dense += moe_layers * (shared * 3 * hidden * inner + experts * hidden)
        if width != hidden:
            dense += moe_layers * 2 * hidden * width
        kinds = {g.kind for g in groups}
        family: Family = "dense" if not experts else "moe_gqa"
        if kinds & {"dsa", "msa", "linear"}:
            family = "sparse_hybrid"
        elif "mla" in kinds:
            family = "mla_moe"
        return Architecture(
            family, layers, hidden, vocab, groups, dense, 3 * width * inner, experts, per_token, moe_layers, width,
            self.number("max_position_embeddings", default=131072),
        )  # fmt: skip

    def groups(self, layers: int) -> tuple[Group, ...]:
        heads = self.number("num_attention_heads")
        linear = self.config.get("linear_attn_config")
        if linear is not None:
            return self.hybrid(layers, heads, linear)
        if "kv_lora_rank" in self.config:
            return (self.latent(layers, heads),)
        dim = self.number("head_dim", default=self.number("hidden_size") // heads)
        kv = self.number("num_key_value_heads", default=heads)
        sparse = self.config.get("sparse_attention_config")
        if sparse is not None:
            return self.sparse(layers, heads, kv, dim, sparse)
        sliding = self.sliding_layers(layers)
        out = [Group("gqa", layers - sliding, heads, kv, dim, dim)] if sliding < layers else []
        if sliding:
            out.append(Group("swa", sliding, heads, kv, dim, dim, limit=self.number("sliding_window")))
        return tuple(out)

    def sliding_layers(self, layers: int) -> int:
        kinds = self.config.get("layer_types")
        if isinstance(kinds, Mapping):
            return int(kinds.get("sliding_attention", 0))
        if kinds:
            unknown = set(kinds) - {"full_attention", "sliding_attention"}
            if unknown:
                raise self.fail("layer_types", f"kvsim does not know {', '.join(sorted(map(repr, unknown)))}")
            return sum(kind == "sliding_attention" for kind in kinds)
        if self.config.get("sliding_window") and self.config.get("use_sliding_window", True):
            return layers
        return 0

    def latent(self, layers: int, heads: int) -> Group:
        nope, rope, value, rank = (self.number(n) for n in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
        if "index_topk" not in self.config:
            return Group("mla", layers, heads, heads, nope + rope, value, latent=rank, rope=rope)
        types = self.config.get("indexer_types")
        full = sum(kind == "full" for kind in types) if types else self.number("index_full_layers", default=layers)
        return Group(
            "dsa", layers, heads, heads, nope + rope, value, latent=rank, rope=rope, limit=self.number("index_topk"), index_layers=full,
            index_heads=self.number("index_n_heads"), index_dim=self.number("index_head_dim"),
        )  # fmt: skip

    def hybrid(self, layers: int, heads: int, linear: Mapping[str, Any]) -> tuple[Group, ...]:
        full = linear.get("full_attn_layers")
        n = full if isinstance(full, int) else len(full or ())
        dim = linear.get("head_dim")
        if not n or not isinstance(dim, int):
            raise self.fail("linear_attn_config", "needs full_attn_layers and head_dim")
        count = int(linear.get("num_heads", heads))
        return self.latent(n, heads), Group("linear", layers - n, count, count, dim, dim)

    def sparse(self, layers: int, heads: int, kv: int, dim: int, config: Mapping[str, Any]) -> tuple[Group, ...]:
        n, index_dim, topk = (config.get(k) for k in ("sparse_layers", "index_head_dim", "topk_tokens"))
        if not (isinstance(n, int) and isinstance(index_dim, int) and isinstance(topk, int)):
            raise self.fail("sparse_attention_config", "needs sparse_layers, index_head_dim and topk_tokens")
        group = Group(
            "msa", n, heads, kv, dim, dim, limit=topk, index_layers=n, index_heads=int(config.get("index_n_heads", kv)), index_dim=index_dim
        )
        return (group, Group("gqa", layers - n, heads, kv, dim, dim)) if n < layers else (group,)

    def attention_parameters(self, g: Group, hidden: int) -> int:
        if g.kind == "linear":
            return g.layers * 5 * hidden * g.heads * g.qk_dim  # query, key, value, output and output gate
        if g.kind not in ("mla", "dsa"):
            return g.layers * hidden * (2 * g.heads * g.qk_dim + 2 * g.kv_heads * g.qk_dim)
        q = self.number("q_lora_rank")
        nope = g.qk_dim - g.rope
        own = (
            hidden * q
            + q * g.heads * g.qk_dim
            + hidden * (g.latent + g.rope)
            + g.latent * g.heads * (nope + g.v_dim)
            + g.heads * g.v_dim * hidden
        )
        index = g.index_layers * (q * g.index_heads * g.index_dim + hidden * (g.index_dim + g.index_heads))
        return g.layers * own + index
