"""People chatting: short turns, long think times, conversations that end at the context limit."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvsim.rng import stream
from kvsim.workload.growing import LogNormal, Turns, growing_contexts, require
from kvsim.workload.synthetic import SYNTHETIC
from kvsim.workload.workload import Workload


@SYNTHETIC.register("chat", source="fitted to ShareGPT conversations up to 8k tokens, lengths as in sarathi-serve's processed set, 2024")
@dataclass(frozen=True)
class Chat:
    """Chat conversations like ShareGPT's: a shared system prompt, short questions, think times of half a minute and more.

    The defaults give prompts of p50 2.0k and mean 2.5k tokens, their history included, and answers of p50 380 and mean 455 tokens;
    the conversations they follow have 1.7k, 2.3k, 415 and 439.
    """

    sessions: int = 1000
    groups: int = 1  # sets of conversations that share a system prompt
    prefix_tokens: int = 256
    turns: LogNormal = field(default=LogNormal(5, 0.8))
    max_turns: int = 100
    new_tokens: LogNormal = field(default=LogNormal(60, 1.3))
    output_tokens: LogNormal = field(default=LogNormal(380, 0.6))
    think_s: LogNormal = field(default=LogNormal(40, 1.0))
    max_context: int = 8_192
    block_tokens: int = 64

    def __post_init__(self) -> None:
        require(self.sessions >= 1 and self.groups >= 1 and self.max_turns >= 1, "sessions, groups and max_turns must be at least 1")
        require(self.block_tokens >= 1 and self.prefix_tokens >= 0, "block_tokens must be at least 1, prefix_tokens at least 0")
        require(self.max_context >= self.prefix_tokens + 2, f"max_context {self.max_context} leaves no room after prefix_tokens")

    def generate(self, seed: int) -> Workload:
        """The workload of this seed. A conversation has fewer turns than drawn where the next would pass `max_context`."""
        turns = self.turns.draw_whole(stream(seed, "chat", "turns"), self.sessions, self.max_turns)
        requests = int(turns.sum())
        session = np.repeat(np.arange(self.sessions), turns)
        begin = np.cumsum(turns) - turns
        half = (self.max_context - self.prefix_tokens) // 2  # question and answer of a first turn always fit
        new = self.new_tokens.draw_whole(stream(seed, "chat", "new"), requests, half)
        output = self.output_tokens.draw_whole(stream(seed, "chat", "output"), requests, half)
        grown = np.cumsum(new + output)
        end = self.prefix_tokens + grown - (grown - new - output)[begin][session]
        fits = end <= self.max_context
        delay = self.think_s.draw(stream(seed, "chat", "think"), requests)
        delay[begin] = 0.0
        group = stream(seed, "chat", "group").integers(self.groups, size=self.sessions)
        rows = Turns(session[fits], np.zeros(int(fits.sum()), np.int64), (end - output)[fits], output[fits], delay[fits])
        return growing_contexts("chat", "chat", rows, group, self.prefix_tokens, self.block_tokens)
