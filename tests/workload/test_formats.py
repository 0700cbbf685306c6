"""The readers: worked examples by hand, and every malformed record as `file:line: what`."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import TraceError
from kvsim.workload import Workload
from kvsim.workload.load import load

from .twins import chains, json_lines, lines, same_up_to_names

DATA = Path(__file__).parents[1] / "data"
Load = Callable[..., Workload]


@pytest.fixture
def read(tmp_path: Path) -> Load:
    """Load rows written as JSON lines to `t.jsonl`."""

    def write_and_load(*rows: dict[str, Any] | bytes, format: str = "auto") -> Workload:
        path = tmp_path / "t.jsonl"
        path.write_bytes(b"".join(row if isinstance(row, bytes) else lines([row]) for row in rows))
        return load(path, format, cache=False)

    return write_and_load


def native(**changes: Any) -> dict[str, Any]:
    row = {"request_id": 0, "session_id": "a", "turn": 0, "arrival_s": 0.5, "input_tokens": 40, "output_tokens": 10, "block_ids": [4, 5, 6]}
    return {key: value for key, value in (row | changes).items() if value is not ...}


def mooncake(**changes: Any) -> dict[str, Any]:
    row = {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
    return {key: value for key, value in (row | changes).items() if value is not ...}


def turn(t: float, ids: list[Any], /, **changes: Any) -> dict[str, Any]:
    row = {"t": t, "type": "n", "model": "m", "in": 64 * len(ids) + 3, "out": 10, "hash_ids": ids, "api_time": 2.0}
    return {key: value for key, value in (row | changes).items() if value is not ...}


def session(*requests: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **changes}


def agent(t: float, *requests: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"type": "subagent", "t": t, "agent_id": "x", "duration_ms": 10_000, "requests": list(requests), **changes}


def test_native_by_hand(read: Load) -> None:
    w = read(
        native(),
        native(request_id=1, session_id="b", arrival_s=0.25, input_tokens=16, output_tokens=1, block_ids=[4]),
        native(request_id=2, turn=1, arrival_s=..., delay_s=3.0, input_tokens=60, output_tokens=20, block_ids=[4, 5, 6, 7, 8]),
    )
    assert (w.format, w.scope, w.block_tokens, w.listed_outputs, w.session_name) == ("native", "global", 16, True, ("a", "b"))
    assert w.session.tolist() == [0, 0, 1] and w.turn.tolist() == [0, 1, 0] and w.stream.tolist() == [0, 0, 1]
    assert [w.chain(i).tolist() for i in range(3)] == [[0, 1, 2], [0, 1, 2, 3, 4], [0]]
    assert w.run_length.tolist() == [3, 5, 1]
    assert w.prompt_blocks.tolist() == [2, 3, 1] and w.tail_id.tolist() == [-1, -1, -1]
    assert w.arrival_s[[0, 2]].tolist() == [0.5, 0.25] and isnan(w.arrival_s[1])
    assert w.delay_s.tolist() == [0.0, 3.0, 0.0]
    assert w.session_start_s.tolist() == [0.5, 0.25]


def test_native_arrivals_of_later_turns_become_delays(read: Load) -> None:
    w = read(native(turn=3), native(request_id="x", turn=7, arrival_s=4.0, block_ids=[4, 5, 6]))
    assert w.turn.tolist() == [0, 1] and w.delay_s.tolist() == [0.0, 3.5] and w.arrival_s.tolist() == [0.5, 4.0]
    assert w.recorded_start_s.tolist() == [0.0, 3.5]
    assert w.notes == ("the trace does not say when requests ended: delays are the times between starts",)


def test_mooncake_by_hand(read: Load) -> None:
    w = read(mooncake(timestamp=9000), mooncake(timestamp=7500, input_length=1024, output_length=600, hash_ids=[0, 1]))
    assert (w.scope, w.block_tokens, w.session_name) == ("global", 512, ("1", "0"))
    assert w.arrival_s.tolist() == [0.0, 1.5]
    assert [w.chain(i).tolist() for i in range(2)] == [[0, 1, 3], [0, 1]]
    assert w.prompt_blocks.tolist() == [2, 2] and w.tail_id.tolist() == [-1, 2]
    assert w.unique_ids == 4
    assert w.notes == ("1 lines stood before an earlier one: sorted by timestamp",)


def test_mooncake_is_the_same_from_any_origin_and_in_any_order(read: Load) -> None:
    rows = [mooncake(timestamp=t, hash_ids=[0, 1, k]) for k, t in enumerate((0, 400, 400.5, 90_000), 2)]
    plain = read(*rows)
    epoch = read(*[row | {"timestamp": row["timestamp"] + 1_785_000_000_000} for row in rows])
    shuffled = read(*[rows[k] for k in (2, 0, 3, 1)])
    assert epoch.arrival_s.tolist() == plain.arrival_s.tolist() == shuffled.arrival_s.tolist() == [0.0, 0.4, 0.4005, 90.0]
    assert [len(shuffled.chain(i)) for i in range(4)] == [len(plain.chain(i)) for i in range(4)]


def test_mooncake_sessions_with_delays(read: Load) -> None:
    w = read(
        mooncake(session_id="u", timestamp=100, input_length=512, output_length=520, hash_ids=[0]),
        mooncake(session_id="v", timestamp=50, input_length=1, hash_ids=[9]),
        mooncake(session_id="u", timestamp=..., delay=2500, input_length=1600, hash_ids=[0, 1, 2, 3]),
    )
    assert w.session_name == ("v", "u")
    assert w.delay_s.tolist() == [0.0, 0.0, 2.5]
    assert w.arrival_s[:2].tolist() == [0.0, 0.05] and isnan(w.arrival_s[2])
    u = [w.chain(i).tolist() for i in (1, 2)]
    assert u[0] == u[1][:2], "the second block of the first turn's chain is its answer, named by the next prompt"


def test_mooncake_without_timestamps(read: Load) -> None:
    w = read(mooncake(session_id=1, timestamp=...), mooncake(session_id=1, timestamp=..., delay=10, hash_ids=[0, 1, 7]))
    assert np.isnan(w.arrival_s).all() and np.isnan(w.session_start_s).all() and w.delay_s.tolist() == [0.0, 0.01]


def test_agentx_times_of_one_stream(read: Load) -> None:
    w = read(session(turn(1.0, [5, 6]), turn(10.0, [5, 6, 7], type="s", ttft=0.5), turn(4.0, [5], api_time=...), turn(11.0, [5, 6, 9])))
    assert w.recorded_start_s.tolist() == [1.0, 4.0, 10.0, 11.0]
    assert w.delay_s.tolist() == [1.0, 1.0, 6.0, 0.0], "end to start, never negative; without api_time a request ends as it starts"
    assert w.recorded_end_s[[0, 2, 3]].tolist() == [3.0, 12.0, 13.0] and isnan(w.recorded_end_s[1])
    assert np.isnan(w.arrival_s).all() and np.isnan(w.session_start_s).all()
    assert (w.scope, w.block_tokens) == ("session", 64)


def test_agentx_sub_agents_spawn_and_join(read: Load) -> None:
    """Parent turns at 0, 20, 31 and 50; agents at 21 for 10 s (joined at 31), at 33 for 30 s (background), and one within the first."""
    inner = agent(23.0, turn(24.0, [300]), turn(26.0, [300, 301]), duration_ms=1500)
    first = agent(21.0, turn(22.0, [100]), inner, turn(25.0, [100, 101]))
    second = agent(33.0, turn(0.5, [200]), turn(5.0, [200, 201]), duration_ms=30_000)
    w = read(session(turn(0.0, [1]), turn(20.0, [1, 2]), first, turn(31.0, [1, 2, 3]), second, turn(50.0, [1, 2, 3, 4])))
    assert w.stream.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert w.stream_parent.tolist() == [-1, 0, 1, 0]
    assert w.stream_spawn.tolist() == [-1, 1, 4, 2]
    assert w.stream_join.tolist() == [-1, 2, 5, -1]
    assert w.recorded_start_s[4:].tolist() == [22.0, 25.0, 24.0, 26.0, 33.5, 38.0]
    assert w.delay_s[[4, 6, 8]].tolist() == [0.0, 0.0, 0.5], "after the spawning request ended: at 22, 24 and 33"
    assert w.session.tolist() == [0] * 10 and w.session_first_stream.tolist() == [0]


def test_agentx_sub_agent_without_duration_or_before_its_parent(read: Load) -> None:
    w = read(
        session(
            turn(5.0, [1]), agent(2.0, turn(3.0, [9]), duration_ms=1000), turn(8.0, [1, 2]), agent(6.0, turn(6.0, [8]), duration_ms=None)
        )
    )
    assert w.stream_spawn.tolist() == [-1, -1, 0] and w.stream_join.tolist() == [-1, 0, -1]
    assert w.delay_s.tolist() == [5.0, 1.0, 3.0, 0.0]


def test_agentx_joins_only_after_the_spawning_turn(read: Load) -> None:
    w = read(session(turn(5.0, [1]), agent(5.0, turn(5.0, [9]), duration_ms=0), turn(8.0, [1, 2])))
    assert w.stream_spawn.tolist() == [-1, 0] and w.stream_join.tolist() == [-1, 1]


def test_agentx_ids_are_local_or_global(read: Load) -> None:
    rows = [session(turn(0.0, [7, 8]), id="p"), session(turn(0.0, [7, 8]), id="q")]
    local = read(*rows)
    assert [local.chain(i).tolist() for i in range(2)] == [[0, 1], [2, 3]]
    assert local.session_id_base.tolist() == [0, 2] and local.session_id_count.tolist() == [2, 2]
    shared = read(*[row | {"hash_id_scope": "global"} for row in rows])
    assert shared.scope == "global" and [shared.chain(i).tolist() for i in range(2)] == [[0, 1], [0, 1]]


def test_agentx_lengths_that_are_not_the_ids(read: Load) -> None:
    w = read(
        session(
            turn(0, [1, 2]),
            turn(9, [1, 2], **{"in": 100}),
            turn(20, [1, 2], **{"in": 300}),
            turn(30, [1], out=0),
            turn(40, [], **{"in": 0}),
        )
    )
    assert w.input_tokens.tolist() == [131, 100, 128, 67, 1]
    assert w.prompt_blocks.tolist() == [2, 1, 2, 1, 0] and (w.tail_id >= 0).tolist() == [False, True, False, False, False]
    assert w.output_tokens.tolist() == [10, 10, 10, 1, 10]
    assert [note.split()[0] for note in w.notes] == ["1", "2"]


def test_agentx_sample_against_a_naive_reader() -> None:
    w = load(DATA / "agentx_v8_sample.jsonl.xz", cache=False)
    rows: list[Any] = []
    stream = 0
    for s, recorded in enumerate(json_lines(DATA / "agentx_v8_sample.jsonl.xz")):
        top = recorded["requests"]
        for requests in ([r for r in top if r["type"] != "subagent"], *(a["requests"] for a in top if a["type"] == "subagent")):
            ordered = sorted(requests, key=lambda r: r["t"])
            rows.extend((stream, [(s, h) for h in r["hash_ids"]], r["in"], max(1, r["out"])) for r in ordered)
            stream += 1
    assert w.input_tokens.tolist() == [r[2] for r in rows] and w.output_tokens.tolist() == [r[3] for r in rows]
    same_up_to_names(w, chains(rows, 64))
    assert (w.sessions, w.streams) == (5, 7)


NATIVE = [
    (native(extra=1), "unknown key 'extra'"),
    (native(output_token=1, output_tokens=...), "unknown key 'output_token', did you mean 'output_tokens'?"),
    (native(input_tokens=...), "the key 'input_tokens' is missing"),
    (native(input_tokens=0), "input_tokens: expected an integer >= 1"),
    (native(input_tokens=2**31), "input_tokens: expected an integer <= 2147483647"),
    (native(output_tokens=1.5), "output_tokens: expected an integer, got a number"),
    (native(turn="1"), "turn: expected an integer, got text"),
    (native(turn=-1), "turn: expected an integer >= 0"),
    (native(arrival_s=-0.1), "arrival_s: expected a number >= 0"),
    (native(arrival_s=...), "a request has either 'arrival_s' or 'delay_s'"),
    (native(delay_s=1.0), "a request has either 'arrival_s' or 'delay_s'"),
    (native(arrival_s=1.785e9), "arrival_s: arrivals count seconds since the trace began, this looks like a date"),
    (native(block_ids=[4, 5]), "block_ids: 2 ids for 40 + 10 tokens, which are 3 full blocks of 16"),
    (native(block_ids=[4, 5, 9, 7]), "block_ids: 4 ids for 40 + 10 tokens"),
    (native(block_ids=[4, 6, 7]), "block_ids[1]: this block id followed another prefix before"),
    (native(block_ids=[4, -5, 6]), "block_ids[1]: a block id is a non-negative integer"),
    (native(block_ids=None), "block_ids: expected a list of block ids"),
    (native(block_tokens=32), "block_tokens: blocks of 32 tokens in a trace of 16-token blocks"),
    (native(request_id=7), "request_id: request 7 was on an earlier line"),
    (native(session_id="c", turn=2), "turn: turn 2 of session 'c' was on an earlier line"),
    (b'{"request_id": 1, \n', ":18: JSON is malformed: it ends too early"),
    (lines([native(block_ids=[4, 5, 9])])[:-1] + b" x\n", ":133: JSON is malformed: trailing characters"),
    (b"[1]\n", "expected an object, got a list"),
    (b"\xff\n", ":1: JSON is malformed: invalid character"),
]


@pytest.mark.parametrize(("row", "message"), NATIVE)
def test_malformed_native_lines(read: Load, row: dict[str, Any] | bytes, message: str) -> None:
    good = native(request_id=7, session_id="c", turn=2, block_ids=[4, 5, 9])
    if isinstance(row, dict) and "request_id" in row and row["request_id"] == 0:
        row = row | {"request_id": 1}
    with pytest.raises(TraceError) as caught:
        read(native(block_ids=[1, 6, 3], request_id=8, session_id="d"), b"\n", good, row)
    assert str(caught.value).partition("t.jsonl:")[2].startswith(f"4{message if message[0] == chr(58) else chr(58) + chr(32) + message}")


MOONCAKE = [
    (mooncake(hash_id=[1]), "unknown key 'hash_id', did you mean 'hash_ids'?"),
    (mooncake(hash_ids=...), "the key 'hash_ids' is missing"),
    (mooncake(timestamp="0"), "timestamp: expected a number or null, got text"),
    (mooncake(timestamp=-1), "timestamp: expected a number >= 0"),
    (mooncake(input_length=-5), "input_length: expected an integer >= 0"),
    (mooncake(input_length=1024), "hash_ids: 3 ids for 1024 tokens, which are 2 blocks of 512"),
    (mooncake(input_length=20, hash_ids=[0, 1]), "hash_ids: 2 ids for 20 tokens, which are 1 blocks of 512"),
    (mooncake(hash_ids=[0, 2, 1]), "hash_ids[1]: this block id followed another prefix before"),
    (mooncake(block_size=16), "block_size: blocks of 16 tokens in a trace of 512-token blocks"),
    (mooncake(session_id="u", turn=0), "turn: turn 0 of session 'u' was on an earlier line"),
    (mooncake(session_id="u"), "turn: either every line of a trace has a turn, or none has"),
    (mooncake(session_id="u", turn=1, timestamp=...), "a later turn of session 'u' needs 'timestamp' or 'delay'"),
    (mooncake(session_id="u", turn=1, timestamp=1), "this turn arrives before the one it follows"),
    (mooncake(session_id=1.5), "session_id: expected"),
]


@pytest.mark.parametrize(("row", "message"), MOONCAKE)
def test_malformed_mooncake_lines(read: Load, row: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(mooncake(session_id="u", turn=0, timestamp=5), row)
    assert str(caught.value).partition("t.jsonl:")[2].startswith(f"2{message if message[0] == chr(58) else chr(58) + chr(32) + message}")


def test_a_delay_cannot_be_derived_from_one_arrival(read: Load) -> None:
    with pytest.raises(TraceError, match="t.jsonl:2: this turn has no delay, and no two arrivals to take one from"):
        read(mooncake(session_id="u", timestamp=...), mooncake(session_id="u", timestamp=5))


AGENTX = [
    (session(turn(0, [1]), block_size=32), "block_size: blocks of 32 tokens in a trace of 64-token blocks"),
    (session(turn(0, [1]), hash_id_scope="global"), "hash_id_scope: global ids in a trace of local ones"),
    (session(turn(0, [1]), hash_id_scope="world"), "hash_id_scope: invalid enum value 'world'"),
    (session(), "requests: session 's' has no request of its own"),
    (session(agent(0, turn(0, [1]))), "requests: session 's' has no request of its own"),
    (session(turn(0, [1]), system_token=5), "unknown key 'system_token', did you mean 'system_tokens'?"),
    (session(turn(0, [1]), turn(1, [1], apitime=2)), "requests[1]: unknown key 'apitime', did you mean 'api_time'?"),
    (session(turn(0, [1]), turn(1, [1], **{"in": "9"})), "requests[1].in: expected an integer, got text"),
    (session(turn(0, [1]), turn(1, [1], t=...)), "requests[1]: the key 't' is missing"),
    (session(turn(-1, [1])), "requests[0].t: expected a number >= 0"),
    (session(turn(0, [1], type="x")), "requests[0].type: invalid value 'x'"),
    (session(turn(9, [1]), turn(1, [2, 1])), "requests[0].hash_ids[0]: this block id followed another prefix before"),
    (session(turn(0, [1]), agent(2, turn(3, [1, "a"]))), "requests[1].requests[0].hash_ids[1]: a block id is a non-negative integer"),
    (session(turn(0, [1]), agent(2, turn(3, [4], tt=1))), "requests[1].requests[0]: unknown key 'tt'"),
]


@pytest.mark.parametrize(("row", "message"), AGENTX)
def test_malformed_agentx_lines(read: Load, row: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(session(turn(0, [1])), row)
    assert str(caught.value).partition("t.jsonl:")[2].startswith(f"2{message if message[0] == chr(58) else chr(58) + chr(32) + message}")


def test_formats_are_found_by_their_keys(read: Load) -> None:
    assert read(native()).format == "native"
    assert read(mooncake()).format == "mooncake"
    assert read(session(turn(0, [1]))).format == "agentx"


def test_a_record_of_no_format(read: Load) -> None:
    with pytest.raises(TraceError) as caught:
        read({"chat_id": 1, "hash_ids": [], "input_length": 1})
    text = str(caught.value)
    assert "t.jsonl:1: no known trace format has a record like this (its keys: chat_id, hash_ids, input_length)" in text
    assert "agentx, mooncake, native" in text
    with pytest.raises(TraceError, match="t.jsonl:1: this is not a JSON object, which .* known format: agentx, mooncake, native"):
        read(b"TIMESTAMP,ContextTokens,GeneratedTokens\n", b"2023-11-16 18:15:46.6805900,374,44\n")
    with pytest.raises(TraceError, match="t.jsonl:1:10: JSON is malformed: "):
        read(b'{"turn": x}\n')


@pytest.mark.parametrize("format", ["auto", "native", "mooncake", "agentx"])
def test_an_empty_trace(read: Load, format: str) -> None:
    with pytest.raises(TraceError, match="t: the trace has no requests"):
        read(b"\n  \n", format=format)


def test_an_unknown_format(read: Load) -> None:
    with pytest.raises(TraceError, match="unknown trace format 'mooncak', did you mean 'mooncake'"):
        read(mooncake(), format="mooncak")
