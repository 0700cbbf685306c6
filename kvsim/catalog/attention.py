"""Kinds of attention layers: what they keep of a token, how many parameters they have, and what attending costs.

A model is a tuple of groups, each so many layers of one kind. Bytes are those of one rank of `tp`; heads are divided by `tp` and
repeated where there are fewer than ranks; what has no heads (latents, index keys) is on every rank.

Sources: DeepSeek-V2 (arXiv 2405.04434) for multi-head latent attention, DeepSeek-V3.2 (arXiv 2512.02556) for the index that selects
tokens, the checkpoints' config.json for all dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import Protocol

from kvsim.catalog.dtypes import divided, dtype_bytes

FP32, BF16 = 4, 2


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters: those that tensor parallelism divides, and those that every rank holds."""

    sharded: int
    replicated: int = 0

    @property
    def total(self) -> int:
        """Of the whole model."""
        return self.sharded + self.replicated

    def rank(self, tp: int) -> float:
        """On one rank."""
        return self.sharded / tp + self.replicated

    def __add__(self, other: Parameters) -> Parameters:
        return Parameters(self.sharded + other.sharded, self.replicated + other.replicated)

    def times(self, n: int) -> Parameters:
        """Of `n` such layers."""
        return Parameters(n * self.sharded, n * self.replicated)


@dataclass(frozen=True, slots=True)
class Work:
    """What attending costs one rank, over all layers of a group. A pair is a query token and a token it may look at.

    A query looks at its last `limit` tokens (`window`) or at the `limit` best of all (selected by an index; not `window`).
    `pair_flops` counts a pair when keys and values are read as they are multiplied; `compressed_flops` when a compressed form is
    multiplied directly, `expand_flops` is what decompressing costs for a token that was cached (both equal `pair_flops`, 0 without
    compression). `index_flops` counts every pair, selected or not; `index_bytes` is read for every token of the context.
    `token_flops` counts a new token, `state_bytes` a request in each step, read and written.
    """

    limit: float = inf
    window: bool = True
    pair_flops: float = 0.0
    compressed_flops: float = 0.0
    expand_flops: float = 0.0
    kv_bytes: float = 0.0
    index_flops: float = 0.0
    index_bytes: float = 0.0
    token_flops: float = 0.0
    state_bytes: float = 0.0


class Group(Protocol):
    """Layers of one kind of attention."""

    @property
    def layers(self) -> int:
        """How many."""

    @property
    def heads(self) -> int:
        """What tensor parallelism divides."""

    def parameters(self, hidden: int) -> Parameters:
        """Of all its layers, in a model of width `hidden`."""

    def kv_bytes(self, dtype: str, tp: int) -> float:
        """Bytes that one more token of context takes on a rank, for good: what windows and states hold is not in it."""

    def state_bytes(self, dtype: str, tp: int, n_tokens: float = inf) -> float:
        """Bytes that a request takes on a rank beside those: windows, as far as `n_tokens` fill them, and fixed states."""

    def work(self, dtype: str, tp: int) -> tuple[Work, ...]:
        """What attending costs."""


