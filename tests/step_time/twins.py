"""The roofline in plain Python, pair by pair: what its kernels must give."""

from __future__ import annotations

from math import sqrt
from typing import Any

from kvsim.engine.step_time import roofline as r


def attention(p: Any, computed: int, new: int) -> float:
    """Seconds of attention of one request: every query looks at itself and what is before it, as far as each kind of layer lets it."""
    compute = new * p[r.LINEAR] + sum(computed + i for i in range(1, new + 1)) * p[r.INDEX_FLOP]
    memory = p[r.STATE] + (computed + new) * p[r.INDEX_BYTE]
    for k in range(int(p[r.WORKS])):
        limit, window, pair, compressed, expand, kv = p[r.SCALARS + k * r.WORK : r.SCALARS + (k + 1) * r.WORK]
        pairs = sum(min(computed + i, limit) for i in range(1, new + 1))
        if window:
            seen = len({key for i in range(1, new + 1) for key in range(computed + i, 0, -1) if computed + i - key < limit})
        else:
            seen = min(pairs, computed + new)
        compute += min(pairs * pair + computed * expand, pairs * compressed)
        memory += seen * kv
    return sqrt(float(compute**2 + memory**2))


def step(p: Any, batch: list[tuple[int, int, int, int]]) -> float:
    """Seconds of a step."""
    tokens = sum(new for _, new, _, _ in batch)
    sampled = sum(computed + new >= total for computed, new, _, total in batch)
    out = sqrt((tokens * p[r.GEMM_FLOP]) ** 2 + p[r.GEMM_BYTE] ** 2) + tokens * p[r.TOKEN] + p[r.FIXED]
    out += sum(attention(p, computed, new) for computed, new, _, _ in batch)
    if sampled:
        out += sqrt((sampled * p[r.HEAD_FLOP]) ** 2 + p[r.HEAD_BYTE] ** 2)
    if p[r.EXPERTS]:
        missed = 2.718281828459045 ** (p[r.LOG_MISS] * tokens)
        out += sqrt((tokens * p[r.MOE_FLOP]) ** 2 + (p[r.EXPERTS] * (1 - missed) * p[r.MOE_BYTE]) ** 2)
    return float(out)
