"""Replaying session trees turn by turn: what waits for what, and until when.

Law. A turn is due when all it waits for has ended: at the largest of (end + delay) over its edges, to the last bit; turns that wait for
nothing are due so long after their session began. Turns due at the same time go in order of their numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
import simpy

from kvsim.workload.clients import Server, Turn
from kvsim.workload.clients.plan import SessionPlan
from kvsim.workload.workload import Workload


@dataclass(frozen=True, slots=True)
class Script:
    """A session's rows, from `first` on: for each the rows that wait for it with their delays, how many it waits for, its own start."""

    first: int
    followers: list[list[tuple[int, float]]]
    waits: list[int]
    starts: list[tuple[int, float]]


@dataclass(slots=True, eq=False)
class Tree:
    """A live replay of a session. `due`: turns that wait for their time; `flying`: sent, not ended; `left`: not ended."""

    instance: int
    lane: int
    id_offset: int
    script: Script
    waits: list[int]
    ready: list[float]
    left: int
    flying: int = 0
    due: dict[int, float] = field(default_factory=dict)


class Replay:
    """Live trees over `workload`. Subclasses say when trees begin (`begin`) and what follows when one has ended (`tree_ended`)."""

    def __init__(self, env: simpy.Environment, workload: Workload, plan: SessionPlan, server: Server) -> None:
        self.env, self.workload, self.plan, self.server = env, workload, plan, server
        self.sessions_ended = 0
        self.trees: dict[int, Tree] = {}
        self._scripts: dict[int, Script] = {}
        self._timers: list[tuple[float, int]] = []
        self._armed = math.inf
        self._output = workload.output_tokens.tolist()

    def begin(self, session: int, instance: int, lane: int, id_offset: int, at_s: float) -> Tree:
        """A session begins, from its first turn, as instance `instance`."""
        script = self.script(session)
        count = len(script.waits)
        tree = Tree(instance, lane, id_offset, script, script.waits.copy(), [-math.inf] * count, count)
        self.trees[instance] = tree
        for row, start_s in script.starts:
            self.set_due(tree, row, at_s + start_s)
        return tree

    def set_due(self, tree: Tree, row: int, at_s: float) -> None:
        """Row `row` of the tree is sent at `at_s`."""
        number = tree.instance * self.workload.requests + row
        tree.due[number] = at_s
        heappush(self._timers, (at_s, number))
        self._arm()

    def ended(self, number: int, at_s: float) -> None:
        """See `kvsim.workload.clients.Client`."""
        instance, row = divmod(number, self.workload.requests)
        tree = self.trees[instance]
        tree.flying -= 1
        tree.left -= 1
        for follower, delay_s in tree.script.followers[row - tree.script.first]:
            self.release(tree, follower, at_s + delay_s)
        if tree.left == 0:
            del self.trees[instance]
            self.sessions_ended += 1
            self.tree_ended(tree, at_s)

    def release(self, tree: Tree, row: int, ready_s: float) -> None:
        """One of the turns that `row` waits for has ended; because of it, `row` is not due before `ready_s`."""
        i = row - tree.script.first
        tree.waits[i] -= 1
        tree.ready[i] = max(tree.ready[i], ready_s)
        if tree.waits[i] == 0:
            self.set_due(tree, row, tree.ready[i])

    def tree_ended(self, tree: Tree, at_s: float) -> None:
        """The last turn of `tree` has ended."""
        raise NotImplementedError

    def sent(self, tree: Tree) -> None:
        """A turn of `tree` is about to be sent."""

    def measure(self, warmup_s: float, duration_s: float | None) -> None:
        """Open the window after `warmup_s`, and stop `duration_s` after that (None: never)."""
        if warmup_s > 0:
            self.env.timeout(warmup_s).callbacks.append(lambda _: self.server.open_window())
        if duration_s is not None:
            self.env.timeout(warmup_s + duration_s).callbacks.append(lambda _: self.server.stop())

    def script(self, session: int) -> Script:
        """The script of a session."""
        if session not in self._scripts:
            plan = self.plan
            first, last = int(plan.first[session]), int(plan.first[session + 1])
            followers: list[list[tuple[int, float]]] = [[] for _ in range(last - first)]
            waits = [0] * (last - first)
            edges = slice(int(plan.edge_first[session]), int(plan.edge_first[session + 1]))
            for target, on, delay_s in zip(plan.target[edges].tolist(), plan.on[edges].tolist(), plan.delay_s[edges].tolist(), strict=True):
                followers[on - first].append((target, delay_s))
                waits[target - first] += 1
            starts = [(first + int(i), float(plan.start_s[first + i])) for i in np.flatnonzero(~np.isnan(plan.start_s[first:last]))]
            self._scripts[session] = Script(first, followers, waits, starts)
        return self._scripts[session]

    def _arm(self) -> None:
        if self._timers and self._timers[0][0] < self._armed:
            at = self._armed = self._timers[0][0]
            self.env.timeout(max(at - self.env.now, 0.0)).callbacks.append(lambda _: self._ring(at))

    def _ring(self, at_s: float) -> None:
        if at_s != self._armed:  # an earlier turn came up meanwhile, and has armed what follows
            return
        self._armed = math.inf
        while self._timers and self._timers[0][0] <= at_s:
            due_s, number = heappop(self._timers)
            tree = self.trees.get(number // self.workload.requests)
            if tree is None or tree.due.get(number) != due_s:  # moved to another time
                continue
            del tree.due[number]
            tree.flying += 1
            self.sent(tree)
            row = number % self.workload.requests
            self.server.send(Turn(number, row, tree.instance, tree.lane, tree.id_offset, self._output[row], due_s))
        self._arm()
