"""Open loop: sessions begin at their time, whatever the state of the cluster.

`recorded`: at the times of the trace, each multiplied by `time_scale` (2: half as fast). Where the trace has a time for every request
(Mooncake), each is sent at its own; else a session's first turn is, and later turns come their delay after the turn before.
`poisson`: `rate` sessions a second in the trace's order, passes over the trace with new block ids; later turns as above.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import Literal

import numpy as np
import simpy

from kvsim.errors import TraceError
from kvsim.workload.clients import Server
from kvsim.workload.clients.plan import SessionPlan
from kvsim.workload.clients.replay import Replay, Script, Tree
from kvsim.workload.workload import Workload


class OpenLoop(Replay):
    """At most `budget` sessions (None: without end, or those of the trace where arrivals are recorded). `rate`: sessions a second."""

    def __init__(
        self,
        env: simpy.Environment,
        workload: Workload,
        plan: SessionPlan,
        server: Server,
        *,
        arrivals: Literal["recorded", "poisson"] = "recorded",
        rate: float | None = None,
        time_scale: float = 1.0,
        rng: np.random.Generator,
        warmup_s: float = 0.0,
        duration_s: float | None = None,
        budget: int | None = None,
    ) -> None:
        super().__init__(env, workload, plan, server)
        self._rate, self._scale, self._rng, self._window = rate, time_scale, rng, (warmup_s, duration_s)
        self._recorded = arrivals == "recorded"
        self._budget = workload.sessions if budget is None and self._recorded else budget
        self._each = self._recorded and bool(np.isfinite(workload.arrival_s).all())
        if self._recorded and not np.isfinite(workload.session_start_s).all():
            raise TraceError(
                f"{workload.name}: its sessions have no recorded starts: replay it with arrivals: poisson, or in a closed loop"
            )

        self._order = np.argsort(workload.session_start_s, kind="stable")

    def start(self) -> None:
        """Let sessions arrive."""
        self.measure(*self._window)
        self.env.process(self._arrive())

    def tree_ended(self, tree: Tree, at_s: float) -> None:
        """Nothing follows: the next session comes at its own time."""

    def script(self, session: int) -> Script:
        """As recorded where each request has a time of its own: nothing waits for anything."""
        if not self._each:
            return super().script(session)
        if session not in self._scripts:
            w, first, last = self.workload, int(self.plan.first[session]), int(self.plan.first[session + 1])
            after = (w.arrival_s[first:last] - w.session_start_s[session]) * self._scale
            starts = [(first + i, float(s)) for i, s in enumerate(after)]
            self._scripts[session] = Script(first, [[] for _ in starts], [0] * len(starts), starts)
        return self._scripts[session]

    def _arrive(self) -> Generator[simpy.Event, None, None]:
        for instance, at_s in enumerate(self._times()):
            if self._budget is not None and instance >= self._budget:
                return
            yield self.env.timeout(max(at_s - self.env.now, 0.0))
            passed, place = divmod(instance, self.workload.sessions)
            session = int(self._order[place]) if self._recorded else place
            self.begin(session, instance, instance, passed * self.workload.unique_ids, at_s)

    def _times(self) -> Iterator[float]:
        """When sessions begin, in order."""
        if self._recorded:
            yield from (np.sort(self.workload.session_start_s) * self._scale).tolist()
            return
        assert self._rate is not None
        at_s = 0.0
        while at_s < math.inf:
            at_s += float(self._rng.exponential(1.0 / self._rate))
            yield at_s
