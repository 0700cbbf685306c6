"""Reading the log-spaced histograms that kernels fill (times between tokens, waits for a link).

Bin i counts values in [FIRST_EDGE_S * RATIO**i, FIRST_EDGE_S * RATIO**(i + 1)) seconds, up to about 1,600 s; the outer bins are open.
A value stands for the geometric middle of its bin, so what is read is within half a percent of the value that was counted. The first
bin holds everything under 10.1 us, waits of nothing above all: it reads as 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsim.bins import FIRST_EDGE_S, LOG_RATIO, N_BINS, RATIO

__all__ = ["FIRST_EDGE_S", "LOG_RATIO", "N_BINS", "RATIO", "mean", "percentile"]

Counts = NDArray[np.int64]


def percentile(counts: Counts, q: float) -> float | None:
    """The `q`-th percentile (0 to 100) in seconds, as `numpy.percentile` defines it: linear between order statistics. None when empty."""
    total = int(counts.sum())
    if total == 0:
        return None
    rank = q / 100 * (total - 1)
    low = int(rank)
    below = np.cumsum(counts)
    middles = _middles()
    first, second = (middles[np.searchsorted(below, min(k, total - 1), side="right")] for k in (low, low + 1))
    return float(first + (second - first) * (rank - low))


def mean(counts: Counts) -> float | None:
    """The mean in seconds; None when empty."""
    total = int(counts.sum())
    return float(counts @ _middles() / total) if total else None


def _middles() -> NDArray[np.float64]:
    middles: NDArray[np.float64] = FIRST_EDGE_S * np.power(RATIO, np.arange(N_BINS) + 0.5)
    middles[0] = 0.0
    return middles
