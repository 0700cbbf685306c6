"""The AgentX benchmark's own rules of replay.

- Concurrency counts live session trees, one a lane. Sub-agents spawn and join and take no lane. A lane is free when its root and all
  descendants have ended; it takes the next session of the sampler that all lanes share (in the trace's order, round and round), from
  its first turn. Sessions that ever exceed `max_context_tokens` are left out first, then the rest is cut to `max_sessions`.
- The first tree of a lane starts in its middle, at t* = 25 to 75 % of its recorded time, drawn from a generator seeded with the first eight
  bytes of sha256("seed:session:lane"). Streams that are alive there (a request before t*, another at or after it) send their last request
  before t* again as a primer of one token.
- When a lane's primers have ended it sends ten further one-token requests, one after the other without delay: its primers in turn.
- When all lanes are done with that, 1800 s after the start at the latest, the measured window opens. Every stream goes on with its next
  request, so long after the opening as it was recorded after t*, less the smallest such time over all lanes; later turns come their delay
  after what they wait for.
- Idle time is cut: a tree that has nothing in flight and nothing due for 300 s has all its timers moved together, so that the first is due
  in 300 s; if nothing is in flight anywhere and nothing due for 10 s, all timers of all trees are moved.
- Every tree has block ids of its own: lanes and replays share nothing.
- Answers are as long as recorded; requests without output ask for one token (the loader makes them so).

Where the recording has no times they are made of the delays, answers taking no time. Source: AgentX harness 1.0.12, scenario `agentx`
(behaviour); which requests the ten are is not published.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import simpy
from numpy.typing import NDArray

from kvsim.errors import TraceError
from kvsim.workload.clients import Server, Turn
from kvsim.workload.clients.plan import SessionPlan
from kvsim.workload.clients.replay import Replay, Tree
from kvsim.workload.workload import Workload

NEVER = 1 << 30  # more turns than any waits for: one that is past is not sent again
PRIMER_NUMBERS = 1 << 40  # numbers of one-token requests begin here, beyond those of turns


@dataclass(slots=True, eq=False)
class _Lane:
    """A lane before the window: its session, where it starts, and the one-token requests it still sends."""

    session: int
    start_s: float
    primers: list[int]
    open_primers: int = 0
    extra: int = 0
    done: bool = False


class AgentX(Replay):
    """`lanes` live trees for `duration_s` after the warm-up. Raises `TraceError` where the filters leave no session."""

    def __init__(
        self,
        env: simpy.Environment,
        workload: Workload,
        plan: SessionPlan,
        server: Server,
        lanes: int,
        seed: int,
        *,
        duration_s: float | None = 3600.0,
        max_context_tokens: int | None = None,
        max_sessions: int | None = None,
        start_between: tuple[float, float] = (0.25, 0.75),
        extra_requests: int = 10,
        drain_s: float = 1800.0,
        tree_idle_s: float = 300.0,
        system_idle_s: float = 10.0,
    ) -> None:
        super().__init__(env, workload, plan, server)
        self._seed, self._duration_s, self._between, self._extra = seed, duration_s, start_between, extra_requests
        self._drain_s, self._tree_idle_s, self._system_idle_s = drain_s, tree_idle_s, system_idle_s
        peak = np.maximum.reduceat(workload.input_tokens + workload.output_tokens, plan.first[:-1])
        fits = np.flatnonzero(peak <= (max_context_tokens or math.inf))[:max_sessions]
        if not fits.size:
            raise TraceError(f"{workload.name}: every session exceeds the context of {max_context_tokens:,} tokens: nothing to replay")
        self._sessions = fits.tolist()
        self._recorded_s = recorded_starts(workload, plan)
        self._lanes = [self._lane(i) for i in range(lanes)]
        self._primer_lane: dict[int, int] = {}
        self._begun, self._primed, self._open, self._in_flight = lanes, 0, False, 0

    def start(self) -> None:
        """Send the primers; `drain_s` later at the latest the window opens."""
        for i, lane in enumerate(self._lanes):
            for row in lane.primers:
                self._prime(i, row)
            self._go_on(i)
        self.env.timeout(self._drain_s).callbacks.append(lambda _: self._open_window())

    def ended(self, number: int, at_s: float) -> None:
        """See `kvsim.workload.clients.Client`."""
        if number >= PRIMER_NUMBERS:
            lane = self._primer_lane.pop(number)
            self._lanes[lane].open_primers -= 1
            self._go_on(lane)
            return
        self._in_flight -= 1
        tree = self.trees[number // self.workload.requests]
        super().ended(number, at_s)
        if tree.left:
            self._cut_idle(tree, at_s)
        self._cut_all_idle(at_s)

    def tree_ended(self, tree: Tree, at_s: float) -> None:
        """The lane takes the next session, from its start."""
        fresh = self.begin(*self._next(), tree.lane, self._id_offset(self._begun - 1), at_s)
        self._cut_idle(fresh, at_s)

    def sent(self, tree: Tree) -> None:
        """See `Replay.sent`."""
        self._in_flight += 1

    def _next(self) -> tuple[int, int]:
        """(session, instance) that comes next."""
        instance = self._begun
        self._begun += 1
        return self._sessions[instance % len(self._sessions)], instance

    def _id_offset(self, instance: int) -> int:
        """No two instances share an id; where the ids of two sessions differ anyhow, only replays of the same one need others."""
        w = self.workload
        return (instance // len(self._sessions) if w.scope == "session" else instance) * w.unique_ids

    def _rows(self, session: int) -> NDArray[np.int64]:
        return np.arange(self.plan.first[session], self.plan.first[session + 1])

    def _lane(self, lane: int) -> _Lane:
        session = self._sessions[lane % len(self._sessions)]
        w, rows = self.workload, self._rows(session)
        digest = hashlib.sha256(f"{self._seed}:{w.session_name[session]}:{lane}".encode()).digest()
        share = np.random.default_rng(int.from_bytes(digest[:8], "big")).uniform(*self._between)
        starts = self._recorded_s[rows]
        start_s = float(share * starts.max())
        before = starts < start_s
        primers = []
        for stream in np.unique(w.stream[rows]).tolist():
            own = w.stream[rows] == stream
            if (own & before).any() and (own & ~before).any():
                primers.append(int(rows[own & before][-1]))
        return _Lane(session, start_s, primers, extra=self._extra if primers else 0)

    def _prime(self, lane: int, row: int) -> None:
        number = PRIMER_NUMBERS + self._primed
        self._primed += 1
        self._primer_lane[number] = lane
        self._lanes[lane].open_primers += 1
        self.server.send(Turn(number, row, lane, lane, self._id_offset(lane), 1, self.env.now))

    def _go_on(self, lane: int) -> None:
        """The lane sends its next one-token request if it has one, once those before it have ended."""
        state = self._lanes[lane]
        if self._open or state.open_primers:
            return
        if state.extra:
            self._prime(lane, state.primers[(self._extra - state.extra) % len(state.primers)])
            state.extra -= 1
            return
        state.done = True
        if all(each.done for each in self._lanes):
            self._open_window()

    def _open_window(self) -> None:
        if self._open:
            return
        self._open = True
        now = self.env.now
        self.server.open_window()
        if self._duration_s is not None:
            self.env.timeout(self._duration_s).callbacks.append(lambda _: self.server.stop())
        resumed = [self._resume(i, lane) for i, lane in enumerate(self._lanes)]
        least = min((offset for _, due in resumed for _, offset in due), default=0.0)
        for tree, due in resumed:
            for row, offset_s in due:
                self.set_due(tree, row, now + (offset_s - least))
        for tree, _ in resumed:
            self._cut_idle(tree, now)
        self._cut_all_idle(now)

    def _resume(self, lane: int, state: _Lane) -> tuple[Tree, list[tuple[int, float]]]:
        """The tree of a lane as it stands at its start, and what is due so long after it."""
        script, rows = self.script(state.session), self._rows(state.session)
        past = self._recorded_s[rows] < state.start_s
        tree = Tree(lane, lane, self._id_offset(lane), script, script.waits.copy(), [-math.inf] * len(rows), int((~past).sum()))
        self.trees[lane] = tree
        for i in np.flatnonzero(past).tolist():
            for follower, _ in script.followers[i]:
                tree.waits[follower - script.first] -= 1
        ahead = [i for i in np.flatnonzero(~past).tolist() if tree.waits[i] == 0]
        for i in np.flatnonzero(past).tolist():
            tree.waits[i] = NEVER
        return tree, [(script.first + i, float(self._recorded_s[rows[i]]) - state.start_s) for i in ahead]

    def _cut_idle(self, tree: Tree, now_s: float) -> None:
        if tree.flying == 0 and tree.due:
            self._move(tree, min(tree.due.values()) - (now_s + self._tree_idle_s))

    def _cut_all_idle(self, now_s: float) -> None:
        if self._in_flight:
            return
        first = min((due for tree in self.trees.values() for due in tree.due.values()), default=math.inf)
        for tree in list(self.trees.values()):
            self._move(tree, first - (now_s + self._system_idle_s))

    def _move(self, tree: Tree, earlier_s: float) -> None:
        """All timers of `tree` are due so much earlier; not later."""
        if 0.0 < earlier_s < math.inf:
            for number, due_s in list(tree.due.items()):
                self.set_due(tree, number % self.workload.requests, due_s - earlier_s)


def recorded_starts(workload: Workload, plan: SessionPlan) -> NDArray[np.float64]:
    """[n] When each request started, since its session began; from the delays where the trace doesn't tell, answers taking no time."""
    starts = workload.recorded_start_s
    if np.isfinite(starts).all():
        return starts
    out = np.where(np.isnan(plan.start_s), 0.0, plan.start_s)
    waits = np.zeros(workload.requests, np.int64)
    np.add.at(waits, plan.target, 1)
    followers: dict[int, list[tuple[int, float]]] = {}
    for target, on, delay_s in zip(plan.target.tolist(), plan.on.tolist(), plan.delay_s.tolist(), strict=True):
        followers.setdefault(on, []).append((target, delay_s))
    ready = np.flatnonzero(waits == 0).tolist()
    while ready:
        row = ready.pop()
        for target, delay_s in followers.get(row, ()):
            out[target] = max(out[target], out[row] + delay_s)
            waits[target] -= 1
            if waits[target] == 0:
                ready.append(target)
    return out
