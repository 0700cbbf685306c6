"""Naive twins: what the loader and its kernels compute, in plain Python over lists and dictionaries."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvsim.workload import Workload

Key = Hashable
Prompt = list[int]


@st.composite
def token_sessions(draw: st.DrawFn, max_sessions: int = 4) -> list[list[tuple[Prompt, Prompt]]]:
    """Sessions of (prompt, output) token lists over few tokens, so that prefixes are shared: turns extend, edit or replace the context."""
    token = st.integers(0, 1)
    sessions = []
    for _ in range(draw(st.integers(1, max_sessions))):
        turns: list[tuple[Prompt, Prompt]] = []
        context: Prompt = []
        for _ in range(draw(st.integers(1, 4))):
            keep = draw(st.sampled_from([1.0, 1.0, 0.5, 0.0]))
            prompt = context[: int(len(context) * keep)] + draw(st.lists(token, min_size=1, max_size=9))
            output = draw(st.lists(token, min_size=1, max_size=9))
            turns.append((prompt, output))
            context = prompt + output
        sessions.append(turns)
    return sessions


def blocks(tokens: Prompt, block: int, *, partial: bool = False) -> list[Key]:
    """The prefix each block stands for, one for each full block, with `partial` one more for a rest."""
    ends = list(range(block, len(tokens) + 1, block))
    if partial and len(tokens) % block:
        ends.append(len(tokens))
    return [tuple(tokens[:end]) for end in ends]


class Numbering:
    """Arbitrary but consistent trace ids for prefixes."""

    def __init__(self, factor: int = 1, offset: int = 0) -> None:
        self.ids: dict[Key, int] = {}
        self.factor, self.offset = factor, offset

    def __call__(self, keys: Iterable[Key]) -> list[int]:
        return [self.ids.setdefault(key, len(self.ids) * self.factor + self.offset) for key in keys]


def chains(rows: Sequence[tuple[Key, list[Key], int, int]], block: int) -> list[list[Key]]:
    """Full chains of rows (stream, listed ids, prompt tokens, output tokens) in order: a list of keys each, anonymous ones unique."""
    out = []
    for index, (stream, listed, prompt, output) in enumerate(rows):
        chain = list(listed)
        total = (prompt + output) // block
        if index + 1 < len(rows) and rows[index + 1][0] == stream and len(chain) >= prompt // block > 0:
            then = rows[index + 1][1][: rows[index + 1][2] // block]
            if then[: len(chain)] == chain:
                chain = then[:total] if len(then) > len(chain) else chain
        out.append(chain + [("anonymous", index, k) for k in range(total - len(chain))])
    return out


def same_up_to_names(workload: Workload, expected: list[list[Key]]) -> None:
    """Assert that the workload's chains are `expected` under a one-to-one renaming of ids."""
    there: dict[Key, int] = {}
    back: dict[int, Key] = {}
    assert workload.requests == len(expected)
    for row, keys in enumerate(expected):
        chain = workload.chain(row).tolist()
        assert len(chain) == len(keys)
        for key, block in zip(keys, chain, strict=True):
            assert there.setdefault(key, block) == block
            assert back.setdefault(block, key) == key


def infinite_hits(prompts: Sequence[list[Key]], cached: Sequence[list[Key]]) -> list[int]:
    """Leading keys of each prompt that were among the `cached` keys of an earlier one."""
    seen: set[Key] = set()
    hits = []
    for prompt, kept in zip(prompts, cached, strict=True):
        hit = 0
        while hit < len(prompt) and prompt[hit] in seen:
            hit += 1
        hits.append(hit)
        seen.update(kept)
    return hits


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a compressed or plain JSON-lines file."""
    data = path.read_bytes()
    data = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)(data)
    return [json.loads(line) for line in data.splitlines()]


def lines(rows: Iterable[dict[str, Any]]) -> bytes:
    """JSON lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def equal(a: Workload, b: Workload) -> bool:
    """Whether two workloads hold the same values, names and notes included."""
    return all(
        np.array_equal(x, y, equal_nan=x.dtype.kind == "f") and x.dtype == y.dtype if isinstance(x, np.ndarray) else x == y
        for name in Workload.__dataclass_fields__
        for x, y in [(getattr(a, name), getattr(b, name))]
    )
