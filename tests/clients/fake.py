"""A server that answers every turn after the same time, and sessions in the AgentX format to send to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import simpy

from kvsim.workload.clients import Client, Turn
from kvsim.workload.clients.plan import SessionPlan
from kvsim.workload.load import load
from kvsim.workload.workload import Workload


class FakeServer:
    """Keeps what it is told: (time, turn) of each turn, when the window opened, when the run stopped."""

    def __init__(self, env: simpy.Environment, answer_s: float) -> None:
        self.env, self.answer_s = env, answer_s
        self.client: Client | None = None
        self.sent: list[tuple[float, Turn]] = []
        self.ended: dict[int, float] = {}
        self.opened: float | None = None
        self.stopped: float | None = None

    def send(self, turn: Turn) -> None:
        self.sent.append((self.env.now, turn))
        self.env.timeout(self.answer_s).callbacks.append(lambda _: self._end(turn))

    def _end(self, turn: Turn) -> None:
        if self.stopped is not None:
            return
        assert self.client is not None
        self.ended[turn.number] = self.env.now
        self.client.ended(turn.number, self.env.now)

    def open_window(self) -> None:
        assert self.opened is None
        self.opened = self.env.now

    def stop(self) -> None:
        self.stopped = self.env.now

    @property
    def in_window(self) -> list[tuple[float, int, int, int]]:
        """(time since the window opened, instance, row, output) of the turns sent in it."""
        assert self.opened is not None
        return [
            (now - self.opened, turn.instance, turn.row, turn.output)
            for now, turn in self.sent
            if now >= self.opened and turn.number < 1 << 40 and (self.stopped is None or now <= self.stopped)
        ]


def drive(workload: Workload, make: Callable[..., Any], answer_s: float = 1.0, until_s: float | None = None) -> FakeServer:
    """Run `make(env, workload, plan, server)` to its end (or `until_s`)."""
    env = simpy.Environment()
    server = FakeServer(env, answer_s)
    client = make(env, workload, SessionPlan.of(workload), server)
    server.client = client
    client.start()
    while server.stopped is None and env.peek() != float("inf") and (until_s is None or env.peek() <= until_s):
        env.step()
    return server


def agentx(tmp_path: Path, sessions: list[list[Any]]) -> Workload:
    """Sessions of requests (t, input, output, api_time), and of sub-agents {"t", "duration", "requests"} among them."""

    fresh = [0]

    def request(ids: list[int], t: float, n_in: int, n_out: int, api: float) -> dict[str, Any]:
        while len(ids) < n_in // 64:
            fresh[0] += 1
            ids.append(fresh[0])
        listed = ids[: n_in // 64]
        return {"t": t, "type": "n", "model": "m", "in": n_in, "out": n_out, "hash_ids": listed, "api_time": api, "think_time": 0.0}

    lines = []
    for s, items in enumerate(sessions):
        made: list[dict[str, Any]] = []
        main: list[int] = []
        for k, item in enumerate(items):
            if isinstance(item, dict):
                own: list[int] = []
                made.append(
                    {
                        "t": item["t"], "type": "subagent", "agent_id": f"a{k}", "subagent_type": "x",
                        "duration_ms": item["duration"] * 1000,
                        "total_tokens": 1, "tool_use_count": 0, "status": "completed", "models": ["m"],
                        "tool_tokens": 0, "system_tokens": 0,
                        "requests": [request(own, *r) for r in item["requests"]],
                    }
                )  # fmt: skip
            else:
                made.append(request(main, *item))
        lines.append(
            json.dumps(
                {
                    "id": f"s{s}", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 0, "system_tokens": 0,
                    "requests": made,
                }
            )
        )  # fmt: skip
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return load(path, cache=False)
