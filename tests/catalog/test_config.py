"""From config.json to architecture: kinds of layers, aliases, formats of weights, and what must be refused."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.catalog.architecture import FeedForward
from kvsim.catalog.attention import Compressed, Gqa, Linear, Mla
from kvsim.catalog.config import architecture_from_config
from kvsim.catalog.quantisation import weights_of_config
from kvsim.errors import CatalogError

PLAIN: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 1024,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4}
KDA = {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "num_heads": 8, "head_dim": 8, "short_conv_kernel_size": 4}
SPARSE = {
    "use_sparse_attention": True,
    "sparse_attention_freq": [0, 1, 1, 1],
    "sparse_topk_blocks": 2,
    "sparse_block_size": 16,
    "sparse_num_index_heads": 2,
    "sparse_index_dim": 8,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
COMPRESSED = {
    "compress_ratios": [0, 4, 128, 4, 0],
    "head_dim": 16,
    "q_lora_rank": 8,
    "o_lora_rank": 8,
    "o_groups": 2,
    "sliding_window": 32,
    "index_topk": 64,
    "index_n_heads": 2,
    "index_head_dim": 8,
}
GQA = Gqa(layers=4, heads=8, kv_heads=2, qk_dim=8, v_dim=8)
MLA = Mla(layers=4, heads=8, q_rank=24, kv_rank=16, nope_dim=4, rope_dim=2, v_dim=4)


def slide(n: int, window: int) -> tuple[Gqa, ...]:
    full = (Gqa(4 - n, 8, 2, 8, 8),) if n < 4 else ()
    return (*full, Gqa(n, 8, 2, 8, 8, window=window))


@pytest.mark.parametrize(
    ("change", "groups"),
    [
        ({}, (GQA,)),
        ({"head_dim": 16}, (Gqa(4, 8, 2, 16, 16),)),
        ({"head_dim": 16, "v_head_dim": 12}, (Gqa(4, 8, 2, 16, 12),)),
        ({"attn_output_gate": True}, (Gqa(4, 8, 2, 8, 8, gated=True),)),
        ({"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"] * 2}, slide(2, 16)),
        ({"sliding_window": 16, "sliding_window_pattern": 4}, slide(3, 16)),
        ({"sliding_window": 16, "hybrid_layer_pattern": [0, 1, 1, 0], "swa_num_key_value_heads": 2}, slide(2, 16)),
        ({"sliding_window": 16, "use_sliding_window": False}, (GQA,)),
        ({"sliding_window": 16, "model_type": "mistral"}, slide(4, 16)),
        ({"sliding_window": None}, (GQA,)),
        ({"attention_chunk_size": 16, "model_type": "llama4_text"}, slide(3, 16)),
        ({"attn_type_list": [1, 1, 1, 1]}, (GQA,)),
        (LATENT, (MLA,)),
        (
            {**LATENT, "index_topk": 64, "index_n_heads": 2, "index_head_dim": 8},
            (Mla(4, 8, 24, 16, 4, 2, 4, top_k=64, index_layers=4, index_heads=2, index_dim=8),),
        ),
        (
            {**LATENT, "index_topk": 64, "index_n_heads": 2, "index_head_dim": 8, "indexer_types": ["full", "shared", "full", "shared"]},
            (Mla(4, 8, 24, 16, 4, 2, 4, top_k=64, index_layers=2, index_heads=2, index_dim=8),),
        ),
        (
            {**LATENT, "linear_attn_config": KDA, "mla_use_output_gate": True},
            (Mla(1, 8, 24, 16, 4, 2, 4, gated=True), Linear(3, 8, 8, 8, 8, 4, decay_rank=8)),
        ),
        ({"sparse_attention_config": SPARSE}, (Gqa(1, 8, 2, 8, 8), Gqa(3, 8, 2, 8, 8, top_k=32, index_heads=2, index_dim=8))),
        ({**DELTA, "full_attention_interval": 4}, (Gqa(1, 8, 2, 8, 8), Linear(3, 2, 4, 8, 8, 4))),
        ({**DELTA, "layer_types": ["linear_attention", "full_attention"] * 2}, (Gqa(2, 8, 2, 8, 8), Linear(2, 2, 4, 8, 8, 4))),
        (
            COMPRESSED,
            (
                Compressed(1, 8, 16, 8, 8, 2, 32, 0),
                Compressed(2, 8, 16, 8, 8, 2, 32, 4, top_k=64, index_heads=2, index_dim=8),
                Compressed(1, 8, 16, 8, 8, 2, 32, 128),
            ),
        ),
    ],
)
def test_kinds_of_attention(change: dict[str, Any], groups: tuple[Any, ...]) -> None:
    assert architecture_from_config({**PLAIN, **change}).attention == groups


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, FeedForward(4, 128)),
        (EXPERTS, FeedForward(0, 0, 4, 8, 2, 32)),
        ({"num_local_experts": 8, "experts_per_token": 2}, FeedForward(0, 0, 4, 8, 2, 128)),
        ({**EXPERTS, "first_k_dense_replace": 1, "n_shared_experts": 2}, FeedForward(1, 128, 3, 8, 2, 32, 64)),
        ({**EXPERTS, "moe_layer_freq": [0, 1, 1, 1], "dense_intermediate_size": 256}, FeedForward(1, 256, 3, 8, 2, 32)),
        ({**EXPERTS, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]}, FeedForward(1, 128, 3, 8, 2, 32)),
        ({**EXPERTS, "decoder_sparse_step": 2, "mlp_only_layers": []}, FeedForward(2, 128, 2, 8, 2, 32)),
        ({**EXPERTS, "decoder_sparse_step": 1, "mlp_only_layers": [0]}, FeedForward(1, 128, 3, 8, 2, 32)),
        ({**EXPERTS, "shared_expert_intermediate_size": 48}, FeedForward(0, 0, 4, 8, 2, 32, 48)),
        ({**EXPERTS, "n_shared_experts": 1, "shared_intermediate_size": 40}, FeedForward(0, 0, 4, 8, 2, 32, 40)),
        ({**EXPERTS, "routed_expert_hidden_size": 32}, FeedForward(0, 0, 4, 8, 2, 32, latent=32)),
        (
            {
                "model_type": "llama4_text",
                "num_local_experts": 8,
                "num_experts_per_tok": 1,
                "intermediate_size_mlp": 512,
                "interleave_moe_layer_step": 2,
            },
            FeedForward(2, 512, 2, 8, 1, 128, 128),
        ),
        ({**EXPERTS, "enable_moe_block": True}, FeedForward(4, 128, 4, 8, 2, 32)),
    ],
)
def test_kinds_of_feed_forward(change: dict[str, Any], expected: FeedForward) -> None:
    assert architecture_from_config({**PLAIN, **change}).feed_forward == expected


def test_wrappers_are_opened() -> None:
    plain = architecture_from_config(PLAIN)
    for wrapper in ("text_config", "llm_config"):
        assert architecture_from_config({wrapper: PLAIN, "vision_config": {"num_attention_heads": 2}}) == plain
    assert architecture_from_config({"text_config": PLAIN, "tie_word_embeddings": True}).tied


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "c.json: hidden_size: is missing: the model's shape cannot be told without it"),
        ({"num_key_value_heads": None}, "c.json: num_key_value_heads: is missing"),
        ({"num_attention_heads": "8"}, "c.json: num_attention_heads: expected a whole number from 1 up, got '8'"),
        ({"num_attention_heads": 8.0}, "c.json: num_attention_heads: expected a whole number"),
        ({"num_hidden_layers": 0}, "c.json: num_hidden_layers: expected a whole number from 1 up, got 0"),
        ({"mystery_attention_rank": 3}, "c.json: mystery_attention_rank: is not known here and may change the model's shape"),
        ({"moe_mystery": True}, "c.json: moe_mystery: is not known here"),
        ({"num_kv_shared_layers": 2}, "c.json: num_kv_shared_layers: is not known here"),
        ({"layer_types": ["mamba"] * 4}, "c.json: layer_types: unknown kinds of attention: mamba"),
        ({"layer_types": ["full_attention"] * 3}, "c.json: layer_types: expected a list of 4 items, one a layer, got 3"),
        ({"sliding_window": 16}, "c.json: layer_types: is missing: sliding_window is set, but not which layers it holds for"),
        ({"attn_type_list": [1, 0, 1, 1]}, "c.json: attn_type_list: expected 1"),
        ({"hybrid_override_pattern": "M-M*"}, "c.json: hybrid_override_pattern: layers without attention"),
        ({"block_configs": [{}]}, "c.json: block_configs: layers that differ in width are not supported"),
        ({"num_experts": 8, "moe_intermediate_size": 4}, "c.json: num_experts_per_tok: is missing (or num_experts_per_token"),
        ({**EXPERTS, "n_routed_experts": 9}, "c.json: n_routed_experts and num_experts: say different things"),
        (
            {**EXPERTS, "first_k_dense_replace": 1, "moe_layer_freq": [1, 1, 1, 1]},
            "c.json: moe_layer_freq and first_k_dense_replace: say different",
        ),
        ({**EXPERTS, "moe_layer_freq": 2}, "c.json: moe_layer_freq: expected 1 or a list of 4 items, got 2"),
        ({**LATENT, "qk_nope_head_dim": None}, "c.json: qk_nope_head_dim: is missing"),
        ({**LATENT, "index_topk": 64, "index_n_heads": 2}, "c.json: index_head_dim: is missing"),
        (
            {**LATENT, "index_topk": 64, "index_n_heads": 2, "index_head_dim": 8, "index_topk_freq": 4},
            "c.json: indexer_types: is missing: index_topk_freq says that some layers share",
        ),
        (
            {**LATENT, "linear_attn_config": {**KDA, "kda_layers": [1, 2]}},
            "c.json: linear_attn_config.kda_layers: with full_attn_layers must name",
        ),
        ({**LATENT, "linear_attn_config": {**KDA, "head_dim": None}}, "c.json: linear_attn_config.head_dim: is missing"),
        ({**LATENT, "linear_attn_config": {**KDA, "num_state_heads": 2}}, "c.json: linear_attn_config.num_state_heads: is not known here"),
        (
            {"sparse_attention_config": {**SPARSE, "sparse_topk_blocks": None}},
            "c.json: sparse_attention_config.sparse_topk_blocks: is missing",
        ),
        (DELTA, "c.json: layer_types: is missing (or full_attention_interval): which layers are linear?"),
        ({**COMPRESSED, "compress_ratios": [4, 4]}, "c.json: compress_ratios: expected a whole number for each of 4 layers"),
        ({**COMPRESSED, "o_groups": None}, "c.json: o_groups: is missing"),
    ],
)
def test_what_is_not_understood_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CatalogError) as raised:
        architecture_from_config({**PLAIN, **change}, "c.json")
    assert str(raised.value).startswith(message)


def test_every_unknown_key_is_named() -> None:
    with pytest.raises(CatalogError) as raised:
        architecture_from_config({"text_config": {**PLAIN, "attn_x": 1, "kv_y": 2, "rope_theta": 3, "attention_z": None}})
    assert [p.path for p in raised.value.problems] == ["text_config.attn_x", "text_config.kv_y"]


def tensors(bits: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": bits, "type": kind}}}, **more}


@pytest.mark.parametrize(
    ("quantisation", "weights"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["gate", "lm_head"]}, "fp8"),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}, "bf16+mxfp4"),
        (tensors(4, "int", ignore=["re:.*self_attn.*"]), "bf16+int4"),
        (tensors(4, "float", format="mxfp4-pack-quantized", ignore=["re:.*self_attn.*"]), "bf16+mxfp4"),
        (tensors(4, "float", format="nvfp4-pack-quantized"), "nvfp4"),
        (tensors(8, "float"), "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.0.self_attn*"]}, "bf16+nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}, "fp8"),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"l.0.self_attn.q": {"quant_algo": "MXFP8"}, "l.0.moe.experts.0.w1": {"quant_algo": "NVFP4"}},
            },
            "mxfp8+nvfp4",
        ),
        ({"quant_method": "awq", "bits": 4}, "int4"),
    ],
)
def test_formats_of_weights(quantisation: dict[str, Any] | None, weights: str) -> None:
    for config in ({**PLAIN, "quantization_config": quantisation}, {"text_config": {**PLAIN, "quantization_config": quantisation}}):
        assert str(weights_of_config(config)) == weights


def test_unknown_formats_are_refused() -> None:
    for method in ({"quant_method": "hqq"}, {"bits": 4}, tensors(3, "int"), {"quant_method": "modelopt", "quant_algo": "W3A16"}):
        with pytest.raises(CatalogError, match="c.json: quantization_config: formats of this quantisation"):
            weights_of_config({"quantization_config": method}, "c.json")
