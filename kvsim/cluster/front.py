"""The front end of a cluster: takes requests from a client, has them routed, follows them to their end, sends them again where a node died.

Split into prefill and decode nodes a request goes through both: the prefill node computes the prompt and a first token (which nobody
sees) and keeps the blocks; the decode node reserves memory for the prompt, has it handed over, computes its last token again
and goes on from there. So time to first token is that of the decode node, and a full decode node holds up the prefill node. Source: vLLM
0.33.0, NixlConnector behind a proxy (behaviour).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from kvsim.cluster.fleet import Fleet
from kvsim.cluster.sides import Side
from kvsim.engine.state import REJECTED
from kvsim.router import REJECT, Arrival
from kvsim.workload.clients import Turn
from kvsim.workload.workload import Workload

NOWHERE = -1


@dataclass(slots=True, eq=False)
class Request:
    """A turn on its way. `worker`, `row`: where it is served, of a split where it is prefilled; `decoder`: where it is decoded."""

    turn: Turn
    worker: int = NOWHERE
    row: int = NOWHERE
    decoder: int = NOWHERE
    decoder_row: int = NOWHERE
    handed_over: bool = False
    retries: int = 0
    prefilled: Any = None  # of a split: its row of the prefill node, ended
    handover: tuple[float, float, int] | None = None  # from when to when, and how many blocks


@dataclass(slots=True, eq=False)
class Front:
    """`first` serves requests whole, or prefills them for `second` to decode. `node_of` [engines]: the node of each."""

    env: simpy.Environment
    fleet: Fleet
    workload: Workload
    first: Side
    second: Side | None
    node_of: list[int]
    name_of: Callable[[Turn], str]
    on_end: Callable[[int, float], None]
    flying: dict[int, Request] = field(init=False, default_factory=dict)
    done: list[Request] = field(init=False, default_factory=list)
    rows: list[Any] = field(init=False, default_factory=list)  # of `done`, in its order, in pieces
    stranded: list[Request] = field(init=False, default_factory=list)
    sent: int = field(init=False, default=0)

    def send(self, turn: Turn) -> None:
        """A turn arrives."""
        self.sent += 1
        request = self.flying[turn.number] = Request(turn)
        self._place(request, turn.at_s)

    def told(self, index: int, at_s: float) -> None:
        """Engine number `index` has something to tell."""
        engine = self.fleet.engines[index]
        for number in engine.take_landed():
            request = self.flying[number]
            request.handover = engine.handover(request.decoder_row)
            if not request.handed_over:  # else whoever gave it went down since, and there is nothing to let go
                request.handed_over = True
                self.fleet.engines[request.worker].let_go(request.row, self.env.now)
        rows = engine.harvest()
        if not len(rows):
            return
        over = None
        for i, (number, status, finish) in enumerate(
            zip(rows["tag"].tolist(), rows["status"].tolist(), rows["finish"].tolist(), strict=True)
        ):
            request = self.flying[number]
            if self.second is not None and index == request.worker and request.decoder == NOWHERE:
                self.first.ended(number, finish)
                if status != REJECTED:
                    request.prefilled = rows[i]
                    self._decode(request, finish)
                    if over is None:
                        over = np.ones(len(rows), bool)
                    over[i] = False
                    continue
            elif self.second is not None:
                self.second.ended(number, finish)
                if status == REJECTED and not request.handed_over:
                    self.fleet.engines[request.worker].let_go(request.row, self.env.now)
            else:
                self.first.ended(number, finish)
            self._finish(request, finish)
        self.rows.append(rows if over is None else rows[over])

    def reopen(self) -> None:
        """A worker is back: what found none is sent now."""
        waiting, self.stranded = self.stranded, []
        for request in waiting:
            self._place(request, self.env.now)

    def retry(self, dead: set[int]) -> None:
        """The engines `dead` lost what they had: their requests are sent again, to others."""
        now = self.env.now
        lost = [r for r in self.flying.values() if (r.decoder if r.decoder != NOWHERE else r.worker) in dead]
        orphans = [r for r in self.flying.values() if r.decoder != NOWHERE and r.worker in dead and not r.handed_over and r not in lost]
        for request in orphans:
            engine = self.fleet.engines[request.decoder]
            if engine.handover(request.decoder_row)[1] > now:  # else it has arrived, which the step under way tells at its end
                engine.fail_handover(request.decoder_row, now)
            request.handed_over = True
        for request in lost:
            number = request.turn.number
            if request.decoder == NOWHERE:
                self.first.ended(number, now)
            else:
                assert self.second is not None
                self.second.ended(number, now)
                if not request.handed_over and request.worker not in dead:
                    self.fleet.engines[request.worker].let_go(request.row, self.env.now)
            request.worker = request.row = request.decoder = request.decoder_row = NOWHERE
            request.handed_over, request.prefilled = False, None
            request.retries += 1
        for request in lost:
            self._place(request, now)

    def _place(self, request: Request, at_s: float) -> None:
        turn, w = request.turn, self.workload
        worker = self._choose(self.first, request, at_s)
        if worker == NOWHERE:
            return
        request.worker = worker
        engine = self.fleet.engines[worker]
        output, hold = (turn.output, False) if self.second is None else (1, True)
        prompt = int(w.input_tokens[turn.row])
        request.row = engine.send(turn.number, turn.row, turn.id_offset, prompt, output, at_s, hold=hold)
        self.first.sent(turn.number, engine, request.row)
        self.fleet.wake()

    def _decode(self, request: Request, at_s: float) -> None:
        assert self.second is not None
        turn = request.turn
        worker = self._choose(self.second, request, at_s)
        if worker == NOWHERE:
            return
        request.decoder = worker
        engine, prompt = self.fleet.engines[worker], int(self.workload.input_tokens[turn.row])
        giver = self.node_of[request.worker]
        request.decoder_row = engine.send(turn.number, turn.row, turn.id_offset, prompt, turn.output, at_s, remote=prompt, giver=giver)
        self.second.sent(turn.number, engine, request.decoder_row)
        self.fleet.wake()

    def _choose(self, side: Side, request: Request, at_s: float) -> int:
        """An engine of `side`; NOWHERE where the request was refused, or waits for a worker to come back."""
        if (only := side.only) is not None:
            return only
        if not side.open:
            if request.row != NOWHERE:  # prefilled for nobody
                self.fleet.engines[request.worker].let_go(request.row, self.env.now)
                request.worker = request.row = NOWHERE
                request.prefilled = None
                request.retries += 1
            self.stranded.append(request)
            return NOWHERE
        chosen = side.choose(self._arrival(request.turn, at_s))
        if chosen != REJECT:
            return chosen
        if request.row != NOWHERE:
            self.fleet.engines[request.worker].let_go(request.row, self.env.now)
        self._refuse(request, at_s)
        return NOWHERE

    def _arrival(self, turn: Turn, at_s: float) -> Arrival:
        w = self.workload
        runs = slice(w.run_offset[turn.row], w.run_offset[turn.row + 1])
        length, blocks = w.run_length[runs].astype(np.int64), int(w.prompt_blocks[turn.row])
        ends = np.cumsum(length)
        used = int(np.searchsorted(ends, blocks)) + 1 if blocks else 0
        length = length[:used]
        if used:
            length[-1] -= ends[used - 1] - blocks
        start = w.run_start[runs][:used].astype(np.int64) + turn.id_offset
        return Arrival(turn.number, at_s, self.name_of(turn), int(w.input_tokens[turn.row]), w.block_tokens, start, length)

    def _refuse(self, request: Request, at_s: float) -> None:
        """The router turned the request away: it ends now, but not before whoever sent it is done sending."""
        turn, blank = request.turn, self.fleet.engines[0].e.blank
        row = np.asarray(blank).copy()
        row["tag"], row["status"], row["output"] = turn.number, REJECTED, turn.output
        row["prompt"], row["arrival"], row["finish"] = self.workload.input_tokens[turn.row], at_s, at_s
        self.rows.append(row)
        del self.flying[turn.number]
        self.done.append(request)
        self.env.timeout(0).callbacks.append(lambda _: self.on_end(turn.number, at_s))

    def _finish(self, request: Request, at_s: float) -> None:
        del self.flying[request.turn.number]
        self.done.append(request)
        self.on_end(request.turn.number, at_s)
