"""The engines of a cluster as one process: they run ahead of the simulation's clock, never past what could still change a batch.

Law. No engine starts a step after the time of the next event of anybody else (`env.peek()`), so whatever that event sends is there before
the step; what happens in an engine is told at the time it happened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from kvsim.engine import fleet
from kvsim.engine.vllm import VllmEngine
from kvsim.jit import bundles, link


class Fleet:
    """`engines`, all with the same parts; `groups` [engines, 2]: from which to before which engine it steps with each.

    `tell(engine, at_s)` is called at the time at which engine number `engine` has something to tell.
    """

    def __init__(
        self, env: simpy.Environment, engines: Sequence[VllmEngine], groups: NDArray[np.int64], tell: Callable[[int, float], None]
    ) -> None:
        self.engines, self.calls = list(engines), 0
        self._env, self._tell = env, tell
        self._groups = groups
        self._told = np.full(len(engines) + 1, math.inf)  # when each has something to tell, and the first of these
        self._handles: list[tuple[Any, Any]] = []
        self._row: tuple[Any, Any] = (None, None)
        self._advance = link(fleet.advance, engines[0].parts)
        self._wake = env.event()

    def start(self) -> None:
        """Let the engines run."""
        self._env.process(self._run())

    def wake(self) -> None:
        """A request was sent: idle engines go on."""
        if not self._wake.triggered:
            self._wake.succeed()

    def replace(self, index: int, engine: VllmEngine) -> None:
        """Engine number `index` is gone, with whatever it had to tell; `engine` stands in its place."""
        self.engines[index] = engine
        self._told[index] = math.inf
        self._told[-1] = self._told[:-1].min()

    def _run(self) -> Generator[simpy.Event, None, None]:
        env, told = self._env, self._told
        while True:
            until = env.peek()
            if until > env.now:
                self._run_until(until)
            at = told.item(-1)
            if min(at, until) == math.inf:
                self._wake = env.event()
                yield self._wake
                continue
            yield env.timeout(max(min(at, until) - env.now, 0.0))
            if at <= until:
                for i in np.flatnonzero(told[:-1] <= at).tolist():
                    if told.item(i) <= at:
                        self._told[i] = math.inf
                        self._tell(i, at)
                told[-1] = told[:-1].min()

    def read_loads(self, running: NDArray[np.int64], waiting: NDArray[np.int64], usage: NDArray[np.float64]) -> None:
        """Fill the arrays [engines] (see `kvsim.engine.fleet.read_loads`)."""
        fleet.read_loads(self._row_of_handles()[0], running, waiting, usage)

    def _row_of_handles(self) -> tuple[Any, Any]:
        handles = [engine.handles() for engine in self.engines]
        if len(handles) != len(self._handles) or any(a is not b for a, b in zip(handles, self._handles, strict=True)):
            self._handles = handles
            self._row = bundles([e for e, _ in handles]), bundles([h for _, h in handles])
        return self._row

    def _run_until(self, until: float) -> None:
        while True:
            self.calls += 1
            stopped = int(self._advance(*self._row_of_handles(), self._groups, until, self._told))
            if not self.engines[stopped // fleet.N_REASONS].make_room(stopped % fleet.N_REASONS):
                return
