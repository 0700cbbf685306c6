"""Fit the roofline's efficiencies, one set a model family; print the errors by family and phase, and the sets as YAML.

    python benchmarks/fit_step_time.py STEP_TIMES.csv [--tpot MEASURED.csv] [--no-fit] [--leave-out model | system]

STEP_TIMES has label, model, system, backend, tp, attention_dp, moe_ep, gemm_quant, kv_quant, phase (prefill | decode), batch,
total_context_tokens, cached_prefix_tokens, new_tokens, latency_ms. MEASURED has silicon measurements of closed loops: model_path, system,
precision, mode, isl, osl, batch_size, tp_size, attention_dp_size, silicon_tpot_ms; both sources weigh the same.

Left out, by rule:
- sets whose decode of one request takes over 12% longer than of eight at the same context (tables taken without CUDA graphs);
- decode with fp8 KV where the same engine is over twice as fast with bf16 KV on a quarter of the rows or more (a table of another kernel);
- rows that repeat another set's;
- of MEASURED: split (disaggregated) runs; attention_dp_size above 1, with which tp_size means different things; GB200 runs, which are
  several times faster than the same engine on B200 and so probably speculate; runs on more GPUs than the model has heads for.

A loop of b requests of i input and o output tokens in steady state takes TPOT = D(b, i + o/2) + b P(i) / o, with D the decode step and P
the prefill of one request; InferenceX draws lengths from 0.8 to 1 times the nominal ones, so 0.9 of them is used.
The fit minimises the log ratio (soft L1) within physical bounds and, weakly, the distance from usual values. Needs `kvsim[fit]` (scipy).
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim import catalog
from kvsim.catalog.architecture import FAMILIES
from kvsim.engine.step_time import Deployment
from kvsim.engine.step_time.roofline import Efficiencies, build_roofline, fitted

Raw = dict[str, str]
Floats = NDArray[np.float64]
SYSTEMS = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300", "gb200": "gb200", "gb300": "gb300"} | {
    "a100_sxm": "a100-80gb"
}
ALIASES = {
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "zhipuai/GLM-5": "glm-5",
}
# Low, usual, high.
BOUNDS = {
    "gemm": (0.2, 0.6, 0.9),
    "hbm": (0.5, 0.8, 0.95),
    "attn": (0.2, 0.55, 0.8),
    "kv": (0.3, 0.75, 0.95),
    "link": (0.15, 0.5, 0.9),
    "t_ar": (2e-6, 10e-6, 40e-6),
    "t_layer": (5e-6, 40e-6, 90e-6),
    "t_step": (0.0, 0.5e-3, 2e-3),
    "ew": (0.0, 16.0, 40.0),
    "moe": (0.1, 0.4, 0.9),
}
SET = ("model", "system", "backend", "tp", "attention_dp", "moe_ep", "gemm_quant", "kv_quant", "label")
NAMES = [f.name for f in fields(Efficiencies)]
LOW, USUAL, HIGH = (np.array([BOUNDS[n][i] for n in NAMES]) for i in range(3))
PULL = 3.0  # weight of the distance from the usual values, in rows


@dataclass(frozen=True)
class Row:
    """One time: a step of `batch` equal requests in `decode` and, over `amortised` tokens, their `prefill` one by one.

    A request is (computed, new, prompt, total).
    """

    group: str
    model: str
    system: str
    phase: str
    deployment: Deployment
    decode: tuple[int, int, int, int] | None
    prefill: tuple[int, int, int, int] | None
    batch: int
    amortised: float
    seconds: float

    @property
    def family(self) -> str:
        """The model's."""
        return self.deployment.model.architecture.family


@cache
def _models() -> dict[str, str]:
    return {catalog.model(name).checkpoint: name for name in catalog.names("model")} | ALIASES


@cache
def _shape_name(name: str) -> str:
    """First of the catalog's models that are shaped so: one name for a model in all its formats."""
    shape = catalog.model(name).architecture
    return next(other for other in catalog.names("model") if catalog.model(other).architecture == shape)


