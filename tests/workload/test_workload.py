"""Chains, cache units and the checks of `Workload`, over random token sessions, against naive twins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import LawError, TraceError
from kvsim.workload import Workload
from kvsim.workload.formats.mooncake import Mooncake
from kvsim.workload.formats.native import Native
from kvsim.workload.load import load
from kvsim.workload.source import Place, Record
from kvsim.workload.stats import infinite_cache

from .twins import Key, Numbering, Prompt, blocks, chains, infinite_hits, lines, same_up_to_names, token_sessions

DATA = Path(__file__).parents[1] / "data"
Sessions = list[list[tuple[Prompt, Prompt]]]


def records(rows: list[dict[str, Any]]) -> list[Record]:
    return [Record(Place("t", n), line) for n, line in enumerate(lines(rows).splitlines(), 1)]


def mooncake(sessions: Sessions, block: int, *, partial: bool) -> tuple[Workload, list[tuple[Key, list[Key], int, int]]]:
    """The sessions as a multi-turn Mooncake trace, interleaved by turn, and the rows the naive twin takes."""
    number = Numbering(factor=3, offset=5)
    turns = sorted((k, s) for s, session in enumerate(sessions) for k in range(len(session)))
    written = [
        {
            "session_id": s,
            "input_length": len(sessions[s][k][0]),
            "output_length": len(sessions[s][k][1]),
            "hash_ids": number(blocks(sessions[s][k][0], block, partial=partial)),
            "timestamp": 1000 * k,
            "block_size": block,
        }
        for k, s in turns
    ]
    rows: list[tuple[Key, list[Key], int, int]] = [
        (s, blocks(p, block), len(p), len(o)) for s, session in enumerate(sessions) for p, o in session
    ]
    return Mooncake.read(records(written), "t"), rows


def native(sessions: Sessions, block: int) -> Workload:
    number = Numbering()
    written: list[dict[str, Any]] = []
    for s, session in enumerate(sessions):
        for k, (prompt, output) in enumerate(session):
            time = {"delay_s": 1.0} if k else {"arrival_s": float(s)}
            ids = number(blocks(prompt + output, block))
            row = {"request_id": len(written), "session_id": s, "turn": k, "input_tokens": len(prompt), "output_tokens": len(output)}
            written.append({**row, **time, "block_ids": ids, "block_tokens": block})
    return Native.read(records(written), "t")


@settings(max_examples=50)
@given(token_sessions(), st.integers(1, 5), st.booleans())
def test_chains_of_a_trace_without_outputs(sessions: Sessions, block: int, partial: bool) -> None:
    workload, rows = mooncake(sessions, block, partial=partial)
    expected = chains(rows, block)
    same_up_to_names(workload, expected)
    assert workload.unique_ids == len(
        {k for c in expected for k in c} | {tuple(p) for s in sessions for p, _ in s if partial and len(p) % block}
    )
    assert ((workload.tail_id >= 0) == np.array([partial and len(p) % block > 0 for s in sessions for p, _ in s])).all()


@settings(max_examples=50)
@given(token_sessions(), st.integers(1, 4))
def test_inferred_output_blocks_are_the_true_ones(sessions: Sessions, block: int) -> None:
    """Where the next turn really re-sends the answer, the inferred ids stand for the tokens that were there."""
    rows: list[list[Key]] = chains([(s, blocks(p, block), len(p), len(o)) for s, t in enumerate(sessions) for p, o in t], block)
    truth = [blocks(p + o, block) for session in sessions for p, o in session]
    resent = [t[k + 1][0][: len(p) + len(o)] == p + o if k + 1 < len(t) else True for t in sessions for k, (p, o) in enumerate(t)]
    for chain, true, extended in zip(rows, truth, resent, strict=True):
        named = [key for key in chain if key[0] != "anonymous"]  # type: ignore[index]
        assert not extended or named == true[: len(named)]


@settings(max_examples=50)
@given(token_sessions(), st.integers(1, 4))
def test_same_id_same_ancestors(sessions: Sessions, block: int) -> None:
    workload = native(sessions, block)
    ancestors: dict[int, tuple[int, ...]] = {}
    for row in range(workload.requests):
        chain = workload.chain(row).tolist()
        assert len(chain) == workload.chain_blocks[row] == (workload.input_tokens[row] + workload.output_tokens[row]) // block
        for depth, key in enumerate(chain):
            assert ancestors.setdefault(key, tuple(chain[:depth])) == tuple(chain[:depth])
    same_up_to_names(workload, [blocks(p + o, block) for session in sessions for p, o in session])


@settings(max_examples=50)
@given(token_sessions(), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_larger_units_are_named_by_their_last_block(sessions: Sessions, block: int, ratio: int, listed: bool) -> None:
    workload = native(sessions, block) if listed else mooncake(sessions, block, partial=True)[0]
    coarse = workload.with_block(block * ratio)
    coarse.check()
    dense: dict[int, int] = {}
    for row in range(workload.requests):
        last = workload.chain(row).tolist()[ratio - 1 :: ratio]
        want = last if ratio == 1 else [dense.setdefault(b, len(dense)) for b in last]
        assert coarse.chain(row).tolist() == want
        assert coarse.prompt_blocks[row] == workload.input_tokens[row] // (block * ratio)
    assert ratio == 1 or (coarse.unique_ids == len(dense) and (coarse.tail_id == -1).all())


@settings(max_examples=50)
@given(token_sessions(), st.integers(1, 4), st.booleans())
def test_infinite_cache_of_prompts(sessions: Sessions, block: int, partial: bool) -> None:
    workload, _ = mooncake(sessions, block, partial=partial)
    turns = sorted((k, s) for s, session in enumerate(sessions) for k in range(len(session)))
    prompts = [blocks(sessions[s][k][0], block, partial=partial) for k, s in turns]
    expected = infinite_hits(prompts, prompts)
    row = {(s, k): r for r, (s, k) in enumerate(sorted((s, k) for k, s in turns))}
    hits = infinite_cache(workload)
    assert [hits.hit_blocks[row[s, k]] for k, s in turns] == expected
    assert hits.unique_blocks == len({key for prompt in prompts for key in prompt})


@settings(max_examples=50)
@given(token_sessions(), st.integers(1, 4))
def test_infinite_cache_of_prompts_and_outputs(sessions: Sessions, block: int) -> None:
    """Arrivals are the session's number, later turns one second apart: turn k of session s comes at s + k."""
    workload = native(sessions, block)
    order = sorted(((s + k, s, k) for s, session in enumerate(sessions) for k in range(len(session))), key=lambda x: (x[0], x[1]))
    prompts = [blocks(sessions[s][k][0], block) for _, s, k in order]
    chained = [blocks(sessions[s][k][0] + sessions[s][k][1], block) for _, s, k in order]
    expected = dict(zip(((s, k) for _, s, k in order), infinite_hits(prompts, chained), strict=True))
    assert infinite_cache(workload).hit_blocks.tolist() == [expected[key] for key in sorted(expected)]


