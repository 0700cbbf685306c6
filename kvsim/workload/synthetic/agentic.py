"""Coding agents: long contexts that grow by tool results, many short gaps and a few long ones, now and then a compaction."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvsim.rng import stream
from kvsim.workload.growing import LogNormal, Turns, growing_contexts, require
from kvsim.workload.synthetic import SYNTHETIC
from kvsim.workload.workload import Longs, Workload


@SYNTHETIC.register("agentic", source="fitted to 568 sessions of the AgentX v8 (042026) corpus, kv-cache-tester, 2026-07")
@dataclass(frozen=True)
class Agentic:
    """Coding-agent sessions: a shared tool and system prefix, lognormal growth, tool and human gaps, compaction at a limit.

    The defaults follow the corpus: turns p50 40 p90 152; new tokens p50 364 p90 3.2k; output p50 217 p90 892; gap p50 9.7 s, 15% over a
    minute; 12.3k + 2.8k tokens of tools and system prompt; contexts compacted near 150k to a median of 37k. Without the corpus's few
    contexts of up to 900k tokens, prompts are shorter: p50 77k, mean 81k (corpus 105k, 124k).
    """

    sessions: int = 200
    groups: int = 1  # sets of sessions that share tools and system prompt
    prefix_tokens: int = 15_100
    first_tokens: LogNormal = field(default=LogNormal(8_000, 1.3))  # of the first prompt, after the prefix
    turns: LogNormal = field(default=LogNormal(40, 1.05))
    max_turns: int = 600
    new_tokens: LogNormal = field(default=LogNormal(364, 1.75))  # of a later prompt, after the answer before it
    output_tokens: LogNormal = field(default=LogNormal(230, 1.0))
    tool_gap_s: LogNormal = field(default=LogNormal(8.5, 0.65))
    human_gap_s: LogNormal = field(default=LogNormal(150, 1.45))
    human_share: float = 0.16  # of gaps
    compact_at_tokens: int = 160_000  # a prompt beyond this is replaced by a summary
    compact_share: float = 0.002  # of turns compacted for another reason
    summary_tokens: LogNormal = field(default=LogNormal(22_000, 0.7))  # after the prefix
    max_context: int = 200_000
    block_tokens: int = 64

    def __post_init__(self) -> None:
        require(self.sessions >= 1 and self.groups >= 1 and self.max_turns >= 1, "sessions, groups and max_turns must be at least 1")
        require(self.block_tokens >= 1 and self.prefix_tokens >= 0, "block_tokens must be at least 1, prefix_tokens at least 0")
        require(
            self.prefix_tokens < self.compact_at_tokens < self.max_context,
            f"expected prefix_tokens < compact_at_tokens < max_context, "
            f"got {self.prefix_tokens}, {self.compact_at_tokens}, {self.max_context}",
        )
        require(0 <= self.human_share <= 1 and 0 <= self.compact_share <= 1, "human_share and compact_share are shares of 0 to 1")

    def generate(self, seed: int) -> Workload:
        """The workload of this seed."""
        turns = self.turns.draw_whole(stream(seed, "agentic", "turns"), self.sessions, self.max_turns)
        requests = int(turns.sum())
        session = np.repeat(np.arange(self.sessions), turns)
        output = self.output_tokens.draw_whole(stream(seed, "agentic", "output"), requests, self.max_context - self.compact_at_tokens)
        prompt, context = self._contexts(seed, turns, output)
        human = stream(seed, "agentic", "human").random(requests) < self.human_share
        tool_gap = self.tool_gap_s.draw(stream(seed, "agentic", "tool-gap"), requests)
        delay = np.where(human, self.human_gap_s.draw(stream(seed, "agentic", "human-gap"), requests), tool_gap)
        delay[np.cumsum(turns) - turns] = 0.0
        group = stream(seed, "agentic", "group").integers(self.groups, size=self.sessions)
        rows = Turns(session, context, prompt, output, delay)
        return growing_contexts("agentic", "agentic", rows, group, self.prefix_tokens, self.block_tokens)

    def _contexts(self, seed: int, turns: Longs, output: Longs) -> tuple[Longs, Longs]:
        """Prompt tokens and number of the context of every request: turn k of all sessions at once, the longest sessions first."""
        room = self.compact_at_tokens - self.prefix_tokens
        first = self.first_tokens.draw_whole(stream(seed, "agentic", "first"), turns.size, room)
        new = self.new_tokens.draw_whole(stream(seed, "agentic", "new"), output.size, room)
        summary = self.summary_tokens.draw_whole(stream(seed, "agentic", "summary"), output.size, room)
        compacts = stream(seed, "agentic", "compact").random(output.size) < self.compact_share
        prompt, context = np.empty_like(output), np.empty_like(output)
        longest = np.argsort(-turns, kind="stable")
        begin = (np.cumsum(turns) - turns)[longest]
        prompt[begin], context[begin] = self.prefix_tokens + first[longest], 0
        live = np.searchsorted(-turns[longest], -np.arange(1, turns.max()), side="left")
        for turn, count in enumerate(live, start=1):
            row = begin[:count] + turn
            before = row - 1
            grown = prompt[before] + output[before] + new[row]
            compact = compacts[row] | (grown > self.compact_at_tokens)
            prompt[row] = np.where(compact, self.prefix_tokens + summary[row], grown)
            context[row] = context[before] + compact
        return prompt, context