def read_csv(path: Path) -> list[Raw]:
    """Rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def step_times(raws: Iterable[Raw]) -> list[Row]:
    """Usable rows of a table of step times."""
    sets: dict[tuple[str, ...], list[Raw]] = defaultdict(list)
    for raw in raws:
        sets[tuple(raw[k] for k in SET)].append(raw)
    decode = {key: {_shape(r): float(r["latency_ms"]) for r in raws if r["phase"] == "decode"} for key, raws in sets.items()}
    out: dict[tuple[str, ...], Row] = {}
    for key, raws in sets.items():
        if _without_graphs(decode[key]) or raws[0]["model"] not in _models() or raws[0]["system"] not in SYSTEMS:
            continue
        slow = key[7] == "fp8" and any(_slower(decode[key], decode[k]) for k in sets if k[:7] == key[:7] and k[7] == "bfloat16")
        for r in raws:
            if not (slow and r["phase"] == "decode"):
                out.setdefault((*key[:8], r["phase"], *_shape(r), r["cached_prefix_tokens"]), _step_row(r))
    return list(out.values())


def _shape(r: Raw) -> tuple[str, str]:
    return r["batch"], r["total_context_tokens"]


def _without_graphs(decode: dict[tuple[str, str], float]) -> bool:
    return any(ms > 1.12 * decode.get(("8", context), np.inf) for (batch, context), ms in decode.items() if batch == "1")


def _slower(fp8: dict[tuple[str, str], float], bf16: dict[tuple[str, str], float]) -> bool:
    shared = fp8.keys() & bf16.keys()
    return bool(shared) and sum(fp8[s] > 2 * bf16[s] for s in shared) >= len(shared) / 4


def _step_row(r: Raw) -> Row:
    model = catalog.model(_models()[r["model"]])
    weights = {"fp8": "fp8", "fp8_block": "fp8", "bfloat16": "bf16"}.get(r["gemm_quant"], model.weights)
    kv = "fp8" if r["kv_quant"] == "fp8" else "bf16"
    dp = int(r["attention_dp"])
    d = Deployment(model, catalog.hardware(SYSTEMS[r["system"]]), int(r["tp"]), int(r["moe_ep"]), weights, kv, dp)
    context, cached, new = (int(r[k]) for k in ("total_context_tokens", "cached_prefix_tokens", "new_tokens"))
    decode = (context - 1, 1, context - 1, context) if r["phase"] == "decode" else None
    prefill = None if decode else (cached, new, context, context)
    group = " ".join((r["label"], r["system"], r["backend"], r["kv_quant"]))
    return Row(
        group, _shape_name(model.name), d.hardware.name, r["phase"], d, decode, prefill, int(r["batch"]), 1.0, float(r["latency_ms"]) / 1e3
    )


def measured(raws: Iterable[Raw]) -> list[Row]:
    """Usable rows of measured closed loops."""
    rows = []
    for r in raws:
        known = r["model_path"] in _models() and r["system"] in SYSTEMS and r["system"] != "gb200"
        if not known or r["mode"] != "agg" or not r["silicon_tpot_ms"] or int(r["attention_dp_size"] or 1) > 1:
            continue
        model, tp = catalog.model(_models()[r["model_path"]]), int(r["tp_size"])
        if any(group.heads % tp for group in model.architecture.attention):
            continue
        weights = {"fp4": "nvfp4", "int4": "int4"}.get(r["precision"], r["precision"]) or "nvfp4"
        if model.architecture.is_moe and weights in ("nvfp4", "int4"):
            weights = model.weights if "mxfp4" in model.weights else f"bf16+{weights}"
        tokens, out = (round(0.9 * int(r[k])) for k in ("isl", "osl"))
        d = Deployment(model, catalog.hardware(SYSTEMS[r["system"]]), tp, 1, weights, "fp8")
        middle = tokens + out // 2
        group = " ".join((r["model_path"], r["system"], r["backend"], r["precision"]))
        decode, prefill = (middle - 1, 1, tokens, middle), (0, tokens, tokens, tokens)
        rows.append(
            Row(
                group,
                _shape_name(model.name),
                d.hardware.name,
                "tpot",
                d,
                decode,
                prefill,
                int(r["batch_size"]),
                out,
                float(r["silicon_tpot_ms"]) / 1e3,
            )
        )
    return rows


def predictions(rows: Sequence[Row], e: Efficiencies) -> Floats:
    """Seconds the roofline gives for each row."""

    @cache
    def built(d: Deployment) -> Any:
        a = d.model.architecture
        return build_roofline(a, d.hardware, tp=d.tp, dp=d.dp, ep=d.ep, weight_dtype=d.weights, kv_dtype=d.kv_dtype, efficiencies=e)

    out = []
    for row in rows:
        model = built(row.deployment)
        decode = _equal(model, row.decode, row.batch) if row.decode else 0.0
        prefill = row.batch * _equal(model, row.prefill, 1) / row.amortised if row.prefill else 0.0
        out.append(decode + prefill)
    return np.array(out)


def _equal(model: Any, request: tuple[int, int, int, int], n: int) -> float:
    """A step of `n` equal requests; what is accumulated is a sum over requests."""
    acc = np.zeros(model.accumulators)
    model.kernels[0](model.params, acc, *request)
    return float(model.kernels[1](model.params, n * acc))


def fit(rows: Sequence[Row]) -> Efficiencies:
    """The set within `BOUNDS` that fits `rows` best, step times and measurements weighing the same."""
    from scipy.optimize import least_squares

    times = np.log([row.seconds for row in rows])
    loops = np.array([row.phase == "tpot" for row in rows])
    weights = np.where(loops, np.sqrt(max((~loops).sum(), 1) / max(loops.sum(), 1)) if not loops.all() else 1.0, 1.0)

    def residual(x: Floats) -> Floats:
        e = _set(LOW + x * (HIGH - LOW))
        return np.concatenate([weights * (np.log(predictions(rows, e)) - times), PULL * (x - usual)])

    usual = (USUAL - LOW) / (HIGH - LOW)
    best = least_squares(residual, usual, bounds=(0, 1), loss="soft_l1", f_scale=0.1, max_nfev=100)
    return _set(LOW + best.x * (HIGH - LOW))


def _set(values: Floats) -> Efficiencies:
    return Efficiencies(**{name: float(v) for name, v in zip(NAMES, values, strict=True)})


def table(rows: Sequence[Row], sets: dict[str, Efficiencies]) -> list[str]:
    """Errors by family and phase, as a Markdown table."""
    lines = ["| family | phase | rows | median | mean | bias (median) |", "|---|---|---|---|---|---|"]
    for family, e in sets.items():
        own = [row for row in rows if row.family == family]
        error = predictions(own, e) / np.array([row.seconds for row in own]) - 1
        for phase, name in (("prefill", "prefill"), ("decode", "decode"), ("", "all step times"), ("tpot", "measured TPOT")):
            at = np.array([row.phase == phase if phase else row.phase != "tpot" for row in own])
            if at.any():
                x = error[at]
                lines.append(f"| {family} | {name} | {at.sum()} | {np.median(abs(x)):.1%} | {abs(x).mean():.1%} | {np.median(x):+.1%} |")
    return lines


def left_out(rows: Sequence[Row], key: Callable[[Row], str]) -> list[str]:
    """Median errors on each group when it is left out of its family's fit."""
    lines = ["| family | left out | rows | median |", "|---|---|---|---|"]
    for family in FAMILIES:
        own = [row for row in rows if row.family == family]
        for group in sorted({key(row) for row in own}):
            inside, outside = [r for r in own if key(r) == group], [r for r in own if key(r) != group]
            if outside:
                error = predictions(inside, fit(outside)) / np.array([row.seconds for row in inside]) - 1
                lines.append(f"| {family} | {group} | {len(inside)} | {np.median(abs(error)):.1%} |")
    return lines


