"""Roofline step time: what a rank must compute and move, at stated efficiencies.

Law. T = T_gemm + T_head + T_moe + T_attn + T_elem + T_comm + L t_layer + t_step, for N tokens in the step, S of them sampled. The first
four are smooth maxima sqrt(a^2 + b^2) of the time to compute and the time to read memory:

- T_gemm: 2 N P flops against reading P weights once, P all parameters a rank holds but embedding, head and routed experts;
- T_head: the vocabulary in bf16, for sampled tokens only;
- T_moe: the routed experts of N tokens against reading those touched, E (1 - (1 - k/E)^N) of E in each layer;
- T_attn, a sum over requests: pairs of query and key, and the KV read. A cached prefix costs its pairs and its reading, but nothing
  else. Windows and selection limit both; an index scores all pairs. Latents are multiplied as they are, or decompressed first where
  that is cheaper (decompressing the cached part again is counted);
- T_elem: `ew` passes over N x hidden activations a layer; T_comm: two all-reduces a layer of N x hidden, 2 (tp - 1)/tp of it each over the
  scale-up links, and `t_ar` each; with dp > 1 also two exchanges a mixture layer of the tokens' top-k copies (3 bytes a number both ways).

Not modelled: overlap of the terms, imbalance of experts, pipeline stages, tile effects, CPU time between steps. A request is attended to
on its own, so the time grows with every request and with everything in it. Efficiencies are fitted per model family (docs/step-time.md).
Source: the roofline model (Williams, Waterman, Patterson 2009); how serving engines differ from it, aiconfigurator-core 0.12.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import log, sqrt

import numpy as np

from kvsim.catalog.architecture import Architecture, Weights
from kvsim.catalog.attention import Work
from kvsim.catalog.dtypes import dtype_bytes
from kvsim.catalog.entries import Hardware
from kvsim.catalog.loader import Entry, entries
from kvsim.engine.step_time import STEP_TIME, Deployment, StepTime
from kvsim.errors import CatalogError, did_you_mean
from kvsim.jit import kernel

# Places in `params`: scalars first, then WORK numbers for each kind of attention; all in seconds but EXPERTS, LOG_MISS, WORKS.
(GEMM_FLOP, GEMM_BYTE, HEAD_FLOP, HEAD_BYTE, MOE_FLOP, MOE_BYTE, TOKEN, FIXED, LINEAR, STATE, INDEX_FLOP, INDEX_BYTE) = TIMES = range(12)
(EXPERTS, LOG_MISS, WORKS) = range(12, 15)
SCALARS = 15
(LIMIT, WINDOW, PAIR, COMPRESSED, EXPAND, KV) = range(6)
WORK = 6
TOKENS, SAMPLED, ATTENTION = range(3)
NEVER_MISSED = -1e3
EXCHANGE_BYTES = 1.5  # dispatched in fp8, combined in bf16: the mean of both ways


@kernel
def add(params, acc, computed, new, prompt, total):  # type: ignore[no-untyped-def]
    """Sum up one scheduled request."""
    n = float(new)
    context = computed + n
    whole = n * computed + 0.5 * n * (n + 1.0)
    compute = n * params[LINEAR] + whole * params[INDEX_FLOP]
    memory = params[STATE] + context * params[INDEX_BYTE]
    at = SCALARS
    for _ in range(int(params[WORKS])):
        limit = params[at + LIMIT]
        pairs, seen = whole, context
        if limit < context:
            free = min(max(limit - computed, 0.0), n)  # queries that see less than the limit
            pairs = free * computed + 0.5 * free * (free + 1.0) + (n - free) * limit
            seen = min(context, limit + n - 1.0 if params[at + WINDOW] > 0.0 else pairs)
        compute += min(pairs * params[at + PAIR] + computed * params[at + EXPAND], pairs * params[at + COMPRESSED])
        memory += seen * params[at + KV]
        at += WORK
    acc[ATTENTION] += sqrt(compute * compute + memory * memory)
    acc[TOKENS] += n
    if computed + new >= total:
        acc[SAMPLED] += 1.0


@kernel
def either(a, b):  # type: ignore[no-untyped-def]
    """Smooth maximum of a time to compute and a time to read."""
    return sqrt(a * a + b * b)


@kernel
def seconds(params, acc):  # type: ignore[no-untyped-def]
    """Duration of the step."""
    tokens, sampled = acc[TOKENS], acc[SAMPLED]
    out = either(tokens * params[GEMM_FLOP], params[GEMM_BYTE]) + acc[ATTENTION] + tokens * params[TOKEN] + params[FIXED]
    if sampled > 0.0:
        out += either(sampled * params[HEAD_FLOP], params[HEAD_BYTE])
    if params[EXPERTS] > 0.0:
        touched = params[EXPERTS] * (1.0 - np.exp(tokens * params[LOG_MISS]))
        out += either(tokens * params[MOE_FLOP], touched * params[MOE_BYTE])
    return out


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Shares of peak that products (`gemm`, `moe`, `attn`), reads (`kv`; `hbm`: weights and activations) and the scale-up `link` reach.

    `t_ar`, `t_layer`, `t_step`: seconds that nothing hides, a collective, a layer and a step; `ew`: passes over the activations a layer.
    """

    gemm: float
    hbm: float
    attn: float
    kv: float
    link: float
    t_ar: float
    t_layer: float
    t_step: float
    ew: float
    moe: float

    def __post_init__(self) -> None:
        for name in ("gemm", "hbm", "attn", "kv", "link", "moe"):
            if not 0 < getattr(self, name) <= 1:
                raise CatalogError(f"efficiency {name} must be above 0 and at most 1, got {getattr(self, name)}")
        for name in ("t_ar", "t_layer", "t_step", "ew"):
            if getattr(self, name) < 0:
                raise CatalogError(f"{name} must not be negative, got {getattr(self, name)}")


