"""Fit the roofline's efficiencies, one set a model family, on a table of step times; print the errors and the sets as YAML.

    python benchmarks/fit_step_time.py step-times.csv [--no-fit]

Columns: label, model, system, backend, tp, attention_dp, moe_ep, gemm_quant, kv_quant, phase (prefill | decode), batch,
total_context_tokens, cached_prefix_tokens, new_tokens, latency_ms. Rows left out, by rule: attention_dp above 1 (not modelled), models
and GPUs that the catalog doesn't have, and whole sets whose decode at batch 1 is over 12% slower than at batch 8 (tables taken
without CUDA graphs). The fit minimises the absolute log ratio (soft L1) within physical bounds; needs scipy (`pip install kvsim[fit]`).
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from kvsim import catalog
from kvsim.engine.step_time import Deployment
from kvsim.engine.step_time.roofline import Efficiencies, build, efficiencies

MODELS = {
    "meta-llama/Meta-Llama-3.1-70B": "llama-3.1-70b", "meta-llama/Meta-Llama-3.1-8B": "llama-3.1-8b", "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-8B": "qwen3-8b", "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b", "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3", "deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2", "nvidia/Kimi-K2.5-NVFP4": "kimi-k2.5",
    "moonshotai/Kimi-K3": "kimi-k3", "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5", "nvidia/MiniMax-M3-NVFP4": "minimax-m3",
    "nvidia/GLM-5.2-NVFP4": "glm-5.2", "openai/gpt-oss-120b": "gpt-oss-120b",
}  # fmt: skip
SYSTEMS = {
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "a100_sxm": "a100-80gb",
}
BOUNDS = {
    "gemm": (0.3, 0.9), "hbm": (0.5, 0.95), "attn": (0.2, 0.8), "kv": (0.4, 0.95), "link": (0.15, 0.9), "t_ar": (2e-6, 40e-6),
    "t_layer": (5e-6, 90e-6), "t_step": (0.0, 2e-3), "ew": (0.0, 20.0), "skew": (1.0, 2.0), "moe": (0.1, 0.9),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One measurement: the deployment, the step's batch and its milliseconds."""

    label: str
    phase: str
    deployment: Deployment
    batch: tuple[tuple[int, int, int, int], ...]
    seconds: float


def read(path: Path) -> list[Row]:
    """Usable rows of the table."""
    sets: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    with path.open(newline="") as file:
        for raw in csv.DictReader(file):
            sets[tuple(raw[k] for k in ("label", "system", "backend", "kv_quant"))].append(raw)
    return [row for raws in sets.values() if _usable(raws) for row in map(_row, raws)]


def _usable(raws: list[dict[str, str]]) -> bool:
    first = raws[0]
    if first["attention_dp"] != "1" or first["model"] not in MODELS or first["system"] not in SYSTEMS:
        return False
    decode = {(r["batch"], r["total_context_tokens"]): float(r["latency_ms"]) for r in raws if r["phase"] == "decode"}
    return not any(ms > 1.12 * decode.get(("8", context), np.inf) for (batch, context), ms in decode.items() if batch == "1")


def _row(raw: dict[str, str]) -> Row:
    model, gpu = catalog.model(MODELS[raw["model"]]), catalog.hardware(SYSTEMS[raw["system"]])
    quant = raw["gemm_quant"]
    weights = "fp8" if quant.startswith("fp8") else "bf16" if quant == "bfloat16" else "fp4" if "NVFP4" in raw["model"] else model.weights
    kv = "fp8" if raw["kv_quant"] == "fp8" else "bf16"
    n, context, new = int(raw["batch"]), int(raw["total_context_tokens"]), int(raw["new_tokens"])
    if raw["phase"] == "decode":
        batch = ((context - 1, 1, context - 1, context),) * n
    else:
        batch = ((int(raw["cached_prefix_tokens"]), new, context, context),) * n
    return Row(raw["label"], raw["phase"], Deployment(model, gpu, int(raw["tp"]), 1, weights, kv), batch, float(raw["latency_ms"]) / 1e3)


def predictions(rows: Sequence[Row], e: Efficiencies) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Seconds the roofline gives for each row."""
    built: dict[int, Any] = {}
    return np.array([built.setdefault(_key(row), build(row.deployment, e)).step(row.batch) for row in rows])


def _key(row: Row) -> int:
    d = row.deployment
    return hash((d.model.name, d.hardware.name, d.tp, d.weight_dtype, d.kv_dtype))


def fit(rows: Sequence[Row], start: Efficiencies) -> Efficiencies:
    """The set within `BOUNDS` that fits `rows` best."""
    from scipy.optimize import least_squares

    names = [f.name for f in fields(Efficiencies)]
    low, high = (np.array([BOUNDS[n][i] for n in names]) for i in (0, 1))
    measured = np.log([row.seconds for row in rows])

    def residual(x: Any) -> Any:
        return np.log(predictions(rows, Efficiencies(**dict(zip(names, low + x * (high - low), strict=True))))) - measured

    x0 = np.clip((np.array([getattr(start, n) for n in names]) - low) / (high - low), 0.02, 0.98)
    best = least_squares(residual, x0, bounds=(0, 1), loss="soft_l1", f_scale=0.1, max_nfev=60)
    return Efficiencies(**{n: float(v) for n, v in zip(names, low + best.x * (high - low), strict=True)})


def main() -> None:
    """Fit every family and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--no-fit", action="store_true", help="only print the errors of the present sets")
    arguments = parser.parse_args()
    rows = read(arguments.table)
    print("| family | rows | prefill | decode | all, median | all, mean |\n|---|---|---|---|---|---|")
    sets = {}
    for family in ("dense", "moe_gqa", "mla_moe", "sparse_hybrid"):
        own = [row for row in rows if row.deployment.model.architecture.family == family]
        e = efficiencies(family) if arguments.no_fit else fit(own, efficiencies(family))
        error = np.abs(predictions(own, e) / np.array([row.seconds for row in own]) - 1)
        phase = np.array([row.phase for row in own])
        cells = [f"{np.median(error[phase == p]):.1%}" for p in ("prefill", "decode")]
        print(f"| {family} | {len(own)} | {' | '.join(cells)} | {np.median(error):.1%} | {error.mean():.1%} |")
        sets[family] = {k: float(f"{v:.4g}") for k, v in asdict(e).items()}
    for family, values in sets.items():
        print(f"{family}: {values}")


if __name__ == "__main__":
    main()
