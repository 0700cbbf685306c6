"""The AgentX format (Weka, kv-cache-tester): one recorded agent session a record, its sub-agents nested in it.

Rules of the AgentX replay: a turn follows the end of the one before it by max(0, t - t_before - api_time_before). A sub-agent starts
after the last turn its parent had started by the sub-agent's `t`, and the first later turn that starts at or after
`t` + `duration_ms` waits for it; without one, or without a duration, it runs in the background. The times of its requests count from
the session's start, or from its own `t` where one of them is earlier than that. Source: AgentX harness 1.0.12 (behaviour).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from kvsim.workload.builder import Builder
from kvsim.workload.decode import Count, Positive, Strict, Time, decode, keys_of, top_keys
from kvsim.workload.formats import FORMATS
from kvsim.workload.source import Place, Record
from kvsim.workload.workload import Workload

BLOCK_TOKENS = 64


class Request(Strict, tag_field="type", tag="n"):
    """A request answered at once; times in seconds."""

    t: Time
    input_tokens: Count = msgspec.field(name="in")
    output_tokens: Count = msgspec.field(name="out")
    hash_ids: msgspec.Raw
    model: str = ""
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    stop: str | None = None
    api_time: Time | None = None
    think_time: Time | None = None
    ttft: Time | None = None


class Streaming(Request, tag_field="type", tag="s"):
    """A request whose answer was streamed; replayed the same."""


class SubAgent(Strict, tag_field="type", tag="subagent"):
    """A stream spawned by another."""

    t: Time
    requests: list[Request | Streaming | SubAgent]
    duration_ms: Time | None = None
    agent_id: str | None = None
    subagent_type: str | None = None
    total_tokens: Count | None = None
    tool_use_count: Count | None = None
    status: str | None = None
    models: tuple[str, ...] = ()
    tool_tokens: Count = 0
    system_tokens: Count = 0


class Session(Strict):
    """One recorded session."""

    id: str
    requests: list[Request | Streaming | SubAgent]
    models: tuple[str, ...] = ()
    block_size: Positive = BLOCK_TOKENS
    hash_id_scope: Literal["local", "global"] = "local"
    tool_tokens: Count = 0
    system_tokens: Count = 0
    totals: msgspec.Raw = msgspec.Raw(b"null")


KEYS = keys_of(Session, Request, SubAgent)


@FORMATS.register("agentx", source="callanjfox/kv-cache-tester v8; AgentX harness 1.0.12")
class AgentX:
    """AgentX sessions (Weka, kv-cache-tester): JSON lines or a folder of JSON files, 64-token blocks, nested sub-agents."""

    @staticmethod
    def sniff(lines: Sequence[bytes]) -> bool:
        """A record with `requests` is a session."""
        return bool(lines) and {"id", "requests"} <= top_keys(lines[0])

    @staticmethod
    def read(records: Iterable[Record], name: str) -> Workload:
        """Sessions keep the order of the records. Their starts are unknown: only times within a session are recorded."""
        decoder = msgspec.json.Decoder(Session)
        reader: _Reader | None = None
        for record in records:
            session = decode(decoder, record, KEYS)
            if reader is None:
                reader = _Reader(name, session)
            reader.session(session, record.place)
        return reader.finish() if reader else Builder(name, "agentx", BLOCK_TOKENS, "session").finish()


class _Reader:
    def __init__(self, name: str, first: Session) -> None:
        self.hash_id_scope = first.hash_id_scope
        self.builder = Builder(name, "agentx", first.block_size, "session" if first.hash_id_scope == "local" else "global")
        self.unequal = 0

    def session(self, session: Session, place: Place) -> None:
        if session.block_size != self.builder.block_tokens:
            raise place.error(f"blocks of {session.block_size} tokens in a trace of {self.builder.block_tokens}-token blocks", "block_size")
        if session.hash_id_scope != self.hash_id_scope:
            raise place.error(f"{session.hash_id_scope} ids in a trace of {self.hash_id_scope} ones", "hash_id_scope")
        if not any(isinstance(r, Request) for r in session.requests):
            raise place.error(f"session {session.id!r} has no request of its own", "requests")
        self._stream(self.builder.session(session.id), session.requests, 0.0, math.nan, place, "requests")

    def _stream(
        self, stream: int, items: list[Request | Streaming | SubAgent], shift: float, spawner_end: float, place: Place, path: str
    ) -> None:
        """Add the requests of one stream and, below it, its sub-agents. `shift` makes their times the session's."""
        rows: list[int] = []
        starts: list[float] = []
        ends: list[float] = []
        numbered = sorted(((r, i) for i, r in enumerate(items) if isinstance(r, Request)), key=lambda pair: pair[0].t)
        for request, index in numbered:
            start = request.t + shift
            before = ends[-1] if ends else spawner_end
            delay = start if math.isnan(before) else max(0.0, start - before)
            rows.append(self._request(stream, request, len(rows), start, delay, place, f"{path}[{index}].hash_ids"))
            starts.append(start)
            ends.append(start + (request.api_time or 0.0))
        agents = sorted(((a, i) for i, a in enumerate(items) if isinstance(a, SubAgent)), key=lambda pair: pair[0].t)
        for agent, index in agents:
            self._agent(agent, stream, rows, starts, ends, shift, place, f"{path}[{index}].requests")

    def _agent(
        self, agent: SubAgent, parent: int, rows: list[int], starts: list[float], ends: list[float], shift: float, place: Place, path: str
    ) -> None:
        if not agent.requests:
            return
        begin = agent.t + shift
        spawner = bisect_right(starts, begin) - 1
        joiner = len(rows)
        if agent.duration_ms is not None:
            joiner = max(spawner + 1, bisect_left(starts, begin + agent.duration_ms / 1000))
        spawner_end = ends[spawner] if spawner >= 0 else math.nan
        inner = begin if min(r.t for r in agent.requests) < agent.t else shift
        stream = self.builder.stream(parent, rows[spawner] if spawner >= 0 else -1, rows[joiner] if joiner < len(rows) else -1)
        self._stream(stream, agent.requests, inner, spawner_end, place, path)

    def _request(self, stream: int, request: Request, turn: int, start: float, delay: float, place: Place, path: str) -> int:
        block = self.builder.block_tokens
        listed = self.builder.blocks(request.hash_ids, place, path)
        full, rest = divmod(request.input_tokens, block)
        tokens, tail = request.input_tokens, -1
        if listed == full + 1 and rest:
            tail = self.builder.ids.cut(1)
        elif listed != full:
            self.unequal += 1
            tokens, full = listed * block, listed
        return self.builder.request(
            stream,
            turn,
            place,
            input_tokens=tokens,
            output_tokens=request.output_tokens,
            listed=full,
            tail=tail,
            delay_s=delay,
            start_s=start,
            end_s=math.nan if request.api_time is None else start + request.api_time,
        )

    def finish(self) -> Workload:
        if self.unequal:
            self.builder.notes.append(
                f"{self.unequal:,} requests list more or fewer ids than their tokens fill: "
                f"they count as {self.builder.block_tokens} tokens an id"
            )
        return self.builder.finish()
