"""A node as a process: an engine that runs ahead of the simulation's clock, never past what could still change its batch.

Law. The engine starts no step after the time of the next event of anybody else (`env.peek()`), so whatever that event submits is there
before the step; what ends in the engine is told to others at the time it ended. Nodes that stand at the same time go in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

import simpy

from kvsim.engine.state import NOTIFY
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
        while engine.clock < self.until_s and env.now < self.until_s:
            # At least one step from now on: of nodes that stand at the same time, each takes its turn.
            horizon = max(env.peek(), math.nextafter(env.now, math.inf))
            reason = engine.advance(min(horizon, self.until_s))
            due = engine.clock if reason == NOTIFY else min(engine.next_step_s, self.until_s)
            self._wake = env.event()
            if due == math.inf:
                yield self._wake
            elif reason == NOTIFY or not engine.idle:
                yield env.timeout(max(due - env.now, 0.0))
            else:
                yield env.timeout(max(due - env.now, 0.0)) | self._wake
            ended = engine.harvest()
            if len(ended):
                self.on_end(self, ended)