def test_units_within_a_session_scope_stay_contiguous() -> None:
    workload = load(DATA / "agentx_v8_sample.jsonl.xz", cache=False)
    assert workload.scope == "session"
    coarse = workload.with_block(256)
    coarse.check()
    assert coarse.session_id_count.sum() == coarse.unique_ids
    for session in range(coarse.sessions):
        chained = np.concatenate([coarse.chain(int(r)) for r in np.flatnonzero(coarse.session == session)])
        assert chained.min() == coarse.session_id_base[session]
        assert np.unique(chained).size == coarse.session_id_count[session]


def test_coarsening_twice_is_coarsening_once() -> None:
    workload = load(DATA / "mooncake_conversation_200.jsonl.gz", cache=False)
    twice, once = workload.with_block(1024).with_block(4096), workload.with_block(4096)
    assert np.array_equal(twice.run_start, once.run_start) and np.array_equal(twice.run_length, once.run_length)
    assert workload.with_block(512) is workload


@pytest.mark.parametrize("unit", [0, -512, 16, 700, 513])
def test_a_unit_that_is_no_multiple_is_refused(unit: int) -> None:
    workload = load(DATA / "mooncake_conversation_200.jsonl.gz", cache=False)
    with pytest.raises(TraceError, match=f"blocks have 512 tokens, so a cache unit must be a multiple of that, not {unit}"):
        workload.with_block(unit)


@pytest.mark.parametrize(
    ("column", "row", "value", "law"),
    [
        ("turn", 1, 5, "turns do not count"),
        ("stream", 8, 3, "streams are not in order"),
        ("session", 3, 1, "session is not its stream's"),
        ("input_tokens", 0, 0, "without input"),
        ("prompt_blocks", 4, 1, "prompt_blocks is not"),
        ("delay_s", 2, -1.0, "a delay is negative"),
        ("delay_s", 2, np.nan, "a delay is negative or unknown"),
        ("recorded_end_s", 5, 0.0, "ended before it started"),
        ("run_length", 0, 1, "does not cover"),
        ("run_length", 0, 0, "an empty run"),
        ("run_start", 0, 4000, "range|two prefixes|two runs"),
        ("run_offset", 1, 10**6, "run_offset is not a partition"),
        ("session_id_base", 1, 0, "leave gaps"),
        ("session_first_stream", 2, 0, "names a stream of another session"),
        ("stream_parent", 1, 0, "a root exactly if"),
        ("stream_spawn", 0, 0, "a root stream has a spawn"),
        ("stream_join", 4, 0, "not a request of the parent|does not come after"),
        ("tail_id", 0, 10**6, "a tail id outside"),
    ],
)
def test_check_finds_what_does_not_hold(column: str, row: int, value: float, law: str) -> None:
    workload = load(DATA / "agentx_v8_sample.jsonl.xz", cache=False)
    workload.check()
    changed = getattr(workload, column).copy()
    changed[row] = value
    with pytest.raises(LawError, match=law):
        replace(workload, **{column: changed}).check()


def test_check_finds_a_column_of_the_wrong_length() -> None:
    workload = load(DATA / "mooncake_conversation_200.jsonl.gz", cache=False)
    with pytest.raises(LawError, match="turn has shape"):
        replace(workload, turn=workload.turn[:-1]).check()