@dataclass(frozen=True, slots=True)
class Gqa:
    """Grouped-query attention (multi-head: as many `kv_heads` as `heads`), over all tokens, a `window`, or `top_k` selected tokens.

    Selection is that of MiniMax-M3: `index_heads` short queries score one index key of `index_dim` a token.
    """

    layers: int
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    window: int | None = None
    top_k: int | None = None
    index_heads: int = 0
    index_dim: int = 0
    gated: bool = False

    def parameters(self, hidden: int) -> Parameters:
        """Queries (twice where a gate comes with them), keys, values, output, index."""
        queries = self.heads * self.qk_dim * (2 if self.gated else 1)
        one = hidden * (queries + self.kv_heads * (self.qk_dim + self.v_dim) + self.heads * self.v_dim)
        index = hidden * self.index_dim * (self.index_heads + 1) if self.index_dim else 0
        return Parameters(one, index).times(self.layers)

    def _token_bytes(self, dtype: str, tp: int) -> float:
        numbers = divided(self.kv_heads, tp) * (self.qk_dim + self.v_dim) + self.index_dim
        return self.layers * numbers * dtype_bytes(dtype)

    def kv_bytes(self, dtype: str, tp: int) -> float:
        """Keys, values and the index key; none where a window forgets."""
        return 0.0 if self.window else self._token_bytes(dtype, tp)

    def state_bytes(self, dtype: str, tp: int, n_tokens: float = inf) -> float:
        """The window."""
        return min(n_tokens, self.window) * self._token_bytes(dtype, tp) if self.window else 0.0

    def work(self, dtype: str, tp: int) -> tuple[Work, ...]:
        """Scores and weighted sum."""
        flops = 2.0 * (self.qk_dim + self.v_dim) * divided(self.heads, tp) * self.layers
        index = self.layers * self.index_dim * dtype_bytes(dtype)
        return (
            Work(
                limit=self.window or self.top_k or inf,
                window=self.top_k is None,
                pair_flops=flops,
                compressed_flops=flops,
                kv_bytes=self._token_bytes(dtype, tp) - index,
                index_flops=2.0 * self.index_heads * self.index_dim * self.layers,
                index_bytes=index,
            ),
        )


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention: a token is kept as one latent of `kv_rank` and one rotary key of `rope_dim`, on every rank.

    With `top_k` tokens are selected by an index kept in `index_layers` of the layers (the others use their neighbour's selection):
    index keys are fp8 with a scale for 128 numbers, and fp8 latents carry 16 bytes of scales and a bf16 rotary key.
    """

    layers: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    top_k: int | None = None
    index_layers: int = 0
    index_heads: int = 0
    index_dim: int = 0
    gated: bool = False

    def parameters(self, hidden: int) -> Parameters:
        """Down-projections are on every rank, up-projections and output are divided."""
        down = hidden * ((self.q_rank or 0) + self.kv_rank + self.rope_dim)
        queries = (self.q_rank or hidden) * self.heads * (self.nope_dim + self.rope_dim)
        up = self.kv_rank * self.heads * (self.nope_dim + self.v_dim)
        out = self.heads * self.v_dim * hidden * (2 if self.gated else 1)
        index = (self.q_rank or hidden) * self.index_heads * self.index_dim + hidden * (self.index_dim + self.index_heads)
        return Parameters(queries + up + out, down).times(self.layers) + Parameters(0, index).times(self.index_layers)

    def _latent_bytes(self, dtype: str) -> float:
        if self.top_k and dtype == "fp8":
            return self.kv_rank + 16 + self.rope_dim * BF16
        return (self.kv_rank + self.rope_dim) * dtype_bytes(dtype)

    def _index_bytes(self) -> float:
        return self.index_layers * (self.index_dim + 4 * ceil(self.index_dim / 128))

    def kv_bytes(self, dtype: str, tp: int) -> float:
        """The same for any `tp`."""
        return self.layers * self._latent_bytes(dtype) + self._index_bytes()

    def state_bytes(self, dtype: str, tp: int, n_tokens: float = inf) -> float:
        """Nothing."""
        return 0.0

    def work(self, dtype: str, tp: int) -> tuple[Work, ...]:
        """Either keys and values are decompressed and attended to head by head, or the latent itself is (decode)."""
        heads = divided(self.heads, tp) * self.layers
        return (
            Work(
                limit=self.top_k or inf,
                window=self.top_k is None,
                pair_flops=2.0 * (self.nope_dim + self.rope_dim + self.v_dim) * heads,
                compressed_flops=2.0 * (2 * self.kv_rank + self.rope_dim) * heads,
                expand_flops=2.0 * self.kv_rank * (self.nope_dim + self.v_dim) * heads,
                kv_bytes=self.layers * self._latent_bytes(dtype),
                index_flops=2.0 * self.index_heads * self.index_dim * self.index_layers,
                index_bytes=self._index_bytes(),
            ),
        )


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear attention (Gated DeltaNet, Kimi Delta Attention): one fp32 state of `key_dim` x `value_dim` a value head, and the last
    `conv` - 1 inputs of a short convolution in bf16. Nothing grows with the context; a cached prefix is a stored state."""

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int
    decay_rank: int | None = None  # of the low-rank decays a channel that Kimi Delta Attention has

    @property
    def heads(self) -> int:
        """Value heads."""
        return self.value_heads

    @property
    def _mixed(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def parameters(self, hidden: int) -> Parameters:
        """Queries, keys, values, output gate, output; write strengths and decays a head; convolution."""
        values = self.value_heads * self.value_dim
        one = hidden * (self._mixed + 2 * values + 2 * self.value_heads) + self.conv * self._mixed
        decay = self.decay_rank * (hidden + values) if self.decay_rank else 0
        return Parameters(one, decay).times(self.layers)

    def kv_bytes(self, dtype: str, tp: int) -> float:
        """Nothing."""
        return 0.0

    def state_bytes(self, dtype: str, tp: int, n_tokens: float = inf) -> float:
        """One state slot; its formats do not follow that of the KV cache."""
        return self.layers * (self.value_heads * self.key_dim * self.value_dim * FP32 + (self.conv - 1) * self._mixed * BF16) / tp

    def work(self, dtype: str, tp: int) -> tuple[Work, ...]:
        """Decay, write and read a state once a token."""
        state = divided(self.value_heads, tp) * self.key_dim * self.value_dim * self.layers
        return (Work(token_flops=6.0 * state, state_bytes=2 * self.state_bytes(dtype, tp)),)


@dataclass(frozen=True, slots=True)
class Compressed:
    """DeepSeek-V4's attention: a window of raw tokens and, with `ratio` > 0, one compressed entry for `ratio` tokens, kept on every rank.

    With `top_k` entries are selected by an fp4 index of 64 bytes an entry. Open groups of tokens wait in an fp32 buffer.
    """

    layers: int
    heads: int
    dim: int
    q_rank: int
    o_rank: int
    o_groups: int
    window: int
    ratio: int
    top_k: int | None = None
    index_heads: int = 0
    index_dim: int = 0

    def parameters(self, hidden: int) -> Parameters:
        """Low-rank queries and output, one key-value projection; compressor (of two overlapping groups where selected) and index."""
        down = hidden * (self.q_rank + self.dim)
        sharded = self.heads * self.dim * (self.q_rank + self.o_rank) + self.o_groups * self.o_rank * hidden
        index = self.q_rank * self.index_heads * self.index_dim + hidden * (self.index_dim + self.index_heads) if self.top_k else 0
        compressor = 2 * hidden * self.dim * (0 if not self.ratio else 2 if self.top_k else 1)
        return Parameters(sharded, down + compressor + index).times(self.layers)

    def kv_bytes(self, dtype: str, tp: int) -> float:
        """Compressed entries and their index."""
        if not self.ratio:
            return 0.0
        return self.layers * (self.dim * dtype_bytes(dtype) + (self.index_dim / 2 if self.top_k else 0)) / self.ratio

    def state_bytes(self, dtype: str, tp: int, n_tokens: float = inf) -> float:
        """The window and the open groups (twice as long where entries overlap, which is where they are selected)."""
        waiting = 2 * self.ratio * (2 if self.top_k else 1) * self.dim * FP32
        return self.layers * (min(n_tokens, self.window) * self.dim * dtype_bytes(dtype) + waiting)

    def work(self, dtype: str, tp: int) -> tuple[Work, ...]:
        """Window and entries; per raw token, an entry costs 1/`ratio`."""
        flops = 4.0 * self.dim * divided(self.heads, tp) * self.layers
        numbers = self.layers * self.dim * dtype_bytes(dtype)
        recent = Work(limit=self.window, pair_flops=flops, compressed_flops=flops, kv_bytes=numbers)
        if not self.ratio:
            return (recent,)
        far = Work(
            limit=self.top_k * self.ratio if self.top_k else inf,
            window=self.top_k is None,
            pair_flops=flops / self.ratio,
            compressed_flops=flops / self.ratio,
            kv_bytes=numbers / self.ratio,
            index_flops=2.0 * self.index_heads * self.index_dim * self.layers / self.ratio if self.top_k else 0.0,
            index_bytes=self.layers * self.index_dim / 2 / self.ratio if self.top_k else 0.0,
        )
        return recent, far
