"""Prefix: SGLang's and vLLM's cache_aware router, which guesses the caches from its own choices.

The order of a decision: trim the tree if the eviction interval is over; if the requests in flight are out of balance by both thresholds,
take the least loaded worker; else the one that was sent the longest part of the prompt, if that is more than a share of it, else the
least loaded. In every case the prompt is then noted for the chosen worker. The tree never learns what engines evict.

It holds whole blocks rather than characters, and a look-up leaves it as it is. Workers that were sent equally much: the router takes one
that depends on the prefix alone, here by the last block of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.router import ROUTER, Arrival, Router, Setting
from kvsim.router.in_flight import LoadRouter, least_loaded
from kvsim.router.recent import RecentIndex

CHARACTERS_PER_TOKEN = 4


class PrefixRouter(LoadRouter):
    """Keeps the tree and the requests in flight of one run."""

    def __init__(self, parameters: Prefix, setting: Setting) -> None:
        super().__init__(setting)
        self._parameters = parameters
        self._max_blocks = parameters.max_tree_size // (CHARACTERS_PER_TOKEN * setting.block_tokens)
        self._sent = RecentIndex(setting.workers, setting.ids)
        self._workers = setting.workers
        self._trimmed = 0.0  # eviction intervals passed

    def pick(self, arrival: Arrival, alive: NDArray[np.int64], loads: NDArray[np.int64]) -> int:
        """See `LoadRouter`."""
        self._trim(arrival.at_s)
        matched = self._sent.match(arrival, arrival.at_s)[alive]
        share = int(matched.max()) * arrival.block_tokens / arrival.prompt_tokens
        if self._imbalanced(loads[alive]) or not share > self._parameters.cache_threshold:
            worker = least_loaded(alive, loads, self.rng)
        else:
            best = alive[matched == matched.max()]
            worker = int(best[block_at(arrival, int(matched.max()) - 1) % best.size])
        self._sent.note(worker, arrival, arrival.at_s)
        return worker

    def lost(self, worker: int) -> None:
        """See `Router`."""
        self._sent.forget(worker)

    def _imbalanced(self, loads: NDArray[np.int64]) -> bool:
        low, high = int(loads.min()), int(loads.max())
        return high - low > self._parameters.balance_abs_threshold and high > self._parameters.balance_rel_threshold * low

    def _trim(self, at_s: float) -> None:
        passed = at_s // self._parameters.eviction_interval_s
        if passed > self._trimmed:
            self._trimmed = passed
            for worker in range(self._workers):
                self._sent.trim(worker, self._max_blocks)


def block_at(arrival: Arrival, position: int) -> int:
    """The id of block number `position` of the prompt."""
    ends = np.cumsum(arrival.run_length)
    run = int(np.searchsorted(ends, position, side="right"))
    return int(arrival.run_start[run] + arrival.run_length[run] - (ends[run] - position))


@ROUTER.register("prefix", source="sglang-router 0.3.2, cache_aware; vllm-router, cache_aware")
@dataclass(frozen=True, slots=True)
class Prefix:
    """The worker that was sent the longest prefix of the prompt, the least loaded where that is short or load out of balance (cache_aware).

    `cache_threshold`: share of the prompt above which a prefix counts. Out of balance: requests in flight differ by more than
    `balance_abs_threshold` and the most are more than `balance_rel_threshold` times the least. Every `eviction_interval_s` each worker's
    part of the tree is cut to `max_tree_size` characters. (vllm-router: 120 s, 2^25.)
    """

    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5
    eviction_interval_s: float = 60.0
    max_tree_size: int = 1 << 26

    def __post_init__(self) -> None:
        if not 0 <= self.cache_threshold <= 1:
            raise ValueError(f"cache_threshold must be a share from 0 to 1, not {self.cache_threshold}")
        if self.balance_abs_threshold < 0:
            raise ValueError(f"balance_abs_threshold must be at least 0, not {self.balance_abs_threshold}")
        if not self.balance_rel_threshold >= 1:
            raise ValueError(f"balance_rel_threshold must be at least 1, not {self.balance_rel_threshold}")
        if not self.eviction_interval_s > 0:
            raise ValueError(f"eviction_interval_s must be above 0 seconds, not {self.eviction_interval_s}")
        if self.max_tree_size < 1:
            raise ValueError(f"max_tree_size must be at least 1 character, not {self.max_tree_size}")

    def build(self, setting: Setting) -> Router:
        """The router of one run."""
        return PrefixRouter(self, setting)
