"""Roofline step time: what the GPUs must compute and move, at stated efficiencies, per rank.

Law. T = T_gemm + T_head + T_moe + T_attn + T_elem + T_comm + L t_layer + t_step. Each of the first four is a smooth maximum
(a^3 + b^3)^(1/3) of its compute time and its memory time, for T tokens in the step, S of them sampled:
- T_gemm: 2 T P_dense / tp flops against the weights once; T_head: the vocabulary, in bf16, for sampled tokens only;
- T_moe: 2 T k P_expert n_moe skew / tp flops against the experts touched, E (1 - (1 - k/E)^T) of each layer;
- T_attn: over layers of each kind, pairs of query and key (a cached prefix still costs its pairs; windows and top-k limit them; MLA
  decodes in its latent space), and the KV bytes read: a decode reads its context, a prefill chunk reads prefix and chunk once;
- T_elem: activations, T hidden 2 L bytes ew times; T_comm: two all-reduces a layer of T hidden 2 bytes, each 2 (tp - 1)/tp of it and t_ar.

Not modelled: overlap between the terms, pipeline stages, kernels' tile effects. Source: the roofline that aiconfigurator-core and
BLIS share in outline; efficiencies fitted per family (`efficiencies.yaml`, docs/step-time.md).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache

import numpy as np

from kvsim.catalog import FOLDER, read_section
from kvsim.catalog.architecture import DTYPE_BYTES, Group
from kvsim.engine.step_time import STEP_TIME, Deployment, StepTime
from kvsim.jit import kernel

# Places in `params`: scalars first, then GROUP numbers for each kind of attention.
(GEMM_FLOP, GEMM_BYTE, HEAD_FLOP, HEAD_BYTE, MOE_FLOP, MOE_BYTE, EXPERTS, MISS, ATTN_FLOP, KV_BYTE, TOKEN, FIXED, GROUPS) = range(13)
SCALARS = 13
(LIMIT, PREFILL, DECODE, KV, INDEX_FLOP, INDEX_KV, PER_TOKEN, PER_REQUEST) = range(8)
GROUP = 8
TOKENS, SAMPLED, FLOPS, KV_READ = range(4)


@kernel
def limited(first, last, limit):  # type: ignore[no-untyped-def]
    """Sum of min(i, limit) for i = first + 1 .. last; no limit when it is 0."""
    whole = (first + last + 1.0) * (last - first) / 2.0
    if limit == 0.0 or last <= limit:
        return whole
    if first >= limit:
        return (last - first) * limit
    return (first + limit + 1.0) * (limit - first) / 2.0 + (last - limit) * limit


@kernel
def add(params, acc, computed, new, prompt, total):  # type: ignore[no-untyped-def]
    """Sum up one scheduled request."""
    acc[TOKENS] += new
    if computed + new >= total:
        acc[SAMPLED] += 1
    context = float(computed + new)
    for g in range(int(params[GROUPS])):
        at = SCALARS + g * GROUP
        limit = params[at + LIMIT]
        pairs = limited(float(computed), context, limit)
        seen = context if limit == 0.0 else min(context, limit + new - 1.0)
        acc[FLOPS] += pairs * (params[at + DECODE] if new == 1 else params[at + PREFILL]) + new * params[at + PER_TOKEN]
        acc[KV_READ] += seen * params[at + KV] + params[at + PER_REQUEST]
        if params[at + INDEX_FLOP] > 0.0:
            acc[FLOPS] += limited(float(computed), context, 0.0) * params[at + INDEX_FLOP]
            acc[KV_READ] += context * params[at + INDEX_KV]


@kernel
def either(a, b):  # type: ignore[no-untyped-def]
    """Smooth maximum of a compute time and a memory time."""
    return (a * a * a + b * b * b) ** (1.0 / 3.0)


@kernel
def seconds(params, acc):  # type: ignore[no-untyped-def]
    """Duration of the step."""
    tokens, sampled = acc[TOKENS], acc[SAMPLED]
    out = either(tokens * params[GEMM_FLOP], params[GEMM_BYTE]) + params[FIXED] + tokens * params[TOKEN]
    if sampled > 0.0:
        out += either(sampled * params[HEAD_FLOP], params[HEAD_BYTE])
    if params[EXPERTS] > 0.0:
        touched = params[EXPERTS] * (1.0 - params[MISS] ** tokens)
        out += either(tokens * params[MOE_FLOP], touched * params[MOE_BYTE])
    return out + either(acc[FLOPS] * params[ATTN_FLOP], acc[KV_READ] * params[KV_BYTE])


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Shares of peak that the parts reach, and seconds that nothing hides. `ew`: passes over the activations; `skew`: of experts' load."""

    gemm: float
    hbm: float
    attn: float
    kv: float
    link: float
    t_ar: float
    t_layer: float
    t_step: float
    ew: float
    skew: float
    moe: float


