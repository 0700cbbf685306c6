"""GPU memory for KV blocks, against pools that engines report, and by hand."""

from __future__ import annotations

import pytest

from kvsim import catalog
from kvsim.engine.memory import hbm_budget
from kvsim.errors import KvsimError


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "weights", "kv", "utilisation", "seqs", "reported"),
    [
        ("kimi-k3", "b300", 8, "fp4", "fp8", 0.92, 256, 3_249_215),  # vLLM on AgentX: 42.23 GiB a GPU
        ("qwen3-32b", "h100", 2, "bf16", "bf16", 0.95, 256, 307_328),  # llm-d, two H100 a pod
    ],
)
def test_reported_pools(model: str, gpu: str, tp: int, weights: str, kv: str, utilisation: float, seqs: int, reported: int) -> None:
    budget = hbm_budget(
        catalog.model(model), catalog.hardware(gpu), tp=tp, weight_dtype=weights, kv_dtype=kv, utilisation=utilisation, max_num_seqs=seqs,
        max_num_batched_tokens=8192,
    )  # fmt: skip
    assert budget.tokens == pytest.approx(reported, rel=0.08)


def test_terms_add_up() -> None:
    """Llama-3.1-8B in bf16 on one H100: 16.1 GB of weights, 32 x 8192 x 4096 B of activations, 1.5 GiB of runtime."""
    budget = hbm_budget(
        catalog.model("llama-3.1-8b"), catalog.hardware("h100"), tp=1, weight_dtype="bf16", kv_dtype="bf16", utilisation=0.92,
        max_num_seqs=256, max_num_batched_tokens=8192,
    )  # fmt: skip
    assert budget.weights == 2 * catalog.model("llama-3.1-8b").architecture.parameters
    assert budget.pool == 0.92 * 80e9 - budget.weights - 32 * 8192 * 4096 - 1.5 * 2**30
    assert budget.tokens == int(budget.pool / 131_072)
    assert "a GPU less 16.1GB weights" in budget.describe()


def test_a_model_that_does_not_fit_says_by_what() -> None:
    with pytest.raises(KvsimError, match=r"kimi-k3 does not fit 1 x h100 at fp4: 73.6GB of 80GB a GPU less 1.64TB weights"):
        hbm_budget(
            catalog.model("kimi-k3"), catalog.hardware("h100"), tp=1, weight_dtype="fp4", kv_dtype="fp8", utilisation=0.92, max_num_seqs=1,
            max_num_batched_tokens=1,
        )  # fmt: skip
