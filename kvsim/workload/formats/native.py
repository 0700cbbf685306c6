"""kvsim's own format: one request a line, ids for every full block of prompt + output."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from kvsim.workload.builder import Builder
from kvsim.workload.decode import Count, Name, Positive, Strict, Time, decode, keys_of, top_keys
from kvsim.workload.formats import FORMATS
from kvsim.workload.source import Place, Record
from kvsim.workload.workload import Workload

BLOCK_TOKENS = 16
WALL_CLOCK_S = 1e9


class Request(Strict):
    """One line."""

    request_id: Name
    session_id: Name
    turn: Count
    input_tokens: Positive
    output_tokens: Positive
    block_ids: msgspec.Raw
    arrival_s: Time | None = None
    delay_s: Time | None = None
    block_tokens: Positive = BLOCK_TOKENS


KEYS = keys_of(Request)


@FORMATS.register("native", source="kvsim")
class Native:
    """kvsim's own JSON lines: absolute or relative arrivals, global ids of prompt and output blocks, 16 tokens each by default."""

    @staticmethod
    def sniff(lines: Sequence[bytes]) -> bool:
        """Only this format has `block_ids`."""
        return bool(lines) and "block_ids" in top_keys(lines[0])

    @staticmethod
    def read(records: Iterable[Record], name: str) -> Workload:
        """Sessions keep the order of their first lines; a session's turns may stand anywhere in the file."""
        decoder = msgspec.json.Decoder(Request)
        reader: _Reader | None = None
        for record in records:
            request = decode(decoder, record, KEYS)
            if reader is None:
                reader = _Reader(name, request)
            reader.add(request, record.place)
        return reader.builder.finish() if reader else Builder(name, "native", BLOCK_TOKENS, "global").finish()


class _Reader:
    def __init__(self, name: str, first: Request) -> None:
        self.builder = Builder(name, "native", first.block_tokens, "global", listed_outputs=True)
        self.streams: dict[Name, int] = {}
        self.requests: set[Name] = set()
        self.turns: set[tuple[Name, int]] = set()

    def add(self, request: Request, place: Place) -> None:
        block = self.builder.block_tokens
        if request.block_tokens != block:
            raise place.error(f"blocks of {request.block_tokens} tokens in a trace of {block}-token blocks", "block_tokens")
        if (request.arrival_s is None) == (request.delay_s is None):
            raise place.error("a request has either 'arrival_s' or 'delay_s'")
        if request.arrival_s is not None and request.arrival_s >= WALL_CLOCK_S:
            raise place.error("arrivals count seconds since the trace began, this looks like a date", "arrival_s")
        stream = self._stream(request, place)
        listed = self.builder.blocks(request.block_ids, place, "block_ids")
        full = (request.input_tokens + request.output_tokens) // block
        if listed != full:
            tokens = f"{request.input_tokens} + {request.output_tokens} tokens"
            raise place.error(f"{listed} ids for {tokens}, which are {full} full blocks of {block}", "block_ids")
        self.builder.request(
            stream,
            request.turn,
            place,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            listed=listed,
            arrival=math.nan if request.arrival_s is None else request.arrival_s,
            delay_s=math.nan if request.delay_s is None else request.delay_s,
        )

    def _stream(self, request: Request, place: Place) -> int:
        session, turn = request.session_id, (request.session_id, request.turn)
        if request.request_id in self.requests:
            raise place.error(f"request {request.request_id!r} was on an earlier line", "request_id")
        if turn in self.turns:
            raise place.error(f"turn {request.turn} of session {session!r} was on an earlier line", "turn")
        self.requests.add(request.request_id)
        self.turns.add(turn)
        if session not in self.streams:
            self.streams[session] = self.builder.session(str(session))
        return self.streams[session]