def main() -> None:
    """Fit every family and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step_times", type=Path)
    parser.add_argument("--tpot", type=Path, help="measured closed loops")
    parser.add_argument("--no-fit", action="store_true", help="only print the errors of the present sets")
    parser.add_argument("--leave-out", choices=("model", "system"), help="also fit without each model or system, and print its errors")
    parser.add_argument("--groups", action="store_true", help="also print the errors of each set of rows")
    arguments = parser.parse_args()
    rows = step_times(read_csv(arguments.step_times))
    if arguments.tpot:
        rows += measured(read_csv(arguments.tpot))
    families = [f for f in FAMILIES if any(row.family == f for row in rows)]
    sets = {f: fitted(f) if arguments.no_fit else fit([row for row in rows if row.family == f]) for f in families}
    lines = table(rows, sets)
    if arguments.groups:
        lines += groups(rows, sets)
    if arguments.leave_out:
        lines += left_out(rows, lambda row: str(getattr(row, arguments.leave_out)))
    for family, e in sets.items():
        lines.append(f"{family}: {{{', '.join(f'{k}: {v:.4g}' for k, v in asdict(e).items())}}}")
    print("\n".join(lines))


def groups(rows: Sequence[Row], sets: dict[str, Efficiencies]) -> list[str]:
    """Median error and bias of each set of rows."""
    lines = ["| set | phase | rows | median | bias (median) |", "|---|---|---|---|---|"]
    for group, phase in sorted({(row.group, row.phase) for row in rows}):
        own = [row for row in rows if (row.group, row.phase) == (group, phase)]
        x = predictions(own, sets[own[0].family]) / np.array([row.seconds for row in own]) - 1
        lines.append(f"| {group} | {phase} | {len(own)} | {np.median(abs(x)):.1%} | {np.median(x):+.1%} |")
    return lines


if __name__ == "__main__":
    main()
