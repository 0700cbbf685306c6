"""Routers, one a file: which worker serves a request. A router peeks, never touches, and never knows how long an answer will be.

A registered class is a frozen dataclass of the parameters a scenario may set; `build(setting)` makes the `Router` of one run. A worker is
one engine with its caches: a node, or one data-parallel rank of it.

What a router sees of workers is as old as its views say: `cache` of the caches, `load` of queues and memory. What it needs beyond that it
keeps itself, from its own choices and from what it is told of them (`first_token`, `ended`), as the real ones do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.registry import Registry

ROUTER = Registry("router", "kvsim.router")
REJECT = -1


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """What may be known of a request at its arrival.

    `number` is its own in the run (a request sent again after a fault keeps it); `session` names the session instance, as a client's
    X-Session-ID does. The full blocks of the prompt are the ids run_start[i] to run_start[i] + run_length[i] - 1 of each run in turn;
    an id stands for its whole prefix.
    """

    number: int
    at_s: float
    session: str
    prompt_tokens: int
    block_tokens: int
    run_start: NDArray[np.int64]
    run_length: NDArray[np.int64]

    @property
    def blocks(self) -> int:
        """Full blocks of the prompt."""
        return self.prompt_tokens // self.block_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Workers:
    """The n workers at a decision, arrays [n].

    `running` and `waiting` count requests (loading ones wait), `usage` is the share of HBM blocks that requests hold. `hbm` counts the
    leading blocks of the prompt a worker has in HBM, `host` those that follow without a gap in its DRAM, `disk` those that follow
    on its SSD; `pool` [n]: those beyond `hbm` that the shared pool has. All zero for a router without a `cache` view.
    """

    alive: NDArray[np.bool_]
    running: NDArray[np.int64]
    waiting: NDArray[np.int64]
    usage: NDArray[np.float64]
    hbm: NDArray[np.int64]
    host: NDArray[np.int64]
    disk: NDArray[np.int64]
    pool: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class View:
    """How old what a router sees is: `oracle` sees now, `events` what happened `seconds` ago, `polled` the last multiple of `seconds`."""

    kind: Literal["oracle", "events", "polled"] = "oracle"
    seconds: float = 0.0

    def cut(self, now_s: float) -> float:
        """The time up to which the router has been told at `now_s`."""
        if self.kind == "events":
            return now_s - self.seconds
        if self.kind == "polled" and self.seconds > 0:
            return now_s // self.seconds * self.seconds
        return now_s


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What a router is built for.

    `role`: of a prefill/decode split, which side it chooses; `both` where nodes do both. `block_tokens`, `hbm_blocks` (usable),
    `max_num_batched_tokens`: of each worker. `ids`: block ids known so far, more may come. `prefill_s(new, cached)`: seconds that
    prefilling `new` tokens behind `cached` ones takes a worker alone; `copy_s`: seconds to bring one block from the shared pool.
    """

    workers: int
    role: Literal["both", "prefill", "decode"]
    block_tokens: int
    hbm_blocks: int
    max_num_batched_tokens: int
    ids: int
    rng: np.random.Generator
    prefill_s: Callable[[int, int], float]
    copy_s: float


class Router:
    """One router of one run. `cache` None: it asks no worker what it has cached."""

    cache: View | None = None
    load: View = View()
    told_first_tokens: ClassVar[bool] = False

    def choose(self, arrival: Arrival, workers: Workers) -> int:
        """The worker (alive; at least one is) to serve `arrival`, or `REJECT`. What the router keeps of its choice it notes here."""
        raise NotImplementedError

    def first_token(self, number: int, at_s: float) -> None:
        """Request `number` had its first token; told (if `told_first_tokens`) at the next decision at the latest."""

    def ended(self, number: int, at_s: float) -> None:
        """Request `number` ended, or was lost with its worker and will be chosen for again."""

    def lost(self, worker: int) -> None:
        """`worker` went down and its caches with it."""
