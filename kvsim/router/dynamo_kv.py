"""Dynamo-kv: Dynamo's KV router, a cost in blocks of prefill and decode less a credit for blocks that are cached.

For each worker, lower is better (B tokens a block; device, host, disk: cached leading blocks in HBM, those that follow in DRAM, on SSD):

    raw    = (active prefill tokens + prompt tokens) / B
    decay  = 1 / (1 + overlap_score_credit_decay * ((active prefill tokens - the least of any worker) / B) / blocks of the prompt)
    credit = overlap_score_credit * decay * device + host_cache_hit_weight * host + disk_cache_hit_weight * disk
             + shared_cache_multiplier * blocks beyond device that the shared pool has
    cost   = prefill_load_scale * max(0, raw - credit) + potential decode blocks + decode_active_request_weight * active requests

The router predicts the active state: the uncached tokens of a prompt (host and disk blocks counted by their weights) are active prefill
from dispatch to first token, its full blocks are decode blocks until the end. *Potential* ones include this prompt's.

In a split the two sides differ, as Dynamo sets its two routers up. Prefill nodes: no decode blocks. Decode nodes: no prefill, blocks of
requests are not shared (assume_kv_reuse off), and by default no credit, so that load alone decides; with a credit

    cost   = max(0, potential decode blocks - credit) + decode_active_request_weight * active requests

Not modelled: counting output blocks as they come out (track_output_blocks, off by default: a router here is not told of single tokens),
the queue in front of busy workers (no threshold by default), the busy filter, replica sync, predict-on-route.
Source: Dynamo, lib/kv-router/src/scheduling/selector at 07a6c9c; defaults of 1.6.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsim.router import ROUTER, Arrival, Router, Setting, View, Workers
from kvsim.router.active_blocks import ActiveBlocks
from kvsim.router.in_flight import InFlight
from kvsim.router.pick import lowest
from kvsim.router.ranges import above, at_least, one_of
from kvsim.router.recent import RecentIndex


class Overlap(NamedTuple):
    """Cached blocks of a prompt, each [workers]: leading in HBM, then in DRAM, then on SSD; `shared`: in the pool beyond HBM."""

    device: NDArray[np.int64]
    host: NDArray[np.int64]
    disk: NDArray[np.int64]
    shared: NDArray[np.int64]


class DynamoKvRouter(Router):
    """Keeps the predicted load of each worker, where sessions are pinned, and without events what was sent where."""

    told_first_tokens = True

    def __init__(self, parameters: DynamoKv, setting: Setting) -> None:
        n, p = setting.workers, parameters
        self._p, self._rng, self._role = p, setting.rng, setting.role
        given = p.overlap_score_credit
        self._credit = given if given is not None else 0.0 if setting.role == "decode" else 1.0
        self._sent: RecentIndex | None = None
        if setting.role == "decode" and self._credit == 0:
            self.cache = None
        elif p.view == "approximate":
            self._sent = RecentIndex(n, setting.ids, ttl_s=p.ttl_s)
        else:
            self.cache = View() if p.view == "oracle" else View("events", p.delay_s)
        self._prefill_tokens, self._requests, self._own_blocks = InFlight(n), InFlight(n), InFlight(n)
        self._blocks = ActiveBlocks(n, setting.ids)
        self._pins: dict[str, tuple[int, float]] = {}
        self._none = np.zeros(n, np.int64)

    def choose(self, arrival: Arrival, workers: Workers) -> int:
        """See `Router`."""
        overlap = self._overlap(arrival, workers)
        worker = self._pinned(arrival, workers)
        if worker is None:
            alive = np.flatnonzero(workers.alive)
            worker = self._pick(self._costs(arrival, overlap, alive)[alive], alive)
        self._dispatch(arrival, worker, overlap)
        return worker

    def costs(self, arrival: Arrival, workers: Workers) -> NDArray[np.float64]:
        """The cost of sending `arrival` to each worker, in blocks [workers]. Changes nothing."""
        return self._costs(arrival, self._overlap(arrival, workers), np.flatnonzero(workers.alive))

    def first_token(self, number: int, at_s: float) -> None:
        """See `Router`."""
        self._prefill_tokens.remove(number)

    def ended(self, number: int, at_s: float) -> None:
        """See `Router`."""
        for kept in (self._prefill_tokens, self._requests, self._own_blocks, self._blocks):
            kept.remove(number)

    def lost(self, worker: int) -> None:
        """See `Router`."""
        if self._sent is not None:
            self._sent.forget(worker)
        self._pins = {session: pin for session, pin in self._pins.items() if pin[0] != worker}

    def _overlap(self, arrival: Arrival, workers: Workers) -> Overlap:
        if self._sent is not None:
            return Overlap(self._sent.match(arrival, arrival.at_s), self._none, self._none, self._none)
        if self.cache is None:
            return Overlap(self._none, self._none, self._none, self._none)
        return Overlap(workers.hbm, workers.host, workers.disk, workers.pool)

    def _costs(self, arrival: Arrival, overlap: Overlap, alive: NDArray[np.int64]) -> NDArray[np.float64]:
        p, active = self._p, self._prefill_tokens.counts
        device = self._credit * overlap.device
        if p.overlap_score_credit_decay > 0:
            excess = np.maximum(active - active[alive].min(), 0) / arrival.block_tokens
            device = device / (1 + p.overlap_score_credit_decay * excess / -(-arrival.prompt_tokens // arrival.block_tokens))
        lower = p.host_cache_hit_weight * overlap.host + p.disk_cache_hit_weight * overlap.disk
        credit = device + lower + p.shared_cache_multiplier * overlap.shared
        requests = p.decode_active_request_weight * self._requests.counts
        if self._role == "decode":
            load: NDArray[np.float64] = np.maximum(0, self._own_blocks.counts + arrival.blocks - credit)
        else:
            raw = (active + arrival.prompt_tokens) / arrival.block_tokens
            load = p.prefill_load_scale * np.maximum(0, raw - credit)
        return load + requests if self._role != "both" else load + self._blocks.potential(arrival) + requests

    def _pick(self, costs: NDArray[np.float64], alive: NDArray[np.int64]) -> int:
        spread = float(costs.max() - costs.min())
        if self._p.temperature == 0 or spread == 0:
            return lowest(costs, alive, self._rng)
        upto = np.exp((costs.min() - costs) / (spread * self._p.temperature)).cumsum()
        return int(alive[np.searchsorted(upto, self._rng.random() * upto[-1], side="right")])

    def _pinned(self, arrival: Arrival, workers: Workers) -> int | None:
        pin, ttl_s = self._pins.get(arrival.session), self._p.session_affinity_ttl_s
        if pin is None or ttl_s is None or arrival.at_s - pin[1] >= ttl_s or not workers.alive[pin[0]]:
            return None
        return pin[0]

    def _dispatch(self, arrival: Arrival, worker: int, overlap: Overlap) -> None:
        self._requests.add(arrival.number, worker)
        if self._role == "decode":
            self._own_blocks.add(arrival.number, worker, arrival.blocks)
        else:
            host, disk = self._p.host_cache_hit_weight * overlap.host[worker], self._p.disk_cache_hit_weight * overlap.disk[worker]
            cached = round(float(overlap.device[worker] + host + disk) * arrival.block_tokens)
            self._prefill_tokens.add(arrival.number, worker, max(0, arrival.prompt_tokens - cached))
        if self._role == "both":
            self._blocks.add(arrival, worker)
        if self._sent is not None:
            self._sent.note(worker, arrival, arrival.at_s)
        if self._p.session_affinity_ttl_s is not None:
            self._pins[arrival.session] = worker, arrival.at_s


@ROUTER.register("dynamo-kv", source="Dynamo 1.6.1, router mode kv")
@dataclass(frozen=True, slots=True)
class DynamoKv:
    """The worker with the least blocks to prefill and to decode, less a credit for those it has cached (Dynamo's KV router).

    `overlap_score_credit`: for a cached block in HBM; null is 1, and 0 where it chooses decode nodes. `overlap_score_credit_decay`: how
    soon a backlog of prefill takes the credit away. `temperature`: 0 takes the least cost, one at random among equals; above, workers
    are drawn by a softmax over costs scaled to their range. `view`: of the caches, `events` as they were `delay_s` seconds ago,
    `oracle` as they are, `approximate` from the router's own choices of the last `ttl_s` seconds. `session_affinity_ttl_s`: a session
    stays with its worker until it was idle for so long; null, no affinity (AgentX recipes: 3600).
    """

    overlap_score_credit: float | None = None
    overlap_score_credit_decay: float = 0.0
    prefill_load_scale: float = 1.0
    host_cache_hit_weight: float = 0.75
    disk_cache_hit_weight: float = 0.25
    shared_cache_multiplier: float = 0.0
    decode_active_request_weight: float = 0.0
    temperature: float = 0.0
    view: Literal["events", "approximate", "oracle"] = "events"
    delay_s: float = 0.005
    ttl_s: float = 120.0
    session_affinity_ttl_s: float | None = None

    def __post_init__(self) -> None:
        if self.overlap_score_credit is not None:
            at_least("overlap_score_credit", self.overlap_score_credit, 0)
        at_least("overlap_score_credit_decay", self.overlap_score_credit_decay, 0)
        at_least("prefill_load_scale", self.prefill_load_scale, 0)
        at_least("host_cache_hit_weight", self.host_cache_hit_weight, 0)
        at_least("disk_cache_hit_weight", self.disk_cache_hit_weight, 0)
        at_least("shared_cache_multiplier", self.shared_cache_multiplier, 0)
        at_least("decode_active_request_weight", self.decode_active_request_weight, 0)
        at_least("temperature", self.temperature, 0)
        one_of("view", self.view, ("events", "approximate", "oracle"))
        at_least("delay_s", self.delay_s, 0)
        above("ttl_s", self.ttl_s, 0, "seconds")
        if self.session_affinity_ttl_s is not None:
            above("session_affinity_ttl_s", self.session_affinity_ttl_s, 0, "seconds")

    def build(self, setting: Setting) -> Router:
        """The router of one run."""
        return DynamoKvRouter(self, setting)
