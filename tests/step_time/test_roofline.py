"""The roofline: by hand, against its naive twin, and the physics that must hold whatever the efficiencies are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim import catalog
from kvsim.catalog import Hardware
from kvsim.catalog.architecture import FAMILIES
from kvsim.catalog.config import architecture_from_config
from kvsim.engine.step_time import STEP_TIME, Deployment, StepTime
from kvsim.engine.step_time import roofline as r
from kvsim.engine.step_time.roofline import Efficiencies, Roofline, build_roofline, fitted
from kvsim.errors import CatalogError
from tests.step_time import twins

Request = tuple[int, int, int, int]
ONE = Efficiencies(gemm=1, hbm=1, attn=1, kv=1, link=1, t_ar=0, t_layer=0, t_step=0, ew=0, moe=1)
UNIT = Hardware(name="unit", hbm=1e9, hbm_bandwidth=1e6, bf16=1e9, scaleup=1e6)
TINY = {
    "num_hidden_layers": 1,
    "hidden_size": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 8,
    "vocab_size": 10,
    "max_position_embeddings": 100,
}


def decode(n: int, context: int) -> list[Request]:
    return [(context - 1, 1, context - 1, context)] * n


def prefill(cached: int, new: int) -> list[Request]:
    return [(cached, new, cached + new, cached + new)]


def built(name: str, gpu: str, tp: int, **more: Any) -> StepTime:
    m = catalog.model(name)
    return build_roofline(m.architecture, catalog.hardware(gpu), tp=tp, **{"weight_dtype": m.weights, "kv_dtype": "fp8", **more})


DENSE = built("llama-3.1-70b-fp8", "h100", 4)
EVERY = {
    "dense": DENSE,
    "moe_gqa": built("qwen3-235b-fp8", "h200", 8),
    "windows": built("gpt-oss-120b", "h100", 2),
    "latent": built("deepseek-v3", "b200", 8, ep=8),
    "latent, attention apart": built("deepseek-v3-nvfp4", "b200", 1, dp=8, ep=8),
    "latent, selecting": built("glm-5.2-nvfp4", "b300", 8),
    "latent and linear": built("kimi-k3", "b300", 8),
    "heads, selecting": built("minimax-m3-nvfp4", "b200", 4),
    "compressed": built("deepseek-v4-pro", "gb300", 8),
    "heads and linear": built("qwen3.5-397b", "b300", 8),
}
every = st.sampled_from(sorted(EVERY))
lengths = st.tuples(st.integers(0, 300_000), st.integers(1, 20_000))


def test_terms_by_hand() -> None:
    """One layer of width 4, two heads of 2 that share one key and value, 8 wide inside, vocabulary of 10; 1 GFLOPS and 1 MB/s.

    P = 4 x 4 + 2 x 4 x 2 + 4 x 4 + 3 x 4 x 8 = 144 weights. Prefill of 3 tokens: products 2 x 3 x 144 = 864 flops = 0.864 us against
    288 bytes = 288 us; head 2 x 40 = 80 flops against 80 bytes; 6 pairs of 2 x 2 x (2 + 2) = 16 flops against 3 x 8 bytes of KV.
    """
    step = build_roofline(architecture_from_config(TINY), UNIT, tp=1, efficiencies=ONE)
    expected = np.hypot(0.864, 288) + np.hypot(0.080, 80) + np.hypot(6 * 16e-3, 24)
    assert step.step(prefill(0, 3)) * 1e6 == pytest.approx(expected, rel=1e-12)
    assert step.step([(0, 3, 9, 9)]) * 1e6 == pytest.approx(expected - np.hypot(0.080, 80), rel=1e-12)  # nothing is sampled yet
    assert step.step(decode(1, 3)) * 1e6 == pytest.approx(np.hypot(0.288, 288) + np.hypot(0.080, 80) + np.hypot(3 * 16e-3, 24), rel=1e-12)


def test_overheads_and_links_by_hand() -> None:
    """Two ranks: half the weights each, t_ar for two collectives, and 2 x 2 x (1/2) x 2 x 4 = 16 bytes a token over 1 MB/s at 50%."""
    e = replace(ONE, t_ar=5e-6, t_layer=7e-6, t_step=11e-6, link=0.5)
    a = architecture_from_config({**TINY, "num_key_value_heads": 2})
    alone, two = (build_roofline(a, UNIT, tp=tp, efficiencies=x) for tp, x in ((2, ONE), (2, e)))
    free = replace(UNIT, scaleup=1e30)
    base = build_roofline(a, free, tp=2, efficiencies=ONE).step(prefill(0, 3))
    assert alone.step(prefill(0, 3)) - base == pytest.approx(3 * 16e-6)
    assert two.step(prefill(0, 3)) - base == pytest.approx(3 * 32e-6 + 2 * 5e-6 + 7e-6 + 11e-6)


def test_experts_touched_by_hand() -> None:
    """Eight experts of 3 x 4 x 4 = 48 weights, two a token: one token touches 8 x (1 - 3/4) = 2, three 8 x (1 - 27/64) = 4.625."""
    a = architecture_from_config({**TINY, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 4})
    step = build_roofline(a, UNIT, tp=1, efficiencies=ONE)
    assert step.params[r.EXPERTS] * (1 - np.exp(3 * step.params[r.LOG_MISS])) == pytest.approx(4.625)
    assert step.params[r.MOE_BYTE] == pytest.approx(96e-6)
    assert step.params[r.MOE_FLOP] == pytest.approx(2 * 2 * 48 / 1e9)
    all_of_them = build_roofline(replace(a, feed_forward=replace(a.feed_forward, top_k=8)), UNIT, tp=1, efficiencies=ONE)
    assert all_of_them.step(decode(1, 3)) == pytest.approx(twins.step(all_of_them.params, decode(1, 3)))


@given(every, st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60), st.integers(0, 500)), min_size=1, max_size=6), st.data())
@settings(max_examples=150)
def test_kernels_follow_their_twin(name: str, batch: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """With every limit scaled down to where the lengths are."""
    model = EVERY[name]
    params = model.params.copy()
    limits = params[r.SCALARS :].reshape(-1, r.WORK)[:, r.LIMIT]
    limits[np.isfinite(limits)] = data.draw(st.integers(1, 300))
    small = replace(model, params=params)
    requests = [(computed, new, computed, max(computed + new - extra, 1)) for computed, new, extra in batch]
    assert small.step(requests) == pytest.approx(twins.step(params, requests), rel=1e-9)


@given(every, st.lists(lengths, min_size=1, max_size=5), lengths)
def test_one_request_more_takes_longer(name: str, batch: list[tuple[int, int]], other: tuple[int, int]) -> None:
    requests = [q for cached, new in batch for q in prefill(cached, new)]
    without, within = EVERY[name].step(requests), EVERY[name].step(requests + prefill(*other))
    assert 0 < without < within < np.inf


@given(every, st.lists(lengths, max_size=3), lengths, st.integers(0, 5000), st.integers(0, 5000))
def test_more_of_a_request_takes_longer(name: str, batch: list[tuple[int, int]], one: tuple[int, int], cached: int, new: int) -> None:
    """Monotone in what is cached and in what is new, whether or not tokens are sampled, across limits and from decode to prefill."""
    rest = [q for c, n in batch for q in prefill(c, n)]
    model, never = EVERY[name], 10**9
    small, large = [(one[0], one[1], 1, never)], [(one[0] + cached, one[1] + new, 1, never)]
    assert model.step(rest + small) <= model.step(rest + large) * (1 + 1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_larger_decode_batches_take_longer(name: str) -> None:
    for context in (1_000, 30_000, 200_000):
        times = [EVERY[name].step(decode(n, context)) for n in (1, 8, 32, 128)]
        assert times == sorted(times)
        assert times[3] < 128 * times[0]


def test_a_cached_prefix_still_costs_attention() -> None:
    """At 100k tokens, 98% cached costs a dense 70B 3 to 4% of the full prefill, 90% about 15%."""
    full = DENSE.step(prefill(0, 100_000))
    assert 0.03 < DENSE.step(prefill(98_000, 2_000)) / full < 0.04
    assert 0.13 < DENSE.step(prefill(90_000, 10_000)) / full < 0.17


def test_windows_and_selection_bound_what_a_decode_reads() -> None:
    """Past its limits a decode grows by what is unbounded alone: for gpt-oss half its layers, for GLM-5.2 the index."""
    for name, share in (("windows", 0.55), ("latent, selecting", 0.4)):
        model = EVERY[name]
        slope = (model.step(decode(1, 200_000)) - model.step(decode(1, 100_000))) / 100_000
        early = (model.step(decode(1, 100)) - model.step(decode(1, 50))) / 50
        assert slope < share * early


@pytest.mark.parametrize(("tokens", "ms"), [(10_000, 262), (20_000, 640), (30_000, 1097), (50_000, 2290), (70_000, 3850), (100_000, 6850)])
def test_measured_prefills(tokens: int, ms: float) -> None:
    """TTFT of Llama-3.1-8B in bf16 on one H100 (vLLM blog of 2026-01-08): within 8%, though no fit has seen it."""
    assert built("llama-3.1-8b", "h100", 1, kv_dtype="bf16").step(prefill(0, tokens)) * 1e3 == pytest.approx(ms, rel=0.08)


def test_decode_cannot_beat_its_weights() -> None:
    """The 70B in fp8 on four H100: 69.5 GB / 4 / 3.35 TB/s = 5.2 ms."""
    assert 5.2e-3 < DENSE.step(decode(1, 1_000)) < 3 * 5.2e-3


def test_attention_apart_sees_the_tokens_of_all() -> None:
    """Eight ranks of 4 requests touch as many experts as one engine of 32."""
    apart, one = EVERY["latent, attention apart"].params, built("deepseek-v3-nvfp4", "b200", 8, ep=8).params
    assert 4 * apart[r.LOG_MISS] == pytest.approx(32 * one[r.LOG_MISS])
    assert 4 * apart[r.MOE_FLOP] == pytest.approx(32 * one[r.MOE_FLOP])
    assert apart[r.MOE_BYTE] == one[r.MOE_BYTE]


def test_scale_multiplies_a_step() -> None:
    for model, gpu, tp in (("llama-3.1-70b", "h100", 4), ("kimi-k3", "b300", 8)):
        d = Deployment(catalog.model(model), catalog.hardware(gpu), tp, 1, "auto", "fp8")
        once, twice = (STEP_TIME["roofline"](scale=s).build(d) for s in (1.0, 2.0))
        batch = prefill(500, 1500) + decode(3, 9000)
        assert twice.step(batch) == pytest.approx(2 * once.step(batch), rel=1e-12)


def test_weights_as_the_deployment_asks() -> None:
    d = Deployment(catalog.model("glm-5.2"), catalog.hardware("b300"), 8, 1, "fp4", "fp8")
    own = Deployment(catalog.model("glm-5.2-nvfp4"), catalog.hardware("b300"), 8, 8, "auto", "fp8")
    assert np.array_equal(Roofline().build(d).params, Roofline().build(own).params)
    assert str(d.weights) == "bf16+fp4"
    other = Roofline(efficiencies={"t_step": 1.0}).build(d)
    assert other.params[r.FIXED] - Roofline().build(d).params[r.FIXED] == pytest.approx(1.0 - fitted("sparse_hybrid").t_step)


def test_every_model_of_the_catalog_has_a_step_time() -> None:
    for name in catalog.names("model"):
        for gpu in ("a100-80gb", "h100", "b300", "mi355x"):
            assert 1e-4 < built(name, gpu, 8).step(decode(1, 1000)) < 1


def test_families_are_all_fitted() -> None:
    for family in FAMILIES:
        assert fitted(family).gemm > 0
    with pytest.raises(CatalogError, match=r"no efficiencies are fitted for the family 'sparse' \(known: dense"):
        fitted("sparse")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(ONE, attn=0), "efficiency attn must be above 0 and at most 1, got 0"),
        (lambda: replace(ONE, hbm=1.1), "efficiency hbm must be above 0 and at most 1, got 1.1"),
        (lambda: replace(ONE, t_layer=-1e-6), "t_layer must not be negative, got -1e-06"),
        (lambda: Roofline(scale=0), "scale must be more than 0, got 0"),
        (lambda: Roofline(efficiencies={"gem": 0.5}), "efficiencies: 'gem' is none of them, did you mean 'gemm'?"),
        (lambda: Roofline(efficiencies={"gemm": 5.0}), "efficiency gemm must be above 0 and at most 1, got 5.0"),
        (lambda: built("llama-3.1-8b", "h100", 3), "tp (3) must divide the 32 attention heads"),
        (lambda: built("llama-3.1-8b", "h100", 1, weight_dtype="fp7"), "'fp7' is no type of weights, did you mean"),
        (lambda: built("llama-3.1-8b", "h100", 1, kv_dtype="fp7"), "unknown number format 'fp7', did you mean"),
        (
            lambda: build_roofline(catalog.model("llama-3.1-8b").architecture, replace(UNIT, scaleup=0.0), tp=2),
            "hardware 'unit' has no scale-up links",
        ),
    ],
)
def test_what_is_impossible_is_refused(make: Any, message: str) -> None:
    with pytest.raises(CatalogError) as raised:
        make()
    assert str(raised.value).startswith(message)
