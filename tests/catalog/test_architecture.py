"""Parameter counts against published numbers, KV bytes against reported pools, and both by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim import catalog
from kvsim.catalog.architecture import Architecture, Weights
from kvsim.catalog.config import architecture_from_config
from kvsim.errors import CatalogError

# Billions of parameters, total and active (the embedding is read, not multiplied): model cards.
PARAMETERS = {
    "llama-3.1-8b": (8.03, 7.5),
    "llama-3.1-70b": (70.6, 69.5),
    "llama-3.1-405b": (405.8, 403.7),
    "qwen3-8b": (8.2, 7.6),
    "qwen3-32b": (32.8, 32.0),
    "qwen3-30b-a3b": (30.5, 3.04),
    "qwen3-235b": (235.1, 21.6),
    "qwen3-coder-480b": (480.2, 34.5),
    "qwen3.5-397b": (396.3, 16.3),
    "deepseek-v3": (671.0, 36.6),
    "deepseek-v3.2": (671.9, 37.5),
    "deepseek-v4-flash": (284.3, 13.2),
    "deepseek-v4-pro": (1572.8, 48.7),
    "kimi-k2.5": (1026.4, 31.7),
    "kimi-k3": (2779.3, 104.0),
    "glm-5": (743.9, 40.8),
    "glm-5.2": (743.4, 40.3),
    "minimax-m2.5": (228.7, 10.4),
    "minimax-m3": (426.2, 24.7),
    "gpt-oss-20b": (20.9, 3.6),
    "gpt-oss-120b": (116.8, 5.1),
}
# Bytes that one more token of context takes for good on one rank without tensor parallelism: fp8, bf16.
TOKEN_BYTES = {
    "llama-3.1-70b": (163_840, 327_680),
    "qwen3-32b": (131_072, 262_144),
    "qwen3-235b": (96_256, 192_512),
    "qwen3.5-397b": (15_360, 30_720),
    "minimax-m2.5": (126_976, 253_952),
    "minimax-m3": (68_736, 137_472),
    "deepseek-v3": (35_136, 70_272),
    "deepseek-v3.2": (48_068, 78_324),
    "deepseek-v4-pro": (4_444, 8_408),
    "deepseek-v4-flash": (3_104, 5_872),
    "kimi-k2.5": (35_136, 70_272),
    "kimi-k3": (13_824, 27_648),
    "glm-5.2": (53_940, 92_628),
    "gpt-oss-120b": (18_432, 36_864),
}
# GB of a request of 100,000 tokens in fp8, windows and states included.
REQUEST_GB = {
    "llama-3.1-70b": 16.384,
    "deepseek-v3": 3.514,
    "kimi-k3": 1.832,
    "deepseek-v4-pro": 0.466,
    "qwen3.5-397b": 1.728,
    "gpt-oss-120b": 1.846,
}
# Models that the catalog leaves out, by the fields that matter.
OTHERS: dict[str, tuple[float, dict[str, Any]]] = {
    "Mixtral 8x7B": (
        46.7,
        {
            "model_type": "mixtral",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
        }
        | {"intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "Llama 4 Scout": (
        107.8,
        {"model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8}
        | {"head_dim": 128, "vocab_size": 202048, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "attention_chunk_size": 8192}
        | {"num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1},
    ),
    "Llama 4 Maverick": (
        400.7,
        {"model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8}
        | {"head_dim": 128, "vocab_size": 202048, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "attention_chunk_size": 8192}
        | {"num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2},
    ),
    "Qwen3-Next 80B": (
        79.7,
        {"model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2}
        | {
            "head_dim": 256,
            "vocab_size": 151936,
            "intermediate_size": 5120,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        }
        | {
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "decoder_sparse_step": 1,
            "full_attention_interval": 4,
            "linear_num_key_heads": 16,
        }
        | {"linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4},
    ),
    "GLM-4.5": (
        352.8,
        {"model_type": "glm4_moe", "num_hidden_layers": 92, "hidden_size": 5120, "num_attention_heads": 96, "num_key_value_heads": 8}
        | {"head_dim": 128, "vocab_size": 151552, "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160}
        | {"num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3},
    ),
}


def shape(name: str) -> Architecture:
    return catalog.model(name).architecture


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_published_ones(name: str) -> None:
    total, active = PARAMETERS[name]
    assert shape(name).parameters / 1e9 == pytest.approx(total, rel=0.01)
    assert shape(name).active_parameters / 1e9 == pytest.approx(active, rel=0.01)


@pytest.mark.parametrize("name", OTHERS)
def test_parameters_of_other_models(name: str) -> None:
    total, config = OTHERS[name]
    assert architecture_from_config({**config, "max_position_embeddings": 1}).parameters / 1e9 == pytest.approx(total, rel=0.01)


@pytest.mark.parametrize("name", TOKEN_BYTES)
def test_bytes_of_a_token(name: str) -> None:
    assert tuple(shape(name).kv_bytes_per_token(dtype) for dtype in ("fp8", "bf16")) == TOKEN_BYTES[name]


@pytest.mark.parametrize("name", REQUEST_GB)
def test_bytes_of_a_long_request(name: str) -> None:
    assert shape(name).kv_bytes(100_000, "fp8") / 1e9 == pytest.approx(REQUEST_GB[name], rel=1e-3)


def test_pools_that_engines_report() -> None:
    """Kimi-K3: 42.23 GiB hold 3,249,215 tokens; MiniMax-M3 takes 22.9 KB a token and rank at TP4, and 37.6 GiB a million tokens at TP2."""
    assert shape("kimi-k3").kv_bytes_per_token("fp8", 8) == pytest.approx(42.23 * 2**30 / 3_249_215, rel=0.015)
    assert shape("minimax-m3").kv_bytes_per_token("fp8", 4) == 22_656
    assert shape("minimax-m3").kv_bytes(2**20, "fp8", 2) / 2**30 == pytest.approx(37.1, rel=2e-3)


def test_ranks() -> None:
    """Heads are divided down to one a rank, latents are on every rank."""
    assert [shape("llama-3.1-70b").kv_bytes_per_token("fp8", tp) for tp in (1, 2, 8, 16)] == [163_840, 81_920, 20_480, 20_480]
    assert {shape("deepseek-v3").kv_bytes_per_token("fp8", tp) for tp in (1, 2, 8, 128)} == {35_136}
    replicated = {name for name in catalog.names("model") if shape(name).replicated}
    assert {"deepseek-v3", "kimi-k3", "deepseek-v4-pro", "glm-5.2"} <= replicated
    assert not {"llama-3.1-8b", "minimax-m3", "gpt-oss-120b", "qwen3.5-397b"} & replicated


def test_what_does_not_grow_with_the_context() -> None:
    """Kimi-K3: 69 layers of 96 states of 128 x 128 floats, and 3 inputs of 3 x 96 x 128 halves; gpt-oss: 18 windows of 128 tokens."""
    k3, oss = shape("kimi-k3"), shape("gpt-oss-120b")
    assert k3.state_bytes("fp8") == 69 * (96 * 128 * 128 * 4 + 3 * 3 * 96 * 128 * 2) == pytest.approx(449.4e6, rel=1e-4)
    assert k3.state_bytes("bf16", 8) == k3.state_bytes("fp8") / 8
    assert oss.state_bytes("fp8") == 18 * 128 * 2 * 8 * 64
    assert oss.kv_bytes(50, "fp8") == 50 * 36 * 2 * 8 * 64
    assert oss.kv_bytes(1000, "fp8") == 1000 * 18_432 + oss.state_bytes("fp8")


def test_weights_by_hand() -> None:
    """Llama-3.1-8B in bf16: 16.06 GB, a quarter a rank of four. DeepSeek-V3 in fp8 over eight ranks, embeddings and head in bf16."""
    llama, v3 = shape("llama-3.1-8b"), shape("deepseek-v3")
    assert llama.weight_bytes(Weights.of("bf16"), 1) == 2 * llama.parameters == pytest.approx(16.06e9, rel=1e-3)
    assert llama.weight_bytes(Weights.of("bf16"), 4) == llama.parameters / 2
    embeddings = 2 * 129_280 * 7168
    sharded, repeated = v3.dense_parameters.sharded, v3.dense_parameters.replicated
    assert v3.weight_bytes(Weights.of("fp8"), 8) == 2 * embeddings / 8 + sharded / 8 + repeated + v3.expert_parameters / 8
    assert repeated == 61 * 7168 * (1536 + 512 + 64) + 58 * 7168 * 256


def test_experts_are_spread_over_all_ranks() -> None:
    """Attention apart on 8 ranks: each has all dense weights and 32 of 256 experts; over 16 x 1 ranks 16; 256 experts on 3 ranks: 86."""
    v3 = shape("deepseek-v3")
    assert v3.expert_share(1, 8, 8) == v3.expert_share(8, 1, 1) == v3.expert_share(8, 1, 8) == 1 / 8
    assert v3.expert_share(2, 8, 4) == 1 / 4 / 4
    assert v3.expert_share(3, 1, 3) == 86 / 256
    assert v3.weight_bytes(Weights.of("fp8"), 1, 8, 8) > v3.weight_bytes(Weights.of("fp8"), 8, 1, 8)
    assert shape("llama-3.1-8b").expert_share(4) == 0


@pytest.mark.parametrize(
    ("own", "asked", "moe", "expected"),
    [
        ("bf16+mxfp4", "auto", True, "bf16+mxfp4"),
        ("bf16+mxfp4", "bf16+mxfp4", True, "bf16+mxfp4"),
        ("bf16+mxfp4", "fp4", True, "bf16+mxfp4"),
        ("bf16+mxfp4", "fp8", True, "fp8"),
        ("fp8", "fp4", True, "fp8+fp4"),
        ("bf16", "fp4", False, "fp4"),
        ("bf16", "fp8+nvfp4", True, "fp8+nvfp4"),
    ],
)
def test_weights_as_asked_for(own: str, asked: str, moe: bool, expected: str) -> None:
    assert str(Weights.of(own).asked_for(asked, moe=moe)) == expected


def test_formats_that_are_unknown() -> None:
    for text in ("fp9", "bf16+fp9", "bf16+fp8+fp4", ""):
        with pytest.raises(CatalogError, match="is no type of weights"):
            Weights.of(text)


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("llama-3.1-8b", (3, 1, 1), "tp (3) must divide the 32 attention heads"),
        ("llama-3.1-8b", (0, 1, 1), "tp must be at least 1, got 0"),
        ("llama-3.1-8b", (4, 1, 4), "ep (4) is more than the model's 0 experts"),
        ("deepseek-v3", (4, 2, 3), "ep (3) must divide tp x dp (4 x 2)"),
        ("gpt-oss-20b", (64, 1, 64), "ep (64) is more than the model's 32 experts"),
    ],
)
def test_splits_that_are_impossible(name: str, split: tuple[int, int, int], message: str) -> None:
    with pytest.raises(CatalogError) as raised:
        shape(name).check(*split)
    assert str(raised.value) == message


def test_families() -> None:
    assert {shape(n).family for n in ("llama-3.1-8b", "qwen3-32b")} == {"dense"}
    assert {shape(n).family for n in ("qwen3-235b", "gpt-oss-120b", "minimax-m2.5")} == {"moe_gqa"}
    assert {shape(n).family for n in ("deepseek-v3", "kimi-k2.5")} == {"mla_moe"}
    assert {shape(n).family for n in ("deepseek-v3.2", "deepseek-v4-pro", "glm-5.2", "kimi-k3", "minimax-m3", "qwen3.5-397b")} == {
        "sparse_hybrid"
    }


@given(st.sampled_from(catalog.names("model")), st.integers(0, 200_000), st.integers(1, 1000), st.sampled_from(["fp8", "bf16"]))
def test_longer_requests_take_more(name: str, tokens: int, more: int, dtype: str) -> None:
    a = shape(name)
    grown = a.kv_bytes(tokens + more, dtype) - a.kv_bytes(tokens, dtype)
    assert grown >= more * a.kv_bytes_per_token(dtype) * (1 - 1e-12)
    assert a.kv_bytes(tokens, "fp8") <= a.kv_bytes(tokens, "bf16")
    for tp in (2, 4, 8):
        assert a.kv_bytes(tokens, dtype, tp) <= a.kv_bytes(tokens, dtype, tp // 2)
