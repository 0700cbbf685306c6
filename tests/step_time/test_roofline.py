"""The roofline: physics that must hold, a naive twin of its sums, and its error against a published table."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim import catalog
from kvsim.engine.step_time import STEP_TIME, Deployment, StepTime
from kvsim.engine.step_time.roofline import Roofline, limited

ROOT = Path(__file__).parents[2]


def roofline(model: str, gpu: str, tp: int, weights: str = "fp8") -> StepTime:
    return Roofline().build(Deployment(catalog.model(model), catalog.hardware(gpu), tp, 1, weights, "fp8"))


DENSE = roofline("llama-3.1-70b", "h100", 4)
EVERY = [
    DENSE,
    roofline("qwen3-235b", "h200", 8),
    roofline("deepseek-v3", "b200", 8),
    roofline("kimi-k3", "b300", 8, "fp4"),
    roofline("gpt-oss-120b", "h100", 2, "fp4"),
]
prompts = st.tuples(st.integers(0, 5000), st.integers(1, 5000))


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 200))
def test_limited_pairs_follow_their_twin(first: int, more: int, limit: int) -> None:
    naive = sum(min(i, limit) if limit else i for i in range(first + 1, first + more + 1))
    assert limited(float(first), float(first + more), float(limit)) == naive


def decode(n: int, context: int) -> list[tuple[int, int, int, int]]:
    return [(context - 1, 1, context - 1, context)] * n


def prefill(cached: int, new: int) -> list[tuple[int, int, int, int]]:
    return [(cached, new, cached + new, cached + new)]


def test_a_cached_prefix_still_costs_attention() -> None:
    """98% cached at 100k tokens is 3 to 4% of the full prefill, not 2%; 90% cached is about 15%."""
    full = DENSE.step(prefill(0, 100_000))
    assert 0.03 < DENSE.step(prefill(98_000, 2_000)) / full < 0.04
    assert 0.12 < DENSE.step(prefill(90_000, 10_000)) / full < 0.18


@pytest.mark.parametrize("model", EVERY)
def test_more_work_takes_longer(model: StepTime) -> None:
    for context in (1_000, 30_000):
        times = [model.step(decode(n, context)) for n in (1, 8, 32, 128)]
        assert times == sorted(times)
    assert model.step(decode(8, 1_000)) <= model.step(decode(8, 100_000))


@given(st.lists(prompts, min_size=1, max_size=5), prompts)
def test_one_request_more_never_shortens_a_step(batch: list[tuple[int, int]], other: tuple[int, int]) -> None:
    requests = [r for cached, new in batch for r in prefill(cached, new)]
    for model in EVERY:
        assert model.step(requests) <= model.step(requests + prefill(*other))
        assert np.isfinite(model.step(requests))


def test_decode_reads_the_weights_by_hand() -> None:
    """A single decode of the 70B in fp8 on four H100 cannot beat its weights over the bandwidth: 69.5 GB / 4 / 3.35 TB/s = 5.2 ms."""
    assert 5.2e-3 < DENSE.step(decode(1, 1_000)) < 3 * 5.2e-3


def test_scale_multiplies_a_step() -> None:
    slow = STEP_TIME["roofline"](scale=2.0).build(Deployment(catalog.model("llama-3.1-70b"), catalog.hardware("h100"), 4, 1, "fp8", "fp8"))
    assert slow.step(prefill(500, 1500)) == pytest.approx(2 * DENSE.step(prefill(500, 1500)))


def fitter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_step_time", ROOT / "benchmarks" / "fit_step_time.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["fit_step_time"] = module
    spec.loader.exec_module(module)
    return module


def test_error_against_the_table() -> None:
    """Median absolute error of each family on the extract: at most 30%, dense at most 12%."""
    module = fitter()
    rows = module.read(ROOT / "tests" / "data" / "step-times-sample.csv")
    for family, bound in {"dense": 0.12, "moe_gqa": 0.3, "mla_moe": 0.3, "sparse_hybrid": 0.3}.items():
        own = [row for row in rows if row.deployment.model.architecture.family == family]
        error = np.abs(module.predictions(own, module.efficiencies(family)) / np.array([row.seconds for row in own]) - 1)
        assert len(own) >= 40, family
        assert np.median(error) <= bound, family


def test_linear_is_added_from_left_to_right() -> None:
    """Two decodes of 101 and 51 tokens and a chunk of 7: 1 + 7 x 0.5 + 2 x 0.25 + 152 x 0.125."""
    linear = STEP_TIME["linear"](1.0, 0.5, 0.25, 0.125).build()
    assert linear.step([(100, 1, 90, 101), (50, 1, 50, 51), (3, 7, 20, 20)]) == 1 + 7 * 0.5 + 2 * 0.25 + 152 * 0.125
    assert linear.step([(19, 1, 20, 20)]) == 1 + 0.5
