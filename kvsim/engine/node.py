"""A node as a process: an engine that runs ahead of the simulation's clock, never past what could still change its batch.

Law. The engine starts no step at or after the time of the next event of anybody else (`env.peek()`), so whatever that event submits is
there before the step; what ends in the engine is told to others at the time it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy

from kvsim.engine.state import IDLE
from kvsim.engine.vllm import VllmEngine


class Node:
    """One engine under simpy. `on_end(node, rows)` gets the rows that ended (recarray of `REQUEST`), at the simulated time of the last."""

    def __init__(self, env: simpy.Environment, engine: VllmEngine, until_s: float, on_end: Callable[[Node, Any], None]) -> None:
        self.env, self.engine, self.until_s, self.on_end = env, engine, until_s, on_end
        self._wake = env.event()
        self.process = env.process(self._run())

    def wake(self) -> None:
        """New requests were submitted: an idle engine goes on."""
        if not self._wake.triggered:
            self._wake.succeed()

    def _run(self) -> Generator[simpy.Event, None, None]:
        env, engine = self.env, self.engine
        while engine.clock < self.until_s:
            reason = engine.advance(min(env.peek(), self.until_s))
            if engine.clock > env.now or reason != IDLE:
                yield env.timeout(max(engine.clock - env.now, 0.0))
            ended = engine.harvest()
            if len(ended):
                self.on_end(self, ended)
            elif reason == IDLE:
                self._wake = env.event()
                yield self._wake
