"""Closed loop: N live sessions; a session that ends is followed at once by the next one of the trace.

Every pass over the trace is a new one: its ids are shifted, so that nobody hits what an earlier pass of the same trace left behind.
Sessions come in the trace's order, the same for every concurrency.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from kvsim.workload.clients.plan import SessionPlan
from kvsim.workload.workload import Workload


class Server(Protocol):
    """Where a client's sessions are served: takes a whole session's requests and the edges between them."""

    def enter(self, session: int, instance: int, at_s: float) -> None:
        """Session number `session` of the workload begins at `at_s`, as instance `instance`."""


@dataclass(slots=True)
class ClosedLoop:
    """`lanes` live sessions over `workload`; `budget` sessions at most in all (None: for ever)."""

    workload: Workload
    plan: SessionPlan
    server: Server
    lanes: int
    budget: int | None
    sessions: list[int] = field(default_factory=list)  # of each instance, its session ...
    lane: list[int] = field(default_factory=list)  # ... its lane ...
    open_streams: list[int] = field(default_factory=list)  # ... and its streams that haven't ended
    ended: int = 0

    def start(self) -> None:
        """All lanes begin at time 0."""
        for lane in range(self.lanes):
            self._begin(lane, 0.0)

    def stream_ended(self, instance: int, at_s: float) -> None:
        """The last request of one of the instance's streams ended; the last stream ends the session, and its lane takes the next."""
        self.open_streams[instance] -= 1
        if self.open_streams[instance] == 0:
            self.ended += 1
            self._begin(self.lane[instance], at_s)

    def _begin(self, lane: int, at_s: float) -> None:
        instance = len(self.sessions)
        if self.budget is not None and instance >= self.budget:
            return
        session = instance % self.workload.sessions
        first, last = self.plan.first[session], self.plan.first[session + 1]
        self.sessions.append(session)
        self.lane.append(lane)
        self.open_streams.append(int(self.plan.last_of_stream[first:last].sum()))
        self.server.enter(session, instance, at_s)

    def id_offset(self, instance: int) -> int:
        """What the ids of an instance are shifted by."""
        return instance // self.workload.sessions * self.workload.unique_ids
