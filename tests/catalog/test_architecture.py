"""Parameter counts and KV bytes against published numbers, and configurations that must be refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim import catalog
from kvsim.catalog.architecture import from_config
from kvsim.errors import CatalogError

# Total and active parameters (billions) and marginal KV bytes a token, fp8 and bf16, unsharded: model cards and reported pools.
PUBLISHED = {
    "llama-3.1-8b": (8.0, 7.5, 65_536, 131_072),
    "llama-3.1-70b": (70.6, 69.5, 163_840, 327_680),
    "qwen3-32b": (32.8, 32.0, 131_072, 262_144),
    "qwen3-235b": (235.1, 21.6, 96_256, 192_512),
    "deepseek-v3": (671.0, 36.6, 35_136, 70_272),
    "deepseek-v3.2": (671.9, 37.5, 48_068, 78_324),
    "kimi-k2.5": (1026.4, 31.7, 35_136, 70_272),
    "kimi-k3": (2779.3, 104.0, 13_824, 27_648),
    "glm-5.2": (743.4, 40.3, 53_940, 92_628),
    "minimax-m2.5": (228.7, 10.4, 126_976, 253_952),
    "minimax-m3": (426.2, 24.7, 68_736, 137_472),
    "gpt-oss-120b": (116.8, 5.1, 18_432, 36_864),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_figures(name: str) -> None:
    total, active, fp8, bf16 = PUBLISHED[name]
    a = catalog.model(name).architecture
    assert a.parameters / 1e9 == pytest.approx(total, rel=0.01)
    assert a.active_parameters / 1e9 == pytest.approx(active, rel=0.03)
    assert a.kv_bytes_per_token("fp8", 1) == fp8
    assert a.kv_bytes_per_token("bf16", 1) == bf16


def test_sharding_by_kind() -> None:
    """GQA shards down to one head a rank, MLA not at all; MiniMax-M3 at TP4 was measured at 22.9 KB a rank."""
    llama, mla, m3 = (catalog.model(n).architecture for n in ("llama-3.1-70b", "deepseek-v3", "minimax-m3"))
    assert [llama.kv_bytes_per_token("fp8", tp) for tp in (1, 4, 8, 16)] == [163_840, 40_960, 20_480, 20_480]
    assert mla.kv_bytes_per_token("fp8", 8) == 35_136
    assert mla.replicated
    assert not llama.replicated
    assert m3.kv_bytes_per_token("fp8", 4) == 22_656


def test_what_does_not_grow_with_tokens() -> None:
    """Kimi-K3: 69 linear layers of 96 x 128 x 128 floats and 3 x 3 x 96 x 128 halves; gpt-oss: 18 windows of 128 tokens."""
    k3, oss = (catalog.model(n).architecture for n in ("kimi-k3", "gpt-oss-120b"))
    assert k3.state_bytes("fp8", 1) == 69 * (96 * 128 * 128 * 4 + 9 * 96 * 128 * 2)
    assert k3.state_bytes("fp8", 8) == k3.state_bytes("fp8", 1) / 8
    assert oss.state_bytes("fp8", 1) == 18 * 128 * 2 * 8 * 64


CONFIG = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "intermediate_size": 128, "vocab_size": 100}


def test_nested_and_aliased_fields() -> None:
    plain = from_config({**CONFIG, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32})
    nested = from_config({"text_config": {**CONFIG, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32}})
    assert plain == nested
    assert plain.family == "moe_gqa"
    mixed = from_config(
        {**CONFIG, "num_key_value_heads": 2, "sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"] * 2}
    )
    assert [(g.kind, g.layers, g.limit) for g in mixed.groups] == [("gqa", 2, 0), ("swa", 2, 16)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size: the model configuration has no such field"),
        ({"num_attention_heads": "8"}, "num_attention_heads: must be a whole number, got '8'"),
        ({"mystery_attention_rank": 3}, "mystery_attention_rank: attention field that kvsim does not know"),
        ({"layer_types": ["mamba"]}, "layer_types: kvsim does not know 'mamba'"),
        ({"num_experts": 8, "moe_intermediate_size": 4}, "num_experts_per_tok: a mixture of experts needs it"),
        ({"kv_lora_rank": 16, "v_head_dim": 4, "qk_rope_head_dim": 4}, "qk_nope_head_dim: the model configuration has no such field"),
    ],
)
def test_what_is_not_understood_is_refused(change: dict[str, object], message: str) -> None:
    config = {k: v for k, v in {**CONFIG, **change}.items() if v is not None}
    with pytest.raises(CatalogError, match=message.replace("(", "\\(")):
        from_config(config)


def test_config_json_of_a_user(tmp_path: Path) -> None:
    path = tmp_path / "my-model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**CONFIG, "quantization_config": {"quant_method": "fp8"}}))
    model = catalog.model(str(path))
    assert (model.name, model.weights) == ("my-model", "fp8")
    path.write_text("{")
    with pytest.raises(CatalogError, match=r"config.json: is not JSON"):
        catalog.model(str(path))
    with pytest.raises(CatalogError, match="cannot be read"):
        catalog.model(str(tmp_path / "none.json"))
