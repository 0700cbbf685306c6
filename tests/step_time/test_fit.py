"""The fit's rules, and the error of the shipped efficiencies on an extract of the table."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_step_time", ROOT / "benchmarks" / "fit_step_time.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def errors(fit: ModuleType, rows: list[Any]) -> dict[str, Any]:
    out = {}
    for family in fit.FAMILIES:
        own = [row for row in rows if row.family == family]
        out[family] = np.abs(fit.predictions(own, fit.fitted(family)) / np.array([row.seconds for row in own]) - 1)
    return out


BOUNDS = {"dense": 0.12, "moe_gqa": 0.30, "mla_moe": 0.15, "sparse_hybrid": 0.30}


def test_error_on_the_extract(fit: ModuleType) -> None:
    rows = fit.step_times(fit.read_csv(ROOT / "tests" / "data" / "step-times-sample.csv"))
    for family, error in errors(fit, rows).items():
        assert len(error) >= 25, family
        assert np.median(error) <= BOUNDS[family], family


def test_error_on_the_whole_table_and_on_measurements(fit: ModuleType, shared: Path) -> None:
    folder = shared / "validation"
    for rows, bounds in (
        (fit.step_times(fit.read_csv(folder / "step-times.csv")), BOUNDS),
        (
            fit.measured(fit.read_csv(folder / "silicon-ttft-tpot.csv")),
            {"dense": 0.15, "moe_gqa": 0.2, "mla_moe": 0.2, "sparse_hybrid": 0.25},
        ),
    ):
        for family, error in errors(fit, rows).items():
            assert np.median(error) <= bounds[family], family


def raw(**change: str) -> dict[str, str]:
    return {
        "label": "x",
        "model": "deepseek-ai/DeepSeek-V3",
        "system": "h200_sxm",
        "backend": "vllm",
        "tp": "8",
        "attention_dp": "1",
        "moe_ep": "8",
        "gemm_quant": "auto",
        "kv_quant": "fp8",
        "phase": "decode",
        "batch": "1",
        "total_context_tokens": "1024",
        "cached_prefix_tokens": "1023",
        "new_tokens": "1",
        "latency_ms": "10",
        **change,
    }


def test_tables_without_graphs_are_left_out(fit: ModuleType) -> None:
    eight = raw(batch="8", latency_ms="10")
    assert len(fit.step_times([raw(latency_ms="11.1"), eight])) == 2
    assert fit.step_times([raw(latency_ms="11.3"), eight, raw(phase="prefill")]) == []


def test_decode_of_another_kernel_is_left_out(fit: ModuleType) -> None:
    prefill = raw(phase="prefill", cached_prefix_tokens="0", new_tokens="1024")
    slow = [raw(latency_ms="21"), prefill, raw(kv_quant="bfloat16")]
    assert [(row.phase, row.deployment.kv_dtype) for row in fit.step_times(slow)] == [("prefill", "fp8"), ("decode", "bf16")]
    assert len(fit.step_times([raw(latency_ms="19"), prefill, raw(kv_quant="bfloat16")])) == 3


def test_repeated_rows_count_once(fit: ModuleType) -> None:
    assert len(fit.step_times([raw(), raw(label="y")])) == 1
    assert fit.step_times([raw(model="who/knows")]) == fit.step_times([raw(system="abacus")]) == []


def test_a_loop_is_a_decode_and_a_share_of_prefills(fit: ModuleType) -> None:
    """64 requests of 0.9 x 1000 in, 0.9 x 100 out: TPOT = D(64, 945) + 64 P(900) / 90."""
    loop = {
        "model_path": "meta-llama/Llama-3.1-70B",
        "system": "h100_sxm",
        "backend": "vllm",
        "precision": "fp8",
        "mode": "agg",
        "isl": "1000",
        "osl": "100",
        "batch_size": "64",
        "tp_size": "4",
        "attention_dp_size": "1",
        "silicon_tpot_ms": "30",
    }
    (row,) = fit.measured([loop])
    e = fit.fitted("dense")
    d = row.deployment
    model = fit.build_roofline(d.model.architecture, d.hardware, tp=4, weight_dtype="fp8", kv_dtype="fp8", efficiencies=e)
    expected = model.step([(944, 1, 900, 945)] * 64) + 64 * model.step([(0, 900, 900, 900)]) / 90
    assert fit.predictions([row], e)[0] == pytest.approx(expected)
    for change in ({"mode": "disagg"}, {"system": "gb200"}, {"attention_dp_size": "8"}, {"tp_size": "128"}, {"silicon_tpot_ms": ""}):
        assert fit.measured([loop | change]) == []


def test_a_fit_finds_what_made_the_times(fit: ModuleType) -> None:
    """Rows made by one set and fitted from another place give nearly its times: the usual values pull a little."""
    pytest.importorskip("scipy")
    from dataclasses import replace

    rows = [r for r in fit.step_times(fit.read_csv(ROOT / "tests" / "data" / "step-times-sample.csv")) if r.family == "dense"]
    true = replace(fit.fitted("dense"), hbm=0.7, attn=0.5, t_layer=30e-6)
    made = [replace(row, seconds=s) for row, s in zip(rows, fit.predictions(rows, true), strict=True)]
    found = fit.fit(made)
    assert np.median(np.abs(fit.predictions(made, found) / [row.seconds for row in made] - 1)) < 0.05
    assert all(low <= getattr(found, n) <= high for n, (low, _, high) in fit.BOUNDS.items())


def test_the_table_names_every_family_and_phase(fit: ModuleType) -> None:
    rows = fit.step_times(fit.read_csv(ROOT / "tests" / "data" / "step-times-sample.csv"))
    lines = fit.table(rows, {f: fit.fitted(f) for f in fit.FAMILIES})
    assert len(lines) == 2 + 3 * len(fit.FAMILIES)
    assert lines[2].startswith("| dense | prefill | ")
    assert len(fit.groups(rows, {f: fit.fitted(f) for f in fit.FAMILIES})) > 20
