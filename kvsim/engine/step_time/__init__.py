"""Step-time models, one a file: how long a scheduler step of a given batch takes.

A registered class is a frozen dataclass of the parameters a scenario may set; `build(deployment)` makes the `StepTime` of one engine:
`params`, the length `accumulators` of the array a step is summed up in, and `kernels`, the pair linked into the engine's loop:

- `add(params, acc, computed, new, prompt, total)`, once for each scheduled request: `computed` tokens in the cache before the step, `new`
  scheduled now, `prompt` its prompt, `total` prompt and output so far (it samples a token iff computed + new >= total); `acc` starts at 0;
- `seconds(params, acc)`: the step's duration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.catalog import Hardware, Model, Weights
from kvsim.registry import Registry

STEP_TIME = Registry("step-time model", "kvsim.engine.step_time")


@dataclass(frozen=True, slots=True)
class Deployment:
    """What an engine runs on: the model, the GPU, how many share each layer, and the types of weights and KV.

    `ep`: ranks that whole experts are spread over, 1: every expert is sharded. `dp`: engines that attend apart and share the experts.
    `weight_dtype` is the model's own (`auto`) or what it is asked to be served in.
    """

    model: Model
    hardware: Hardware
    tp: int
    ep: int
    weight_dtype: str
    kv_dtype: str
    dp: int = 1

    @property
    def weights(self) -> Weights:
        """Formats of the weights. Raises `CatalogError`."""
        return Weights.of(self.model.weights).asked_for(self.weight_dtype, moe=self.model.architecture.is_moe)


@dataclass(frozen=True, slots=True, eq=False)
class StepTime:
    """A step-time model of one engine, as the engine's loop takes it."""

    params: NDArray[np.float64]
    accumulators: int
    kernels: tuple[Any, Any]

    def step(self, batch: Iterable[tuple[int, int, int, int]]) -> float:
        """Seconds of a step over (computed, new, prompt, total) of each request."""
        add, seconds = self.kernels
        acc = np.zeros(self.accumulators)
        for request in batch:
            add(self.params, acc, *request)
        return float(seconds(self.params, acc))
