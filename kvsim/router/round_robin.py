"""Round-robin: every worker in turn."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.router import ROUTER, Arrival, Router, Setting, Workers


class RoundRobinRouter(Router):
    """Goes around; a worker that is down is passed over."""

    def __init__(self, workers: int) -> None:
        self._workers, self._next = workers, 0

    def choose(self, arrival: Arrival, workers: Workers) -> int:
        """See `Router`."""
        worker = self._next
        while not workers.alive[worker]:
            worker = (worker + 1) % self._workers
        self._next = (worker + 1) % self._workers
        return worker


@ROUTER.register("round-robin", source="sglang-router 0.3.2 and Dynamo 1.6.1, round_robin")
@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Every worker in turn, whatever its load and caches."""

    def build(self, setting: Setting) -> Router:
        """The router of one run."""
        return RoundRobinRouter(setting.workers)