@cache
def fitted(family: str) -> Efficiencies:
    """The set fitted for a model family. Raises `CatalogError`."""
    known = entries("efficiencies.yaml")
    if family not in known:
        raise CatalogError(f"no efficiencies are fitted for the family {family!r} (known: {', '.join(known)})")
    return _efficiencies(known[family])


def _efficiencies(entry: Entry) -> Efficiencies:
    names = [f.name for f in fields(Efficiencies)]
    if unknown := sorted(set(entry.fields) - {*names, "source", "date"}):
        raise entry.refuse("unknown field", unknown[0])
    for name in names:
        if not isinstance(entry.fields.get(name), int | float):
            raise entry.refuse("needs a number", name)
    return Efficiencies(**{name: float(entry.fields[name]) for name in names})


def build_roofline(
    architecture: Architecture,
    hardware: Hardware,
    *,
    tp: int,
    dp: int = 1,
    ep: int = 1,
    weight_dtype: str | Weights | None = None,
    kv_dtype: str = "auto",
    efficiencies: Efficiencies | None = None,
) -> StepTime:
    """The roofline of a rank. `weight_dtype`: `Weights` or its text, None: bf16; `kv_dtype` auto: bf16; `efficiencies` None: the family's.

    Raises `CatalogError` where the model can't be divided so or a format is unknown.
    """
    architecture.check(tp, dp, ep)
    e = efficiencies or fitted(architecture.family)
    weights = weight_dtype if isinstance(weight_dtype, Weights) else Weights.of(weight_dtype or "bf16")
    kv = "bf16" if kv_dtype == "auto" else kv_dtype
    works = _merged([w for group in architecture.attention for w in group.work(kv, tp)])
    p = np.zeros(SCALARS + WORK * len(works))
    _products(p, architecture, hardware, weights, e, tp, dp, ep)
    _token_and_step(p, architecture, hardware, e, tp, dp)
    flop, byte = 1.0 / (hardware.bf16 * e.attn), 1.0 / (hardware.hbm_bandwidth * e.kv)
    p[LINEAR], p[INDEX_FLOP] = sum(w.token_flops for w in works) * flop, sum(w.index_flops for w in works) * flop
    p[STATE], p[INDEX_BYTE] = sum(w.state_bytes for w in works) * byte, sum(w.index_bytes for w in works) * byte
    p[WORKS] = len(works)
    for i, w in enumerate(works):
        row = (w.limit, float(w.window), w.pair_flops * flop, w.compressed_flops * flop, w.expand_flops * flop, w.kv_bytes * byte)
        p[SCALARS + i * WORK : SCALARS + (i + 1) * WORK] = row
    return StepTime(p, 3, (add, seconds))


