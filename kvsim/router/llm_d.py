"""Llm-d: the endpoint picker of the Kubernetes inference gateway, a weighted sum of scores from 0 to 1; the highest wins.

    queue  = (longest queue - own) / (longest - shortest), 1 where all are equal
    kv     = 1 - share of HBM blocks in use
    prefix = leading blocks matched / blocks looked at

`approximate` prefixes come from the router's own choices and only reach so far into a prompt: two prompts that differ further back look
identical, and count as wholly matched. `precise` ones come from cache events: a block in HBM counts 1, one that follows in DRAM 0.8, and
the sums of the workers that have any block are stretched from 0 to 1 (all 1 where they are equal; 0 for a worker that has none).

Queues and memory are polled. Where `saturation_filter` is on, workers with a long queue or full memory are left out as long as there
are others. llm-d counts characters, four a token; here blocks are the run's own. It can also take block size and capacity from the
engine (autoTune): for that set `max_prefix_tokens` to 256 of its blocks and `lru_tokens` to its HBM.
Not modelled: flow control, speculative entries of the precise index, the no-hit scorer.
Source: llm-d-inference-scheduler 520af47, pkg/epp; llm-d-kv-cache-manager a378f5b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.router import ROUTER, Arrival, Router, Setting, View, Workers
from kvsim.router.pick import lowest
from kvsim.router.ranges import at_least, one_of, within
from kvsim.router.recent import RecentIndex

HBM_WEIGHT, HOST_WEIGHT = 1.0, 0.8


class LlmDRouter(Router):
    """Keeps, for approximate prefixes, what it sent to each worker."""

    def __init__(self, parameters: LlmD, setting: Setting) -> None:
        self._p, self._rng = parameters, setting.rng
        self.load = View("polled", parameters.poll_s)
        self._limit = max(1, parameters.max_prefix_tokens // setting.block_tokens)
        self._sent: RecentIndex | None = None
        if parameters.prefix == "precise":
            self.cache = View("events", parameters.delay_s)
        else:
            self._sent = RecentIndex(setting.workers, setting.ids, max_blocks=max(1, parameters.lru_tokens // setting.block_tokens))

    def choose(self, arrival: Arrival, workers: Workers) -> int:
        """See `Router`."""
        candidates = self._candidates(workers)
        worker = lowest(-self.scores(arrival, workers, candidates), candidates, self._rng)
        if self._sent is not None:
            self._sent.note(worker, arrival, arrival.at_s, self._limit)
        return worker

    def lost(self, worker: int) -> None:
        """See `Router`."""
        if self._sent is not None:
            self._sent.forget(worker)

    def scores(self, arrival: Arrival, workers: Workers, candidates: NDArray[np.int64]) -> NDArray[np.float64]:
        """The score of each of the `candidates`, numbers of workers. Changes nothing."""
        waiting = workers.waiting[candidates]
        spread = int(waiting.max() - waiting.min())
        queue = (waiting.max() - waiting) / spread if spread else np.ones(candidates.size)
        kv = 1 - workers.usage[candidates]
        total: NDArray[np.float64] = self._p.queue_weight * queue + self._p.kv_weight * kv
        return total + self._p.prefix_weight * self._prefix(arrival, workers, candidates)

    def _candidates(self, workers: Workers) -> NDArray[np.int64]:
        if self._p.saturation_filter:
            fit = workers.alive & (workers.waiting <= self._p.max_queue) & (workers.usage <= self._p.max_kv_usage)
            if fit.any():
                return np.flatnonzero(fit)
        return np.flatnonzero(workers.alive)

    def _prefix(self, arrival: Arrival, workers: Workers, candidates: NDArray[np.int64]) -> NDArray[np.float64]:
        if self._sent is not None:
            matched = self._sent.match(arrival, arrival.at_s, self._limit)[candidates]
            return matched / max(1, min(arrival.blocks, self._limit))
        weighed = HBM_WEIGHT * workers.hbm[candidates] + HOST_WEIGHT * workers.host[candidates]
        have = weighed > 0
        if not have.any():
            return np.zeros(candidates.size)
        low, high = weighed[have].min(), weighed.max()
        return np.where(have, (weighed - low) / (high - low) if high > low else 1.0, 0.0)


@ROUTER.register("llm-d", source="llm-d-inference-scheduler 520af47")
@dataclass(frozen=True, slots=True)
class LlmD:
    """The worker with the highest weighted score of short queue, free memory and matched prefix, one at random among equals (llm-d).

    `prefix`: `approximate`, the router's own choices, at most `lru_tokens` of them a worker, of each prompt its first
    `max_prefix_tokens`; or `precise`, the caches as events showed them `delay_s` seconds ago (llm-d's sample for it weighs queue 1,
    kv 1, prefix 2). `poll_s`: between two looks at queues and memory. `saturation_filter`: avoid workers with over `max_queue` waiting
    requests or over `max_kv_usage` of their memory in use (off in the default profile).
    """

    queue_weight: float = 2.0
    kv_weight: float = 2.0
    prefix_weight: float = 3.0
    prefix: Literal["approximate", "precise"] = "approximate"
    max_prefix_tokens: int = 256 * 16
    lru_tokens: int = 31_250 * 16
    delay_s: float = 0.005
    poll_s: float = 0.05
    saturation_filter: bool = False
    max_queue: int = 5
    max_kv_usage: float = 0.8

    def __post_init__(self) -> None:
        at_least("queue_weight", self.queue_weight, 0)
        at_least("kv_weight", self.kv_weight, 0)
        at_least("prefix_weight", self.prefix_weight, 0)
        one_of("prefix", self.prefix, ("approximate", "precise"))
        at_least("max_prefix_tokens", self.max_prefix_tokens, 1)
        at_least("lru_tokens", self.lru_tokens, 1)
        at_least("delay_s", self.delay_s, 0)
        at_least("poll_s", self.poll_s, 0)
        at_least("max_queue", self.max_queue, 0)
        within("max_kv_usage", self.max_kv_usage, 0, 1)

    def build(self, setting: Setting) -> Router:
        """The router of one run."""
        return LlmDRouter(self, setting)
