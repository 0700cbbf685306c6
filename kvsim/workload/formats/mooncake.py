"""The Mooncake format and its multi-turn relatives: one request a line, ids for the blocks of the prompt, the last one maybe partial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from kvsim.workload.builder import Builder
from kvsim.workload.decode import Count, Name, Positive, Strict, Time, decode, keys_of, top_keys
from kvsim.workload.formats import FORMATS
from kvsim.workload.source import Place, Record
from kvsim.workload.workload import Workload

BLOCK_TOKENS = 512


class Request(Strict):
    """One line; `timestamp` and `delay` are milliseconds. Without `session_id` every line is a session of its own."""

    input_length: Count
    output_length: Count
    hash_ids: msgspec.Raw
    timestamp: Time | None = None
    delay: Time | None = None
    session_id: Name | None = None
    turn: Count | None = None
    block_size: Positive = BLOCK_TOKENS


KEYS = keys_of(Request)


@FORMATS.register("mooncake", source="kvcache-ai/Mooncake FAST25-release; aiperf multi-turn JSONL")
class Mooncake:
    """Mooncake JSON lines: timestamps in ms, global prefix-chained prompt ids, 512 tokens a block; sessions and delays optional."""

    @staticmethod
    def sniff(lines: Sequence[bytes]) -> bool:
        """`hash_ids` beside `input_length`, and none of the keys of Mooncake's other descendants."""
        keys = top_keys(lines[0]) if lines else frozenset()
        return {"hash_ids", "input_length"} <= keys and "chat_id" not in keys

    @staticmethod
    def read(records: Iterable[Record], name: str) -> Workload:
        """Sessions are ordered by arrival, turns by `turn`, else by timestamp, else as they stand."""
        decoder = msgspec.json.Decoder(Request)
        reader: _Reader | None = None
        for record in records:
            request = decode(decoder, record, KEYS)
            if reader is None:
                reader = _Reader(name, request)
            reader.add(request, record.place)
        return reader.finish() if reader else Builder(name, "mooncake", BLOCK_TOKENS, "global").finish()


class _Reader:
    def __init__(self, name: str, first: Request) -> None:
        self.builder = Builder(name, "mooncake", first.block_size, "global", ticks_per_s=1000.0)
        self.numbered = first.turn is not None
        self.lines = 0
        self.streams: dict[Name, int] = {}
        self.last_turn: dict[Name, float] = {}
        self.turns: set[tuple[Name, int]] = set()
        self.latest = -math.inf
        self.disordered = 0

    def add(self, request: Request, place: Place) -> None:
        block = self.builder.block_tokens
        if request.block_size != block:
            raise place.error(f"blocks of {request.block_size} tokens in a trace of {block}-token blocks", "block_size")
        if request.timestamp is not None:
            self.disordered += request.timestamp < self.latest
            self.latest = max(self.latest, request.timestamp)
        stream, turn = self._turn(request, place)
        listed = self.builder.blocks(request.hash_ids, place, "hash_ids")
        full, rest = divmod(request.input_length, block)
        if listed not in (full, full + (rest > 0)):
            raise place.error(
                f"{listed} ids for {request.input_length} tokens, which are {full + (rest > 0)} blocks of {block}", "hash_ids"
            )
        self.builder.request(
            stream,
            turn,
            place,
            input_tokens=request.input_length,
            output_tokens=request.output_length,
            listed=full,
            tail=self.builder.ids.cut(listed - full),
            arrival=math.nan if request.timestamp is None else request.timestamp,
            delay_s=math.nan if request.delay is None else request.delay / 1000,
        )
        self.lines += 1

    def _turn(self, request: Request, place: Place) -> tuple[int, float]:
        """Stream of the request, and what orders it there."""
        session = request.session_id
        if session is None:
            return self.builder.session(str(self.lines)), 0.0
        if (request.turn is not None) != self.numbered:
            raise place.error("either every line of a trace has a turn, or none has", "turn")
        if session not in self.streams:
            self.streams[session] = self.builder.session(str(session))
        elif request.timestamp is None and request.delay is None:
            raise place.error(f"a later turn of session {session!r} needs 'timestamp' or 'delay'")
        if request.turn is not None:
            if (session, request.turn) in self.turns:
                raise place.error(f"turn {request.turn} of session {session!r} was on an earlier line", "turn")
            self.turns.add((session, request.turn))
            return self.streams[session], request.turn
        turn = self.last_turn.get(session, 0.0) if request.timestamp is None else request.timestamp
        self.last_turn[session] = turn
        return self.streams[session], turn

    def finish(self) -> Workload:
        if self.disordered:
            self.builder.notes.append(f"{self.disordered:,} lines stood before an earlier one: sorted by timestamp")
        return self.builder.finish(from_first_arrival=True)