def _merged(works: list[Work]) -> list[Work]:
    """One work for those of equal limits that are not decompressed: the kernel's loop is as short as can be."""
    out: dict[tuple[float, bool, float], Work] = {}
    for w in works:
        key = (w.limit, w.window, w.expand_flops)
        if key in out and not w.expand_flops:
            sums = {f.name: getattr(out[key], f.name) + getattr(w, f.name) for f in fields(Work) if f.name not in ("limit", "window")}
            w = Work(w.limit, w.window, **sums)
        out[key] = w
    return list(out.values())


def _products(p, a: Architecture, gpu: Hardware, weights: Weights, e: Efficiencies, tp: int, dp: int, ep: int) -> None:  # type: ignore[no-untyped-def]
    """Times of the products with weights."""
    hbm = gpu.hbm_bandwidth * e.hbm
    dense, head = a.dense_parameters.rank(tp), a.embedding_parameters / tp
    p[GEMM_FLOP], p[GEMM_BYTE] = 2.0 * dense / (gpu.flops(weights.dense) * e.gemm), dense * dtype_bytes(weights.dense) / hbm
    p[HEAD_FLOP], p[HEAD_BYTE] = 2.0 * head / (gpu.bf16 * e.gemm), head * dtype_bytes("bf16") / hbm
    if a.is_moe:
        share, ff = a.expert_share(tp, dp, ep), a.feed_forward
        p[MOE_FLOP] = 2.0 * dp * a.active_expert_parameters * share / (gpu.flops(weights.experts) * e.moe)
        p[MOE_BYTE] = a.expert_parameters * share / ff.experts * dtype_bytes(weights.experts) / hbm
        p[EXPERTS] = ff.experts
        p[LOG_MISS] = dp * log(1.0 - ff.top_k / ff.experts) if ff.top_k < ff.experts else NEVER_MISSED


def _token_and_step(p, a: Architecture, gpu: Hardware, e: Efficiencies, tp: int, dp: int) -> None:  # type: ignore[no-untyped-def]
    """Times of activations, collectives and overheads."""
    p[TOKEN] = e.ew * a.layers * a.hidden * 2.0 / (gpu.hbm_bandwidth * e.hbm)
    p[FIXED] = a.layers * e.t_layer + e.t_step
    if tp * dp > 1 and not gpu.scaleup:
        raise CatalogError(f"hardware {gpu.name!r} has no scale-up links (scaleup): tp x dp must be 1")
    if tp > 1:
        p[TOKEN] += 2.0 * a.layers * 2.0 * (tp - 1) / tp * a.hidden * 2.0 / (gpu.scaleup * e.link)
        p[FIXED] += 2.0 * a.layers * e.t_ar
    if dp > 1:
        ff = a.feed_forward
        p[TOKEN] += 2.0 * ff.moe_layers * ff.top_k * a.hidden * EXCHANGE_BYTES / (gpu.scaleup * e.link)
        p[FIXED] += 2.0 * ff.moe_layers * e.t_ar


@STEP_TIME.register("roofline", source="Williams et al. 2009; efficiencies fitted on aiconfigurator-core 0.12.0 and InferenceX")
@dataclass(frozen=True, slots=True)
class Roofline:
    """Compute, memory and communication of the model on the GPU.

    `scale` multiplies every step. `efficiencies` replaces some of those fitted for the model's family, by name.
    """

    scale: float = 1.0
    efficiencies: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise CatalogError(f"scale must be more than 0, got {self.scale}")
        for name in self.efficiencies:
            if name not in (known := [f.name for f in fields(Efficiencies)]):
                raise CatalogError(f"efficiencies: {name!r} is none of them{did_you_mean(name, known)}")
        replace(fitted("dense"), **self.efficiencies)  # refuses what no model can have

    def build(self, deployment: Deployment) -> StepTime:
        """The roofline of `deployment`."""
        d = deployment
        built = build_roofline(
            d.model.architecture,
            d.hardware,
            tp=d.tp,
            dp=d.dp,
            ep=d.ep,
            weight_dtype=d.weights,
            kv_dtype=d.kv_dtype,
            efficiencies=replace(fitted(d.model.architecture.family), **self.efficiencies),
        )
        p = built.params
        p[: len(TIMES)] *= self.scale
        p[SCALARS:].reshape(-1, WORK)[:, PAIR:] *= self.scale
        return built
