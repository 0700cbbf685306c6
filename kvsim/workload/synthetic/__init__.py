"""Synthetic workloads: one generator a file, a frozen dataclass of parameters with `generate`."""

from __future__ import annotations

from typing import Protocol

from kvsim.registry import Registry
from kvsim.workload.workload import Workload


class Synthetic(Protocol):
    """What a registered generator offers; its fields are its parameters."""

    def generate(self, seed: int) -> Workload:
        """The workload of this seed: the same seed and parameters give the same arrays."""


SYNTHETIC = Registry("synthetic workload", "kvsim.workload.synthetic")
