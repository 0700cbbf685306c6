"""Closed loop: so many live sessions; one that ends is followed at once by the next of the trace.

Every pass over the trace is a new one: its ids are shifted, so that nobody hits what an earlier pass of the same trace left behind.
Sessions come in the trace's order, the same for every concurrency.
"""

from __future__ import annotations

import simpy

from kvsim.workload.clients import Server
from kvsim.workload.clients.plan import SessionPlan
from kvsim.workload.clients.replay import Replay, Tree
from kvsim.workload.workload import Workload


class ClosedLoop(Replay):
    """`lanes` live sessions; `budget` sessions in all (None: for ever). The run stops `duration_s` after the warm-up (None: never)."""

    def __init__(
        self,
        env: simpy.Environment,
        workload: Workload,
        plan: SessionPlan,
        server: Server,
        lanes: int,
        budget: int | None,
        warmup_s: float = 0.0,
        duration_s: float | None = None,
    ) -> None:
        super().__init__(env, workload, plan, server)
        self._lanes, self._budget, self._window = lanes, budget, (warmup_s, duration_s)
        self._begun = 0

    def start(self) -> None:
        """All lanes begin at time 0."""
        self.measure(*self._window)
        for lane in range(self._lanes):
            self._next(lane, 0.0)

    def tree_ended(self, tree: Tree, at_s: float) -> None:
        """The lane takes the next session."""
        self._next(tree.lane, at_s)

    def _next(self, lane: int, at_s: float) -> None:
        instance = self._begun
        if self._budget is not None and instance >= self._budget:
            return
        self._begun += 1
        passed, session = divmod(instance, self.workload.sessions)
        self.begin(session, instance, lane, passed * self.workload.unique_ids, at_s)