@cache
def efficiencies(family: str) -> Efficiencies:
    """The fitted set of a model family."""
    entry, _ = read_section(FOLDER / "efficiencies.yaml")[family]
    return Efficiencies(**{f.name: float(entry[f.name]) for f in fields(Efficiencies)})


def _group(g: Group, kv_dtype: str, tp: int) -> list[float]:
    b, heads = DTYPE_BYTES[kv_dtype], g.heads / tp
    out = [0.0] * GROUP
    if g.kind == "linear":
        out[PER_TOKEN] = 8.0 * heads * g.qk_dim * g.v_dim * g.layers
        out[PER_REQUEST] = 2.0 * g.state_bytes(b, tp)
        return out
    out[LIMIT] = float(g.limit)
    out[PREFILL] = 2.0 * (g.qk_dim + g.v_dim) * heads * g.layers
    out[DECODE] = 2.0 * (2 * g.latent + g.rope) * heads * g.layers if g.latent else out[PREFILL]
    index = g.index_layers * g.index_dim * b
    out[KV] = g.kv_bytes_per_token(b, tp) - (index if g.kind in ("dsa", "msa") else 0.0)
    out[INDEX_FLOP] = 2.0 * g.index_heads * g.index_dim * g.index_layers / tp
    out[INDEX_KV] = index
    return out


def build(deployment: Deployment, e: Efficiencies) -> StepTime:
    """The roofline of `deployment` at efficiencies `e`."""
    a, gpu, tp = deployment.model.architecture, deployment.hardware, deployment.tp
    dense_dtype = "bf16" if deployment.weight_dtype == "fp4" else deployment.weight_dtype
    hbm = gpu.hbm_bandwidth * e.hbm
    p = np.zeros(SCALARS + GROUP * len(a.groups))
    p[GEMM_FLOP] = 2.0 * a.dense_parameters / tp / (gpu.flops(dense_dtype) * e.gemm)
    p[GEMM_BYTE] = a.dense_parameters * DTYPE_BYTES[dense_dtype] / tp / hbm
    head = a.vocab * a.hidden / tp
    p[HEAD_FLOP], p[HEAD_BYTE] = 2.0 * head / (gpu.flops("bf16") * e.gemm), 2.0 * head / hbm
    if a.experts:
        active = a.experts_per_token * a.expert_parameters * a.moe_layers
        p[MOE_FLOP] = 2.0 * active / tp * e.skew / (gpu.flops(deployment.weight_dtype) * e.moe)
        p[MOE_BYTE] = a.expert_parameters * DTYPE_BYTES[deployment.weight_dtype] * a.moe_layers / tp / hbm
        p[EXPERTS], p[MISS] = a.experts, 1.0 - a.experts_per_token / a.experts
    p[ATTN_FLOP], p[KV_BYTE] = 1.0 / (gpu.flops("bf16") * e.attn), 1.0 / (gpu.hbm_bandwidth * e.kv)
    p[TOKEN] = e.ew * a.hidden * 2.0 * a.layers / hbm
    p[FIXED] = a.layers * e.t_layer + e.t_step
    if tp > 1:
        p[TOKEN] += 2.0 * a.layers * 2.0 * (tp - 1) / tp * a.hidden * 2.0 / (gpu.scaleup * e.link)
        p[FIXED] += 2.0 * a.layers * e.t_ar
    p[GROUPS] = len(a.groups)
    for i, g in enumerate(a.groups):
        p[SCALARS + i * GROUP : SCALARS + (i + 1) * GROUP] = _group(g, deployment.kv_dtype, tp)
    return StepTime(p, 4, (add, seconds))


@STEP_TIME.register("roofline", source="physics as stated in the module; efficiencies fitted on aiconfigurator-core 0.12.0 tables")
@dataclass(frozen=True, slots=True)
class Roofline:
    """Compute, memory and communication of the model on the GPU at fitted efficiencies; `scale` multiplies every step."""

    scale: float = 1.0

    def build(self, deployment: Deployment) -> StepTime:
        """The roofline of `deployment` with its family's efficiencies."""
        base = build(deployment, efficiencies(deployment.model.architecture.family))
        times = (GEMM_FLOP, GEMM_BYTE, HEAD_FLOP, HEAD_BYTE, MOE_FLOP, MOE_BYTE, ATTN_FLOP, KV_BYTE, TOKEN, FIXED)
        base.params[list(times)] *= self.scale
        return base
