"""Hugging Face config.json -> `Architecture`, by the keys themselves; a model type needs code here only for what its keys leave out.

Nothing about attention is guessed: a key that must be there and a key that looks like attention, experts or layers and is not known
here are both refused by name. Keys of other matters (tokens, rotary angles, dropout, vision, quantisation) are passed over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvsim.catalog.architecture import Architecture, FeedForward
from kvsim.catalog.attention import Compressed, Gqa, Group, Linear, Mla
from kvsim.errors import CatalogError, Problem

EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts")
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts")
# The width of the one shared expert, where it is not that of the routed ones.
SHARED_WIDTH = ("shared_intermediate_size", "shared_expert_intermediate_size", "share_expert_dim")
WRAPPERS = ("text_config", "llm_config", "language_config")

_MATTERS = re.compile(
    r"attn|attention|head|window|_rank|lora|index|sparse|linear|conv_|ssm|mamba|compress|latent|layer_types|layer_freq|layer_pattern"
    r"|expert|moe|intermediate|chunk|hybrid|block|recurrent|state|key_value|kv_|_kv"
)
# Known and of no account here: initial values, routing rules, rotary embedding, regularisation, draft heads.
_PASSED = frozenset([
    "add_full_attention_sink_bias", "add_swa_attention_sink_bias", "attention_bias", "attention_chunk_size", "attention_dropout",
    "attention_k_eq_v", "attention_value_scale", "attn_implementation", "_attn_implementation", "attn_logit_softcapping",
    "attn_res_block_size", "attn_scale", "attn_temperature_tuning", "chunk_size_feed_forward", "enable_moe_block", "expert_dtype",
    "index_share_for_mtp_iteration", "index_skip_topk_offset", "index_topk_freq", "indexer_rope_interleave", "latent_moe_use_norm",
    "mamba_ssm_dtype", "max_window_layers", "activation_situ_linear_beta", "mla_use_nope", "moe_renormalize",
    "moe_router_activation_func", "moe_router_dtype", "moe_router_scaling_factor", "mtp_num_hidden_layers", "no_rope_layers",
    "nope_layer_interval", "num_expert_group", "num_hash_layers", "output_attentions", "output_hidden_states", "output_router_logits",
    "qk_head_dim", "router_aux_loss_coef", "sliding_window_size", "swa_rope_theta", "use_bidirectional_attention", "use_grouped_topk",
    "use_moe_router_bias", "use_sliding_window",
])  # fmt: skip


class _Config:
    """A mapping that knows which of its keys were asked for; `refuse` names file and key."""

    def __init__(self, values: Mapping[str, Any], file: str, prefix: str = "") -> None:
        self.values, self.file, self.prefix = values, file, prefix
        self.used: set[str] = set()

    def refuse(self, key: str, message: str) -> CatalogError:
        return CatalogError(Problem(message, self.prefix + key, self.file))

    def get(self, *names: str) -> Any:
        """The value under any of `names`, None where there is none; two that differ are refused."""
        self.used.update(names)
        found = {name: self.values[name] for name in names if self.values.get(name) is not None}
        if len(set(map(repr, found.values()))) > 1:
            raise self.refuse(" and ".join(found), "say different things")
        return next(iter(found.values()), None)

    def pass_over(self, *names: str) -> None:
        """Keys that are known and of no account here."""
        self.used.update(names)

    def number(self, *names: str, default: int | None = None, least: int = 0) -> int:
        """A whole number; without `default` it must be there."""
        value = self.get(*names)
        if value is None:
            if default is not None:
                return default
            others = f" (or {', '.join(names[1:])})" if names[1:] else ""
            raise self.refuse(names[0], f"is missing{others}: the model's shape cannot be told without it")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refuse(next(n for n in names if n in self.values), f"expected a whole number from {least} up, got {value!r}")
        return value

    def sequence(self, name: str, length: int | None = None) -> Sequence[Any] | None:
        """A list, of one item a layer where `length` is given."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or (length is not None and len(value) != length):
            expected = f"a list of {length} items, one a layer" if length is not None else "a list"
            raise self.refuse(name, f"expected {expected}, got {len(value) if isinstance(value, list) else value!r}")
        return value

    def within(self, name: str) -> _Config | None:
        """The mapping under `name`."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refuse(name, f"expected a mapping, got {value!r}")
        return _Config(value, self.file, f"{self.prefix}{name}.")

    def finish(self) -> None:
        """Refuse keys that were not asked for and that matter."""
        what = "is not known here and may change the model's shape"
        unknown = [k for k in self.values if k not in self.used and k not in _PASSED and _MATTERS.search(k)]
        if unknown := [k for k in unknown if self.values[k] not in (None, False, [], {})]:
            raise CatalogError(*(Problem(what, self.prefix + k, self.file) for k in unknown))


def architecture_from_config(config: Mapping[str, Any], file: str = "") -> Architecture:
    """The shape that `config` (a config.json as a mapping) describes. Raises `CatalogError` naming the key that is missing or unknown."""
    if not isinstance(config, Mapping):
        raise CatalogError(Problem(f"expected a model configuration, got {type(config).__name__}", file=file))
    wrapper = next((w for w in WRAPPERS if isinstance(config.get(w), Mapping)), None)
    c = _Config(config[wrapper] if wrapper else config, file, f"{wrapper}." if wrapper else "")
    layers = c.number("num_hidden_layers", least=1)
    hidden = c.number("hidden_size", least=1)
    tied = c.values.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    found = Architecture(
        model_type=str(c.get("model_type") or config.get("model_type") or "unknown"),
        layers=layers,
        hidden=hidden,
        vocab=c.number("vocab_size", least=1),
        tied=bool(tied),
        max_context=c.number("max_position_embeddings", least=1),
        attention=_attention(c, layers, hidden),
        feed_forward=_feed_forward(c, layers),
    )
    c.finish()
    if (counted := sum(group.layers for group in found.attention)) != layers:
        raise c.refuse("num_hidden_layers", f"is {layers}, but {counted} attention layers are described")
    return found


def _attention(c: _Config, layers: int, hidden: int) -> tuple[Group, ...]:
    for key in ("hybrid_override_pattern", "layers_block_type"):
        if c.get(key) is not None:
            raise c.refuse(key, "layers without attention or feed-forward (Mamba hybrids) are not supported")
    if c.get("block_configs") is not None:
        raise c.refuse("block_configs", "layers that differ in width are not supported")
    if c.get("compress_ratios") is not None:
        return _compressed(c, layers)
    if c.get("kv_lora_rank") is not None:
        return _latent(c, layers)
    return _grouped(c, layers, hidden)


def _latent(c: _Config, layers: int) -> tuple[Group, ...]:
    c.pass_over("head_dim", "num_key_value_heads")
    full, linear = layers, None
    if (k := c.within("linear_attn_config")) is not None:
        full, linear = _kimi_delta(k, layers)
    top_k = c.number("index_topk", default=0)
    mla = Mla(
        layers=full,
        heads=c.number("num_attention_heads", least=1),
        q_rank=c.number("q_lora_rank", default=0) or None,
        kv_rank=c.number("kv_lora_rank", least=1),
        nope_dim=c.number("qk_nope_head_dim", least=1),
        rope_dim=c.number("qk_rope_head_dim"),
        v_dim=c.number("v_head_dim", least=1),
        top_k=top_k or None,
        index_layers=_index_layers(c, layers) if top_k else 0,
        index_heads=c.number("index_n_heads", least=1) if top_k else 0,
        index_dim=c.number("index_head_dim", least=1) if top_k else 0,
        gated=bool(c.get("mla_use_output_gate")),
    )
    if (kinds := c.sequence("layer_types", layers)) and set(kinds) - {"full_attention", "deepseek_sparse_attention"}:
        raise c.refuse("layer_types", f"kinds that are not known beside a latent: {', '.join(sorted(set(map(str, kinds))))}")
    return (mla,) if linear is None else (mla, linear)


def _index_layers(c: _Config, layers: int) -> int:
    kinds = c.sequence("indexer_types", layers)
    if kinds is None:
        if (c.values.get("index_topk_freq") or 1) != 1:
            raise c.refuse("indexer_types", "is missing: index_topk_freq says that some layers share their index")
        return layers
    if set(kinds) - {"full", "shared"}:
        raise c.refuse("indexer_types", "expected 'full' or 'shared' for each layer")
    return kinds.count("full")


def _kimi_delta(k: _Config, layers: int) -> tuple[int, Linear]:
    full, delta = k.sequence("full_attn_layers") or [], k.sequence("kda_layers") or []
    if sorted([*full, *delta]) != list(range(1, layers + 1)):
        raise k.refuse("kda_layers", f"with full_attn_layers must name each of the layers 1 to {layers} once")
    heads, dim = k.number("num_heads", least=1), k.number("head_dim", least=1)
    k.pass_over("gate_lower_bound", "use_full_rank_gate")
    conv = k.number("short_conv_kernel_size", least=1)
    k.finish()
    return len(full), Linear(len(delta), heads, heads, dim, dim, conv, decay_rank=dim)


def _compressed(c: _Config, layers: int) -> tuple[Group, ...]:
    c.pass_over("num_key_value_heads", "qk_rope_head_dim", "compress_rope_theta")
    ratios = (c.sequence("compress_ratios") or [])[:layers]  # one more for each draft layer
    if len(ratios) != layers or not all(isinstance(r, int) and r >= 0 for r in ratios):
        raise c.refuse("compress_ratios", f"expected a whole number for each of {layers} layers")
    selecting = min((r for r in ratios if r), default=0)  # the finest entries are selected, coarser ones are all read
    shape = {
        "heads": c.number("num_attention_heads", least=1),
        "dim": c.number("head_dim", least=1),
        "q_rank": c.number("q_lora_rank", least=1),
        "o_rank": c.number("o_lora_rank", least=1),
        "o_groups": c.number("o_groups", least=1),
        "window": c.number("sliding_window", least=1),
    }
    index = {
        "top_k": c.number("index_topk", least=1),
        "index_heads": c.number("index_n_heads", least=1),
        "index_dim": c.number("index_head_dim", least=1),
    }
    return tuple(Compressed(n, ratio=r, **shape, **(index if r and r == selecting else {})) for r, n in sorted(Counter(ratios).items()))


def _grouped(c: _Config, layers: int, hidden: int) -> tuple[Group, ...]:
    heads = c.number("num_attention_heads", least=1)
    dim = c.number("head_dim", default=0) or hidden // heads
    plain = Gqa(
        layers=layers,
        heads=heads,
        kv_heads=c.number("num_key_value_heads", least=1),
        qk_dim=dim,
        v_dim=c.number("v_head_dim", default=dim),
        gated=bool(c.get("attn_output_gate", "attention_output_gate")) or c.values.get("model_type") == "qwen3_next",
    )
    if c.get("linear_num_value_heads") is not None:
        return _gated_delta(c, plain, layers)
    if (s := c.within("sparse_attention_config")) is not None:
        return _selected(s, plain, layers)
    slides = _sliding_layers(c, layers)
    groups = []
    if len(slides) < layers:
        full = replace(plain, layers=layers - len(slides))
        if (dim := c.number("global_head_dim", default=0)) or c.get("num_global_key_value_heads"):
            full = replace(full, kv_heads=c.number("num_global_key_value_heads", default=plain.kv_heads), qk_dim=dim, v_dim=dim)
        groups.append(full)
    if slides:
        window = c.number("sliding_window", "sliding_window_size") if c.get("sliding_window") else c.number("attention_chunk_size", least=1)
        dim = c.number("swa_head_dim", default=plain.qk_dim)
        v_dim = c.number("swa_v_head_dim", default=plain.v_dim)
        heads = c.number("swa_num_attention_heads", default=heads)
        kv_heads = c.number("swa_num_key_value_heads", default=plain.kv_heads)
        groups.append(replace(plain, layers=len(slides), window=window, heads=heads, kv_heads=kv_heads, qk_dim=dim, v_dim=v_dim))
    return tuple(groups)


def _gated_delta(c: _Config, plain: Gqa, layers: int) -> tuple[Group, ...]:
    kinds = c.sequence("layer_types", layers)
    interval = c.number("full_attention_interval", default=0)
    if kinds is None:
        if not interval:
            raise c.refuse("layer_types", "is missing (or full_attention_interval): which layers are linear?")
        kinds = ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(layers)]
    if set(kinds) - {"full_attention", "linear_attention"}:
        raise c.refuse("layer_types", "expected 'full_attention' or 'linear_attention' for each layer")
    full = kinds.count("full_attention")
    linear = Linear(
        layers=layers - full,
        key_heads=c.number("linear_num_key_heads", least=1),
        value_heads=c.number("linear_num_value_heads", least=1),
        key_dim=c.number("linear_key_head_dim", least=1),
        value_dim=c.number("linear_value_head_dim", least=1),
        conv=c.number("linear_conv_kernel_dim", least=1),
    )
    return (replace(plain, layers=full), linear) if full else (linear,)


def _selected(s: _Config, plain: Gqa, layers: int) -> tuple[Group, ...]:
    used = s.sequence("sparse_attention_freq", layers)
    if used is None or not s.get("use_sparse_attention"):
        raise s.refuse("sparse_attention_freq", "with use_sparse_attention must say for each layer whether it selects")
    s.pass_over("sparse_init_block", "sparse_local_block", "sparse_disable_index_value", "sparse_score_type")
    selecting = replace(
        plain,
        layers=sum(used),
        top_k=s.number("sparse_topk_blocks", least=1) * s.number("sparse_block_size", least=1),
        index_heads=s.number("sparse_num_index_heads", least=1),
        index_dim=s.number("sparse_index_dim", least=1),
    )
    s.finish()
    return (replace(plain, layers=layers - sum(used)), selecting) if sum(used) < layers else (selecting,)


def _sliding_layers(c: _Config, layers: int) -> list[int]:
    """The layers with a window."""
    if (kinds := c.sequence("layer_types", layers)) is not None:
        if set(kinds) - {"full_attention", "sliding_attention", "chunked_attention"}:
            raise c.refuse("layer_types", f"unknown kinds of attention: {', '.join(sorted(set(map(str, kinds))))}")
        return [i for i, kind in enumerate(kinds) if kind != "full_attention"]
    if (pattern := c.sequence("hybrid_layer_pattern", layers)) is not None:
        return [i for i, slides in enumerate(pattern) if slides]
    if (kinds := c.sequence("attn_type_list", layers)) is not None and set(kinds) != {1}:
        raise c.refuse("attn_type_list", "expected 1 (attention over all tokens) for each layer")
    every = c.number("sliding_window_pattern", default=0)
    if every and c.get("sliding_window"):
        return [i for i in range(layers) if (i + 1) % every]
    model_type = c.values.get("model_type", "")
    if model_type.startswith("llama4") and c.get("attention_chunk_size"):
        return [i for i in range(layers) if (i + 1) % 4]  # three chunked layers, one without position embedding over all tokens
    if c.get("sliding_window") is None or c.values.get("use_sliding_window") is False:
        return []
    if model_type == "mistral":
        return list(range(layers))
    raise c.refuse("layer_types", "is missing: sliding_window is set, but not which layers it holds for")


def _feed_forward(c: _Config, layers: int) -> FeedForward:
    experts = c.number(*EXPERTS, default=0)
    width = c.number("intermediate_size", default=0)
    if not experts:
        c.pass_over(*EXPERTS_PER_TOKEN, *SHARED_EXPERTS, *SHARED_WIDTH, "moe_intermediate_size", "moe_layer_freq", "mlp_only_layers")
        if not width:
            c.number("intermediate_size", least=1)
        return FeedForward(layers, width)
    expert_width = c.number("moe_intermediate_size", default=width)
    if not expert_width:
        c.number("moe_intermediate_size", least=1)
    moe = layers if c.values.get("enable_moe_block") else _moe_layers(c, layers)
    dense_layers = layers if c.values.get("enable_moe_block") else layers - moe
    dense_width = c.number("dense_intermediate_size", "intermediate_size_mlp", default=width)
    if dense_layers and not dense_width:
        c.number("intermediate_size", least=1)
    return FeedForward(
        dense_layers=dense_layers,
        dense_width=dense_width if dense_layers else 0,
        moe_layers=moe,
        experts=experts,
        top_k=c.number(*EXPERTS_PER_TOKEN, least=1),
        expert_width=expert_width,
        shared_width=_shared_width(c, expert_width),
        latent=c.number("routed_expert_hidden_size", default=0) or None,
    )


def _shared_width(c: _Config, expert_width: int) -> int:
    n = c.get(*SHARED_EXPERTS)
    width = c.get(*SHARED_WIDTH)
    if n is None:
        implied = str(c.values.get("model_type", "")).startswith("llama4")
        return int(width or (expert_width if implied else 0))
    return int(n) * int(width or expert_width)


def _moe_layers(c: _Config, layers: int) -> int:
    """How many layers have experts, by whichever key says so; keys that say different things are refused."""
    said: dict[str, int] = {}
    if (kinds := c.sequence("mlp_layer_types", layers)) is not None:
        said["mlp_layer_types"] = layers - kinds.count("dense")
    freq = c.get("moe_layer_freq")
    if isinstance(freq, list):
        said["moe_layer_freq"] = sum(c.sequence("moe_layer_freq", layers) or [])
    elif freq not in (None, 1):
        raise c.refuse("moe_layer_freq", f"expected 1 or a list of {layers} items, got {freq!r}")
    if (first := c.get("first_k_dense_replace")) is not None:
        said["first_k_dense_replace"] = layers - int(first)
    if (step := c.get("decoder_sparse_step")) is not None or c.get("mlp_only_layers") is not None:
        only = set(c.sequence("mlp_only_layers") or [])
        said["decoder_sparse_step"] = sum(i not in only and (i + 1) % (step or 1) == 0 for i in range(layers))
    if (step := c.get("interleave_moe_layer_step")) is not None:
        said["interleave_moe_layer_step"] = layers // step
    if len(set(said.values())) > 1:
        raise c.refuse(" and ".join(said), "say different things of which layers have experts")
    return next(iter(said.values()), layers)
