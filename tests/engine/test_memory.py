"""GPU memory for KV blocks: by hand, and against pools that engines report."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim import catalog
from kvsim.engine.memory import GIB, HbmBudget, activation_bytes, hbm_budget
from kvsim.errors import KvsimError


def budget(model: str, gpu: str, tp: int, **more: Any) -> HbmBudget:
    return hbm_budget(catalog.model(model), catalog.hardware(gpu), tp=tp, **more)


@pytest.mark.parametrize(
    ("model", "tp", "gib"),
    [
        ("llama-3.1-8b", 1, 51.38),
        ("llama-3.1-70b-fp8", 2, 32.00),
        ("qwen3-32b", 1, 4.45),
        ("qwen3-32b", 2, 34.49),
        ("gpt-oss-20b", 1, 50.28),
        ("gpt-oss-120b", 1, 3.33),
    ],
)
def test_profiles_of_vllm(model: str, tp: int, gib: float) -> None:
    """What vLLM 0.11 kept for KV on H100 at a utilisation of 0.9, defaults else: within 1 GiB, which is 1.3% of the GPU."""
    assert budget(model, "h100", tp, utilisation=0.9).pool / GIB == pytest.approx(gib, abs=1.0)


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "settings", "reported", "within"),
    [
        # InferenceX, vLLM on AgentX: 42.23 GiB a GPU; utilisation and limits as in its recipe.
        (
            "kimi-k3",
            "b300",
            8,
            {"utilisation": 0.9, "max_num_seqs": 48, "max_num_batched_tokens": 16384, "kv_dtype": "fp8"},
            3_249_215,
            0.1,
        ),
        # llm-d: two pools of the same pods, utilisation not stated.
        ("qwen3-32b", "h100", 2, {}, 307_328, 0.05),
        ("qwen3-32b", "h100", 2, {}, 286_720, 0.05),
        # llm-d on eight H200.
        ("glm-5.2-fp8", "h200", 8, {"utilisation": 0.9, "kv_dtype": "fp8"}, 598_000, 0.1),
        # The same with attention apart on 16 ranks: exchange buffers are not in the estimate.
        ("glm-5.2-fp8", "h200", 1, {"utilisation": 0.9, "kv_dtype": "fp8", "dp": 16, "ep": 16}, 974_000, 0.25),
    ],
)
def test_reported_pools(model: str, gpu: str, tp: int, settings: dict[str, Any], reported: int, within: float) -> None:
    assert budget(model, gpu, tp, **settings).tokens == pytest.approx(reported, rel=within)


def test_terms_by_hand() -> None:
    """Llama-3.1-8B in bf16 on one H100: 8.03 G x 2 B of weights; the sampler's 39 B x 1024 x 128,256 outweigh a forward pass of
    8192 x 2 B x (8 x 4096 + 3 x 14,336); 131,072 B a token."""
    b = budget("llama-3.1-8b", "h100", 1, utilisation=0.9)
    assert b.weights == 2 * catalog.model("llama-3.1-8b").architecture.parameters
    assert b.activations == 39 * 1024 * 128_256 > 8192 * 2 * (8 * 4096 + 3 * 14_336)
    assert b.pool == pytest.approx(0.9 * 81559 * 2**20 - b.weights - b.activations - 0.13 * GIB)
    assert b.tokens == int(b.pool / 131_072)
    assert b.lines() == [
        "71.68 GiB a GPU, 90% of 79.65 GiB",
        "less 14.96 GiB weights",
        "less 4.77 GiB activations",
        "less 0.13 GiB runtime",
        "leaves 51.83 GiB for KV, 424,553 tokens of 131,072 bytes",
    ]
    assert b.describe() == ", ".join(b.lines())


def test_forward_pass_by_hand() -> None:
    """Kimi-K3 over eight ranks, few requests: 16,384 tokens x 2 B x (8 x 7168 + 3 x 33,792 / 8 + 16 x (3584 + 384))."""
    few = activation_bytes(catalog.model("kimi-k3"), tp=8, max_num_seqs=1, max_num_batched_tokens=16_384)
    assert few == 16_384 * 2 * (8 * 7168 + 3 * 33_792 / 8 + 16 * (3584 + 384))


def test_reserve_and_states_lessen_the_pool() -> None:
    plain = budget("kimi-k3", "b300", 8, kv_dtype="fp8")
    state = catalog.model("kimi-k3").architecture.state_bytes("fp8", 8)
    assert budget("kimi-k3", "b300", 8, kv_dtype="fp8", reserve=GIB, resident=10).pool == pytest.approx(plain.pool - GIB - 10 * state)
    assert "less 1.00 GiB reserve" in budget("kimi-k3", "b300", 8, kv_dtype="fp8", reserve=GIB).lines()


def test_weights_as_asked_for() -> None:
    fp8, fp4 = (budget("glm-5.2", "b300", 8, weight_dtype=dtype).weights for dtype in ("fp8", "fp4"))
    assert fp4 < fp8 < budget("glm-5.2", "b300", 8).weights
    assert budget("glm-5.2-nvfp4", "b300", 8).weights == fp4


def test_a_model_that_does_not_fit_says_by_what() -> None:
    with pytest.raises(KvsimError) as raised:
        budget("glm-5.2", "b200", 8)
    assert str(raised.value) == (
        "model does not fit: weights 175.6 GiB/GPU of 178.3 GiB (glm-5.2 in bf16 on 8 x b200; 164.08 GiB a GPU, 92% of 178.35 GiB, "
        "less 175.64 GiB weights, less 5.76 GiB activations, less 0.55 GiB runtime: 17.9 GiB short)"
    )
