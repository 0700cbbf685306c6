"""Linear step time: seconds = base + per_prefill_token P + per_decode_seq D + per_context_token C.

D: requests that had computed their whole prompt and get one token; C: their tokens; P: all other scheduled tokens. The recorded
decisions of real engines were made under this formula.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.engine.step_time import STEP_TIME, Deployment, StepTime
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
    """Duration of the step, added from left to right."""
    return params[0] + params[1] * acc[0] + params[2] * acc[1] + params[3] * acc[2]


@STEP_TIME.register("linear", source="the formula of the recorded vLLM decisions")
@dataclass(frozen=True, slots=True)
class Linear:
    """Linear in prefill tokens, decoding requests and their context; all coefficients in seconds."""

    base: float
    per_prefill_token: float
    per_decode_seq: float
    per_context_token: float

    def build(self, deployment: Deployment | None = None) -> StepTime:
        """The model; it does not depend on what it runs on."""
        return StepTime(np.array([self.base, self.per_prefill_token, self.per_decode_seq, self.per_context_token]), 3, (add, seconds))
