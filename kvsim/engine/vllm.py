"""The vLLM v1 engine as an object: sizes its arrays, takes requests in, lets the kernels run, hands finished requests out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.arrays import grown
from kvsim.bins import N_BINS
from kvsim.cache.log import grown_log
from kvsim.cache.offload import Connector, Sizes
from kvsim.cache.pool import NONE, check_pool, make_pool
from kvsim.cache.store import SharedStore
from kvsim.engine import fleet, loop
from kvsim.engine.queues import add_edges, enter, fresh_vacancies, push_inbox
from kvsim.engine.state import (
    ARENA_FULL,
    CONFIG,
    EDGE,
    FREE,
    JOBS_FULL,
    LOG_FULL,
    REQUEST,
    STATE,
    STEP,
    STUCK,
    TRACE_FULL,
    Engine,
    Trace,
    blank_row,
)
from kvsim.engine.step_time import StepTime
from kvsim.errors import LawError
from kvsim.jit import bundle, bundles, link
from kvsim.transfer.channel import Ways, check_transfers, make_ways


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the scheduler is told. `hbm_blocks` counts vLLM's null block: one less is usable."""

    block_tokens: int
    hbm_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    order_seed: int = 0  # see `kvsim.cache.offload.order`
    prefix_cache: bool = True
    layerwise: int = 0  # layers that loads overlap with; 0: a request waits for its load
    node: int = 0
    logged: bool = False  # HBM and host tier tell which blocks come and go
    traced: bool = False  # steps and transfers are kept for a timeline


