"""What a cluster did over time, as a timeline: steps and transfers as the engines kept them, and samples of how full each tier is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvsim.cache.pool import NONE
from kvsim.cluster.front import Request
from kvsim.engine.vllm import Commons, VllmEngine
from kvsim.metrics.summary import FaultSpan
from kvsim.metrics.timeline import Fills, Moves, Steps, Timeline

LINKS = ("hbm->dram", "dram->hbm", "ssd read", "pool read", "ssd write", "pool write", "nic out", "nic in")  # by channel; then handovers
OUT, IN = 6, 7
TIERS = ("HBM by requests", "HBM with cache", "DRAM", "SSD", "pool")
EVERY_S = 0.5


@dataclass(slots=True)
class Tracing:
    """Samples fills at most every EVERY_S simulated seconds, and puts the timeline together at the end."""

    commons: Commons
    node_of: Sequence[int]
    roles: Sequence[str]
    _samples: list[tuple[int, int, float, float]] = field(init=False, default_factory=list)
    _next_s: float = field(init=False, default=0.0)

    def sample(self, engines: Sequence[VllmEngine], now_s: float) -> None:
        """Note how full the tiers are, if it is time."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        for i, engine in enumerate(engines):
            pool, usable = engine.e.pool, int(engine.e.pool.meta.end[0]) - 1
            shares = [1.0 - int(pool.meta.free[0]) / usable, float((pool.blocks.key[1:-1] != NONE).sum()) / usable]
            if engine.connector.has_host and engine.connector.tier.blocks:
                shares.append(min(engine.connector.used_blocks(engine.e, engine.host) / engine.connector.tier.blocks, 1.0))
            self._samples += [(i, tier, now_s, share) for tier, share in enumerate(shares)]
            below = engine.connector.tier.below
            for tier, store in ((3, below.ssd), (4, below.pool)) if below is not None else ():
                if store is not None and store.capacity:
                    self._samples.append((i, tier, now_s, store.used / store.capacity))

    def timeline(
        self, engines: Sequence[tuple[int, VllmEngine]], done: Sequence[Request], unit_bytes: float, faults: Sequence[FaultSpan]
    ) -> Timeline:
        """Everything so far, of engines by number, those that went down included; `unit_bytes` a block is on its way."""
        steps, moves = [], []
        for i, engine in engines:
            kept = np.asarray(engine.e.trace.steps)[: int(engine.e.trace.meta[0])]
            steps.append((np.full(kept.size, i), kept["start"], kept["end"], kept["prefill"], kept["decodes"]))
            gone = np.asarray(engine.e.transfers.moves)[: int(engine.e.transfers.meta[2])]
            moves.append((np.full(gone.size, i), gone["channel"], gone["start"], gone["end"], gone["blocks"] * unit_bytes))
        handed = [r for r in done if r.handover is not None]
        for channel, ends in ((OUT, [r.worker for r in handed]), (IN, [r.decoder for r in handed])):
            table = np.array([r.handover for r in handed]).reshape(-1, 3)
            moves.append((np.array(ends, np.int64), np.full(len(handed), channel), table[:, 0], table[:, 1], table[:, 2] * unit_bytes))
        samples = np.array(self._samples, np.float64).reshape(-1, 4)
        names = [f"node {node} {role}".strip() for node, role in zip(self.node_of, self.roles, strict=True)]
        ranks = [self.node_of[:i].count(node) for i, node in enumerate(self.node_of)]
        several = len(set(self.node_of)) < len(self.node_of)
        return Timeline(
            engine_names=[f"{name} rank {rank}" if several else name for name, rank in zip(names, ranks, strict=True)],
            link_names=LINKS,
            tier_names=TIERS,
            steps=Steps(*map(np.concatenate, zip(*steps, strict=True))),
            moves=Moves(*map(np.concatenate, zip(*moves, strict=True))),
            fills=Fills(samples[:, 0].astype(np.int64), samples[:, 1].astype(np.int64), samples[:, 2], samples[:, 3]),
            faults=faults,
        )
