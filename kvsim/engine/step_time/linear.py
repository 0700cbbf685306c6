"""Linear step time: seconds = base + per_prefill_token P + per_decode_seq D + per_context_token C.

D: requests that had computed their whole prompt and get one token; C: their tokens; P: all other scheduled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.jit import kernel


@kernel
def add(params, acc, computed, new, prompt, total):  # type: ignore[no-untyped-def]
    """Count one scheduled request."""
    if computed >= prompt and new == 1:
        acc[1] += 1
        acc[2] += total
    else:
        acc[0] += new


@kernel
def seconds(params, acc):  # type: ignore[no-untyped-def]
    """Duration of the step."""
    return params[0] + params[1] * acc[0] + params[2] * acc[1] + params[3] * acc[2]


@dataclass(frozen=True)
class LinearStepTime:
    """Linear in prefill tokens, decoding requests and their context."""

    base: float
    per_prefill_token: float
    per_decode_seq: float
    per_context_token: float

    accumulators: int = 3

    @property
    def params(self) -> NDArray[np.float64]:
        """Coefficients in the kernel's order."""
        return np.array([self.base, self.per_prefill_token, self.per_decode_seq, self.per_context_token])

    @property
    def kernels(self) -> tuple[Any, Any]:
        """(add, seconds)."""
        return add, seconds
