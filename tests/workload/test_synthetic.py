"""Synthetic workloads: laws every generator keeps, and the shapes the two are fitted to."""

from __future__ import annotations

import itertools
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import ScenarioError, UnknownNameError
from kvsim.workload.growing import LogNormal
from kvsim.workload.stats import trace_stats
from kvsim.workload.synthetic import SYNTHETIC

from .twins import equal

KINDS = list(SYNTHETIC)


def small(kind: str, **changes: Any) -> Any:
    return SYNTHETIC[kind](sessions=12, **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_conformance(kind: str) -> None:
    parameters: Any = SYNTHETIC[kind]()
    with pytest.raises(FrozenInstanceError):
        parameters.sessions = 3
    assert {"sessions", "block_tokens"} <= {f.name for f in fields(parameters)}
    w = small(kind).generate(7)
    w.check()
    assert w.sessions == 12 and w.scope == "global" and w.format == kind and w.block_tokens == 64
    assert (w.delay_s[w.turn == 0] == 0).all() and (w.delay_s[w.turn > 0] > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind: str) -> None:
    assert equal(small(kind).generate(1), small(kind).generate(1))
    assert not equal(small(kind).generate(1), small(kind).generate(2))


@settings(max_examples=15)
@given(st.sampled_from(KINDS), st.integers(0, 99), st.sampled_from([1, 16, 100]), st.integers(1, 4), st.sampled_from([0, 90, 200]))
def test_laws(kind: str, seed: int, block: int, groups: int, prefix: int) -> None:
    limits = {"compact_at_tokens": 1500, "max_context": 2000} if kind == "agentic" else {"max_context": 2000}
    parameters = small(kind, block_tokens=block, groups=groups, prefix_tokens=prefix, turns=LogNormal(6, 0.5), **limits)
    w = parameters.generate(seed)
    w.check()
    chains = [w.chain(row).tolist() for row in range(w.requests)]
    first_seen = list(dict.fromkeys(itertools.chain.from_iterable(chains)))
    assert first_seen == list(range(w.unique_ids)), "ids are dense, in first-seen order"
    assert (w.input_tokens > prefix).all() and (w.input_tokens + w.output_tokens <= 2000).all()
    heads = {tuple(chain[: prefix // block]) for chain in chains}
    assert len(heads) <= groups
    for row in np.flatnonzero(w.turn > 0):
        before, chain = chains[row - 1], chains[row]
        kept = len([1 for a, b in zip(before, chain, strict=False) if a == b])
        if kept == prefix // block and kept < len(before):
            assert kind == "agentic", "only agents replace their context"
        else:
            assert chain[: len(before)] == before and w.input_tokens[row] > w.input_tokens[row - 1] + w.output_tokens[row - 1]


def test_groups_share_a_prefix_and_nothing_else() -> None:
    w = SYNTHETIC["chat"](sessions=40, groups=2, prefix_tokens=640).generate(3)
    heads = {tuple(w.chain(row)[:10].tolist()) for row in range(w.requests)}
    assert len(heads) == 2
    own = [set(np.concatenate([w.chain(int(r))[10:] for r in np.flatnonzero(w.session == s)]).tolist()) for s in range(40)]
    assert sum(map(len, own)) + 20 == w.unique_ids == len(set().union(*own)) + 20


def test_agentic_follows_the_corpus() -> None:
    """Within a quarter of the figures of 568 recorded sessions, tails within a factor of two."""
    s = trace_stats(SYNTHETIC["agentic"](sessions=600, block_tokens=1024).generate(42))
    assert s.delay_s is not None
    for value, corpus in (
        (s.turns.p50, 39.5), (s.turns.p90, 152), (s.output_tokens.p50, 217), (s.output_tokens.p90, 892), (s.output_tokens.mean, 438),
        (s.delay_s.p50, 9.7), (s.delay_s.p75, 23.4), (s.delay_s.p95, 278), (s.input_tokens.p50, 104_000 * 0.8),
    ):  # fmt: skip
        assert value == pytest.approx(corpus, rel=0.25)
    for value, corpus in ((s.new_tokens.p50, 720), (s.new_tokens.p90, 4216), (s.delay_s.p99, 1979)):
        assert corpus / 2 < value < corpus * 2
    assert s.theoretical_hit_rate is not None and 0.95 < s.theoretical_hit_rate < 0.985


def test_chat_follows_sharegpt() -> None:
    s = trace_stats(SYNTHETIC["chat"]().generate(42))
    for value, published in (
        (s.input_tokens.mean, 2340),
        (s.input_tokens.p50, 1730),
        (s.output_tokens.mean, 439),
        (s.output_tokens.p90, 834),
    ):
        assert value == pytest.approx(published, rel=0.25)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {"sessions": 0}) for kind in KINDS),
        *((kind, {"groups": 0}) for kind in KINDS),
        *((kind, {"block_tokens": 0}) for kind in KINDS),
        *((kind, {"prefix_tokens": -1}) for kind in KINDS),
        ("agentic", {"human_share": 1.5}),
        ("agentic", {"compact_at_tokens": 10_000}),
        ("agentic", {"max_context": 160_000}),
        ("chat", {"max_context": 257}),
    ],
)
def test_parameters_that_make_no_sense(kind: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError):
        replace(SYNTHETIC[kind](), **changes)


@pytest.mark.parametrize(("median", "sigma"), [(0, 1), (-1, 1), (1, -0.1), (float("nan"), 1), (1, float("inf"))])
def test_a_log_normal_needs_a_median(median: float, sigma: float) -> None:
    with pytest.raises(ScenarioError, match="a log-normal needs median > 0 and sigma >= 0"):
        LogNormal(median, sigma)


def test_one_session_of_one_turn() -> None:
    for kind in KINDS:
        w = SYNTHETIC[kind](sessions=1, turns=LogNormal(1, 0)).generate(0)
        w.check()
        assert w.requests == 1


def test_an_unknown_kind() -> None:
    with pytest.raises(UnknownNameError, match="unknown synthetic workload 'agentc', did you mean 'agentic'"):
        SYNTHETIC["agentc"]
