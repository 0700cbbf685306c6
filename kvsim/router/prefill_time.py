"""Seconds of prefill as a router estimates them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsim.router import Arrival, Setting


def prefill_seconds(setting: Setting, arrival: Arrival, cached: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds a worker alone would take to prefill `arrival` behind each number of `cached` blocks; at least one token is computed.

    The estimate is asked for once for each different number: of many workers most have nothing cached.
    """
    blocks, of = np.unique(cached, return_inverse=True)
    tokens = np.minimum(blocks * arrival.block_tokens, arrival.prompt_tokens - 1).tolist()
    seconds = [setting.prefill_s(arrival.prompt_tokens - n, n) for n in tokens]
    return np.array(seconds)[of]
