"""The vLLM v1 engine as an object: sizes its arrays, takes requests in, lets the kernels run, hands finished requests out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.bins import N_BINS
from kvsim.cache.offload import Connector, Sizes
from kvsim.cache.pool import NONE, check_pool, make_pool
from kvsim.engine import loop
from kvsim.engine.queues import add_edges, fresh_vacancies, push_inbox
from kvsim.engine.state import ARENA_FULL, CONFIG, EDGE, FREE, JOBS_FULL, PENDING, REQUEST, STATE, STUCK, Engine
from kvsim.engine.step_time import StepTime
from kvsim.errors import LawError
from kvsim.jit import bundle, link
from kvsim.transfer.channel import check_transfers


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the scheduler is told. `hbm_blocks` counts vLLM's null block: one less is usable."""

    block_tokens: int
    hbm_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    window_start_s: float = 0.0
    order_seed: int = 0  # see `kvsim.cache.offload.order`


@dataclass(frozen=True, slots=True)
class Chains:
    """Chains of the requests that may come, as runs of ids; chain i is the runs offset[i] to offset[i + 1], start to start + length."""

    offset: NDArray[np.int64]
    start: NDArray[np.int32]
    length: NDArray[np.int32]
    ids: int

    @classmethod
    def of(cls, chains: Sequence[NDArray[np.int32]]) -> Chains:
        """From one array of ids a chain."""
        flat = np.concatenate([*chains, np.zeros(0, np.int32)]).astype(np.int32)
        ends = np.cumsum([0, *map(len, chains)])
        first = np.ones(flat.size, bool)
        first[1:] = np.diff(flat) != 1
        first[ends[ends < flat.size]] = True
        at = np.flatnonzero(first)
        lengths = np.diff(np.append(at, flat.size))
        return cls(np.searchsorted(at, ends), flat[at], lengths.astype(np.int32), int(flat.max(initial=-1)) + 1)


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests to take in, as columns [n]: row in `Chains`, tokens, arrival (NaN: after others), the submitter's number, order among ties.

    `id_offset` shifts every id of the chain; `notify` stops the engine when the request ends.
    """

    chain: NDArray[np.int64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    at: NDArray[np.float64]
    tag: NDArray[np.int64]
    order: NDArray[np.int64]
    notify: NDArray[np.bool_]
    id_offset: int = 0


@dataclass(slots=True)
class VllmEngine:
    """One engine instance with its HBM pool and, through `connector`, its host tier.

    `ids` is the number of distinct keys known so far; `grow_ids` makes room for more.
    """

    config: EngineConfig
    chains: Chains
    step_time: StepTime
    connector: Connector
    ids: int
    longest_chain: int
    calls: int = 0
    e: Engine = field(init=False)
    host: Any = field(init=False)
    _advance: Any = field(init=False)
    _bundled: tuple[Any, Any] = field(init=False, default=(None, None))
    _bundles: tuple[Any, Any] = field(init=False, default=(None, None))
    _free: list[int] = field(init=False)
    _edges: int = field(init=False, default=0)
    _ids: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        c = self.config
        config = np.zeros(1, CONFIG).view(np.recarray)
        config.block_tokens, config.max_seqs, config.max_batched = c.block_tokens, c.max_num_seqs, c.max_num_batched_tokens
        config.threshold, config.host = c.long_prefill_token_threshold, self.connector.has_host
        config.window_start, config.order_seed = c.window_start_s, c.order_seed
        rows, seqs, arena = 1 << 10, c.max_num_seqs + 1, 1 << 16
        self._ids = max(self.ids, 1)
        transfers = self.connector.make_transfers(c.max_num_seqs)
        sizes = Sizes(self._ids, rows, arena, transfers.jobs.size, c.block_tokens, c.max_num_batched_tokens)
        self.e = Engine(
            config=config,
            state=np.zeros(1, STATE).view(np.recarray),
            requests=_request_rows(rows),
            edges=np.zeros(1 << 10, EDGE).view(np.recarray),
            pool=make_pool(c.hbm_blocks, self._ids),
            ids=np.zeros(arena, np.int32),
            table=np.zeros(arena, np.int32),
            vacant=fresh_vacancies(),
            running=np.zeros(seqs, np.int32),
            holding=np.zeros(rows, np.int32),
            scheduled=np.zeros(seqs, np.int32),
            preempted=np.zeros(seqs, np.int32),
            ended=np.zeros(seqs, np.int32),
            finished=np.zeros(rows, np.int32),
            let_go=np.zeros(rows, np.int32),
            inbox_s=np.zeros(rows, np.float64),
            inbox_row=np.zeros(rows, np.int32),
            hits=np.zeros(self.longest_chain + 2, np.int32),
            run_start=self.chains.start,
            run_length=self.chains.length,
            seen=np.zeros(self._ids, np.uint8),
            params=np.ascontiguousarray(self.step_time.params, np.float64),
            acc=np.zeros(max(self.step_time.accumulators, 1), np.float64),
            itl=np.zeros(N_BINS, np.int64),
            transfers=transfers,
        )
        self.host = self.connector.make_state(sizes)
        self._free = list(range(rows - 1, -1, -1))
        add, seconds = self.step_time.kernels
        parts = {"step_add": add, "step_seconds": seconds, **self.connector.parts}
        self._advance = link(loop.advance, parts)

    def _handles(self) -> tuple[Any, Any]:
        """The states as kernels take them; made anew when an array was replaced."""
        if self._bundled[0] is not self.e or self._bundled[1] is not self.host:
            self._bundled, self._bundles = (self.e, self.host), (bundle(self.e), bundle(self.host))
        return self._bundles

    @property
    def clock(self) -> float:
        """Simulated seconds."""
        return float(self.e.state.clock[0])

    @property
    def idle(self) -> bool:
        """Whether no request is in the engine; some may be due to arrive."""
        return int(self.e.state.live[0]) == 0

    @property
    def next_step_s(self) -> float:
        """When the engine can go on: now, or when the next request is due; infinity if none is."""
        if not self.idle:
            return self.clock
        return max(self.clock, float(self.e.inbox_s[0])) if self.e.state.inbox[0] else float("inf")

    def submit(self, batch: Batch) -> NDArray[np.int64]:
        """Take in requests; those with a time arrive then, the others once all edges `depend` gives them have fired.

        Returns their rows, valid until they are harvested.
        """
        n = batch.chain.size
        while len(self._free) < n:
            self._grow_rows()
        rows = np.array(self._free[-n:][::-1], np.int64)
        del self._free[len(self._free) - n :]
        new = np.zeros(n, REQUEST)
        new["order"], new["tag"], new["notify"] = batch.order, batch.tag, batch.notify
        new["prompt"], new["output"], new["id_offset"] = batch.prompt, batch.output, batch.id_offset
        new["run_lo"], new["run_hi"] = self.chains.offset[batch.chain], self.chains.offset[batch.chain + 1]
        new["edge"], new["status"] = -1, PENDING
        for name in ("scheduled", "first_token", "last_token", "finish", "load_start"):
            new[name] = -1.0
        np.asarray(self.e.requests)[rows] = new
        for i in np.flatnonzero(~np.isnan(batch.at)):
            push_inbox(self._handles()[0], rows[i], batch.at[i])
        return rows

    def depend(self, targets: NDArray[np.int64], on: NDArray[np.int64], delay_s: NDArray[np.float64]) -> None:
        """Row targets[i], submitted without a time, waits delay_s[i] after the end of row on[i]; an end fires each edge once."""
        while self._edges + targets.size > self.e.edges.size:
            self.e = self.e._replace(edges=grown(self.e.edges, 2 * self.e.edges.size))
        add_edges(self._handles()[0], self._edges, targets, on, delay_s)
        self._edges += targets.size

    def advance(self, until: float) -> int:
        """Run until a reason of `kvsim.engine.state` to stop; arrays that fill up are grown on the way."""
        while True:
            self.calls += 1
            reason = int(self._advance(*self._handles(), until))
            if reason == STUCK:
                raise LawError(f"engine: {int(self.e.state.live[0])} requests wait at {self.clock} s and nothing can happen any more")
            if reason == ARENA_FULL:
                self._grow_arena()
            elif reason == JOBS_FULL:
                self._grow_jobs()
            else:
                return reason

    def harvest(self) -> NDArray[Any]:
        """Copies of the rows that ended since the last harvest (dtype REQUEST), in order of their end; the rows are reused."""
        count = int(self.e.state.finished[0])
        rows = self.e.finished[:count].copy()
        self.e.state.finished[0] = 0
        out: NDArray[Any] = np.asarray(self.e.requests)[rows]
        ready = out["released"] == 1
        self._free.extend(rows[ready].tolist())
        # Rows whose transfers outlive them are reused once the connector lets go.
        lingering = [*self._lingering, *rows[~ready].tolist()]
        self._lingering = []
        for row in lingering:
            (self._free if self.e.requests["released"][row] else self._lingering).append(row)
        return out

    def grow_ids(self, ids: int) -> None:
        """Make room for keys up to `ids` - 1."""
        if ids <= self._ids:
            return
        more = max(ids, 2 * self._ids)
        pool = self.e.pool
        self.e = self.e._replace(pool=pool._replace(first=grown(pool.first, more, NONE)), seen=grown(self.e.seen, more))
        self.host = self.connector.grow_ids(self.host, more)
        self._ids = more

    _lingering: list[int] = field(init=False, default_factory=list)

    def _grow_rows(self) -> None:
        e, old = self.e, self.e.requests.size - 1
        requests = _request_rows(2 * old)
        requests[:old] = e.requests[:old]
        post_old, post = e.requests[old], 2 * old
        first, last = int(post_old.q_next), int(post_old.q_prev)
        if first != old:  # the waiting list isn't empty: hang it on the new fence post
            requests[post].q_next, requests[post].q_prev = first, last
            requests[first].q_prev = post
            requests[last].q_next = post
        self.e = e._replace(
            requests=requests,
            **{n: grown(getattr(e, n), 2 * old) for n in ("holding", "finished", "let_go", "inbox_s", "inbox_row")},
        )
        self.host = self.connector.grow_rows(self.host, 2 * old)
        self._free.extend(range(2 * old - 1, old - 1, -1))

    def _grow_arena(self) -> None:
        e, size = self.e, 2 * self.e.ids.size
        self.e = e._replace(ids=grown(e.ids, size), table=grown(e.table, size))
        self.host = self.connector.grow_arena(self.host, size)

    def _grow_jobs(self) -> None:
        transfers, self.host = self.connector.grow_jobs(self.e.transfers, self.host)
        self.e = self.e._replace(transfers=transfers)

    def check(self) -> None:
        """Recompute counters from raw arrays (laws 1, 4, 6); raises `LawError`."""
        state, requests = self.e.state[0], self.e.requests[:-1]
        check_pool(self.e.pool, "HBM")
        check_transfers(self.e.transfers)
        self.connector.check(self.e, self.host)
        if state.arrived != state.done + state.rejected + state.live:
            raise LawError(f"requests: {state.arrived} arrived != {state.done} done + {state.rejected} rejected + {state.live} live")
        held = np.zeros(self.e.pool.blocks.size, np.int64)
        for r in np.flatnonzero((requests.status != FREE) & (requests.finish < 0) & (requests.blocks > 0)):
            base, n = int(requests.offset[r]), int(requests.blocks[r])
            np.add.at(held, self.e.table[base : base + n], 1)
        held += self.connector.hbm_references(self.e, self.host)
        if (held[1:-1] != self.e.pool.blocks.ref[1:-1]).any():
            raise LawError("HBM: reference counts differ from the blocks requests and transfers hold")


def _request_rows(n: int) -> Any:
    rows = np.zeros(n + 1, REQUEST).view(np.recarray)
    rows[n].q_prev = rows[n].q_next = n
    return rows