class Commons:
    """What the engines of a cluster share: which block ids were met, NICs (of node n ways 2 n out, 2 n + 1 in), SSDs by node, the pool."""

    def __init__(self, ids: int, nics: Ways | None = None, ssds: Sequence[SharedStore] = (), pool: SharedStore | None = None) -> None:
        self.met = np.zeros(max(ids, 1), np.uint8)
        self.nics = nics if nics is not None else make_ways(1)
        self.ssds, self.pool = list(ssds), pool

    def grow(self, ids: int) -> None:
        """Make room for keys up to `ids` - 1."""
        if ids > self.met.size:
            self.met = grown(self.met, max(ids, 2 * self.met.size))


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
    commons: Commons | None = None  # None: alone
    calls: int = 0
    e: Engine = field(init=False)
    host: Any = field(init=False)
    _advance: Any = field(init=False)
    _bundled: tuple[Any, Any] = field(init=False, default=(None, None))
    _bundles: tuple[Any, Any] = field(init=False, default=(None, None))
    _free: list[int] = field(init=False)
    _edges: int = field(init=False, default=0)
    _state: NDArray[Any] = field(init=False)
    _ids: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        c = self.config
        config = np.zeros(1, CONFIG).view(np.recarray)
        config.block_tokens, config.max_seqs, config.max_batched = c.block_tokens, c.max_num_seqs, c.max_num_batched_tokens
        config.threshold, config.host = c.long_prefill_token_threshold, self.connector.has_host
        config.order_seed, config.prefix_cache, config.layerwise, config.node = c.order_seed, c.prefix_cache, c.layerwise, c.node
        rows, seqs, arena = 1 << 10, c.max_num_seqs + 1, 1 << 16
        self.commons = self.commons or Commons(self.ids)
        self._ids = self.commons.met.size
        transfers = self.connector.make_transfers(c.max_num_seqs, traced=c.traced)
        sizes = Sizes(self._ids, rows, arena, transfers.jobs.size, c.block_tokens, c.max_num_batched_tokens, c.logged, c.hbm_blocks)
        self.e = Engine(
            config=config,
            state=np.zeros(1, STATE).view(np.recarray),
            requests=_request_rows(rows),
            blank=blank_row(),
            edges=np.zeros(1 << 10, EDGE).view(np.recarray),
            pool=make_pool(c.hbm_blocks, self._ids, logged=c.logged),
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
            met=self.commons.met,
            params=np.ascontiguousarray(self.step_time.params, np.float64),
            acc=np.zeros(max(self.step_time.accumulators, 1), np.float64),
            itl=np.zeros(N_BINS, np.int64),
            landed=np.zeros(rows, np.int32),
            transfers=transfers,
            nics=self.commons.nics,
            trace=Trace(np.zeros(1 << 14 if c.traced else 0, STEP).view(np.recarray), np.zeros(1, np.int64)),
        )
        self.host = self.connector.make_state(sizes)
        self._state = self.e.state.view(np.ndarray)
        self._free = list(range(rows - 1, -1, -1))
        self._advance = link(fleet.advance, self.parts)

    @property
    def parts(self) -> dict[str, Any]:
        """The interchangeable kernels of this engine: those of its connector and of its step-time model."""
        add, seconds = self.step_time.kernels
        return {"step_add": add, "step_seconds": seconds, **self.connector.parts}

    def handles(self) -> tuple[Any, Any]:
        """The states as kernels take them; made anew when an array was replaced."""
        if self._bundled[0] is not self.e or self._bundled[1] is not self.host:
            self._bundled, self._bundles = (self.e, self.host), (bundle(self.e), bundle(self.host))
        return self._bundles

    @property
    def clock(self) -> float:
        """Simulated seconds."""
        return self._state["clock"].item(0)  # type: ignore[no-any-return]

    @property
    def idle(self) -> bool:
        """Whether no request is in the engine; some may be due to arrive."""
        return int(self.e.state.live[0]) == 0

    def send(
        self,
        number: int,
        chain: int,
        id_offset: int,
        prompt: int,
        output: int,
        at: float,
        *,
        remote: int = 0,
        giver: int = 0,
        hold: bool = False,
    ) -> int:
        """A request arrives at `at`: row `chain` of `Chains`, every id shifted by `id_offset`. Returns its row, valid until its harvest.

        `remote` tokens of its prompt are handed over by node `giver`; `hold`: its blocks outlive it until `let_go`.
        """
        if not self._free:
            self._grow_rows()
        row = self._free.pop()
        offset = self.chains.offset
        enter(self.handles()[0], row, number, offset[chain], offset[chain + 1], id_offset, prompt, output, at, remote, giver, hold)
        return row

    def take_landed(self) -> list[int]:
        """Numbers of the requests whose prompt has been handed over since the last call."""
        count = self._state["landed"].item(0)
        if not count:
            return []
        self._state["landed"][0] = 0
        numbers: list[int] = self.e.requests.tag[self.e.landed[:count]].tolist()
        return numbers

    def handover(self, row: int) -> tuple[float, float, int]:
        """(from when, to when, how many blocks) the prompt in `row` was handed over."""
        request = self.e.requests[row]
        return float(request.remote_from), float(request.remote_at), int(request.external)

    def fail_handover(self, row: int, now_s: float) -> None:
        """What was to be handed over to `row` is lost: it is computed here."""
        loop.fail_handover(self.handles()[0], row, now_s)

    @property
    def first_token_s(self) -> NDArray[np.float64]:
        """[rows] Times of first tokens so far, negative: none yet."""
        times: NDArray[np.float64] = self.e.requests.first_token
        return times

    def let_go(self, row: int, now_s: float) -> None:
        """What the ended request in `row` held has been handed over."""
        loop.let_go(self.handles()[0], row, now_s)

    def submit(self, batch: Batch) -> NDArray[np.int64]:
        """Take in requests; those with a time arrive then, the others once all edges `depend` gives them have fired.

        Returns their rows, valid until they are harvested.
        """
        n = batch.chain.size
        while len(self._free) < n:
            self._grow_rows()
        rows = np.array(self._free[-n:][::-1], np.int64)
        del self._free[len(self._free) - n :]
        new = np.repeat(np.asarray(self.e.blank), n)
        new["order"], new["tag"], new["notify"] = batch.order, batch.tag, batch.notify
        new["prompt"], new["output"], new["id_offset"] = batch.prompt, batch.output, batch.id_offset
        new["run_lo"], new["run_hi"] = self.chains.offset[batch.chain], self.chains.offset[batch.chain + 1]
        np.asarray(self.e.requests)[rows] = new
        for i in np.flatnonzero(~np.isnan(batch.at)):
            push_inbox(self.handles()[0], rows[i], batch.at[i])
        return rows

    def depend(self, targets: NDArray[np.int64], on: NDArray[np.int64], delay_s: NDArray[np.float64]) -> None:
        """Row targets[i], submitted without a time, waits delay_s[i] after the end of row on[i]; an end fires each edge once."""
        while self._edges + targets.size > self.e.edges.size:
            self.e = self.e._replace(edges=grown(self.e.edges, 2 * self.e.edges.size))
        add_edges(self.handles()[0], self._edges, targets, on, delay_s)
        self._edges += targets.size

    def advance(self, until: float) -> bool:
        """Run alone until `until`, or until something is to be told; whether that is so. Arrays that fill up are grown on the way."""
        told = np.full(2, np.inf)
        while True:
            self.calls += 1
            e, h = self.handles()
            if not self.make_room(int(self._advance(bundles([e]), bundles([h]), np.array([[0, 1]]), until, told)) % fleet.N_REASONS):
                return bool(told[1] < np.inf)

    def make_room(self, reason: int) -> bool:
        """Grow the array that the engine stopped for; False if it stopped for something else. Raises `LawError` if it is stuck."""
        if reason == STUCK:
            raise LawError(f"engine: {int(self.e.state.live[0])} requests wait at {self.clock} s and nothing can happen any more")
        if reason == ARENA_FULL:
            self._grow_arena()
        elif reason == JOBS_FULL:
            transfers, self.host = self.connector.grow_jobs(self.e.transfers, self.host)
            self.e = self.e._replace(transfers=transfers)
        elif reason == TRACE_FULL:
            trace, transfers = self.e.trace, self.e.transfers
            trace = trace._replace(steps=grown(trace.steps, 2 * trace.steps.size))
            self.e = self.e._replace(trace=trace, transfers=transfers._replace(moves=grown(transfers.moves, 2 * transfers.moves.size)))
        elif reason == LOG_FULL:
            pool = self.e.pool
            self.e = self.e._replace(pool=pool._replace(log=grown_log(pool.log)))
            self.host = self.connector.grow_log(self.host)
        else:
            return False
        return True

    def harvest(self) -> NDArray[Any]:
        """Copies of the rows that ended since the last harvest (dtype REQUEST), in order of their end; the rows are reused."""
        count = self._state["finished"].item(0)
        rows = self.e.finished[:count].copy()
        self._state["finished"][0] = 0
        # As bytes: numpy copies records field by field.
        out: NDArray[Any] = self.e.requests.view(np.ndarray).view(np.uint8).reshape(-1, REQUEST.itemsize)[rows].view(REQUEST)[:, 0]
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
        assert self.commons is not None
        self.commons.grow(ids)
        more = self.commons.met.size
        pool = self.e.pool
        pool = pool._replace(first=grown(pool.first, more, NONE))
        self.e = self.e._replace(pool=pool, seen=grown(self.e.seen, more), met=self.commons.met)
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
            **{n: grown(getattr(e, n), 2 * old) for n in ("holding", "finished", "let_go", "landed", "inbox_s", "inbox_row")},
        )
        self.host = self.connector.grow_rows(self.host, 2 * old)
        self._free.extend(range(2 * old - 1, old - 1, -1))

    def _grow_arena(self) -> None:
        e, size = self.e, 2 * self.e.ids.size
        self.e = e._replace(ids=grown(e.ids, size), table=grown(e.table, size))
        self.host = self.connector.grow_arena(self.host, size)

    def check(self) -> None:
        """Recompute counters from raw arrays (laws 1, 4, 6); raises `LawError`."""
        state, requests = self.e.state[0], self.e.requests[:-1]
        check_pool(self.e.pool, "HBM")
        check_transfers(self.e.transfers)
        self.connector.check(self.e, self.host)
        if state.arrived != state.done + state.rejected + state.live:
            raise LawError(f"requests: {state.arrived} arrived != {state.done} done + {state.rejected} rejected + {state.live} live")
        held = np.zeros(self.e.pool.blocks.size, np.int64)
        for r in np.flatnonzero((requests.status != FREE) & ((requests.finish < 0) | (requests.hold == 1)) & (requests.blocks > 0)):
            base, n = int(requests.offset[r]), int(requests.blocks[r])
            np.add.at(held, self.e.table[base : base + n], 1)
        held += self.connector.hbm_references(self.e, self.host)
        if (held[1:-1] != self.e.pool.blocks.ref[1:-1]).any():
            raise LawError("HBM: reference counts differ from the blocks requests and transfers hold")


def _request_rows(n: int) -> Any:
    rows = np.zeros(n + 1, REQUEST).view(np.recarray)
    rows[n].q_prev = rows[n].q_next = n
    return rows
