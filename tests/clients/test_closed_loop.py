"""Closed-loop clients on hand-made sessions whose timeline is worked out here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.cache.offload import OFFLOAD, Connector, HostTier
from kvsim.cluster import Cluster, Plan
from kvsim.engine.step_time.linear import Linear
from kvsim.engine.vllm import Chains, Commons, EngineConfig, VllmEngine
from kvsim.metrics.recorder import Recorder
from kvsim.rng import stream
from kvsim.router import ROUTER, Setting
from kvsim.workload.clients.closed_loop import ClosedLoop
from kvsim.workload.clients.plan import SessionPlan
from kvsim.workload.load import load
from kvsim.workload.workload import Workload

STEP_S = 1.0  # every step takes one second, whatever is in it


def native(tmp_path: Path, sessions: list[list[tuple[float, int, int]]], shared: int = 0) -> Workload:
    """Sessions of (delay, input, output) turns, each re-sending the last; `shared` leading blocks are the same for all."""
    path, lines, fresh = tmp_path / "trace.jsonl", [], shared
    for s, turns in enumerate(sessions):
        chain = list(range(shared))
        for t, (delay, n_in, n_out) in enumerate(turns):
            while len(chain) < (n_in + n_out) // 16:
                chain.append(fresh)
                fresh += 1
            when = {"arrival_s": delay} if t == 0 else {"delay_s": delay}
            row = {"request_id": len(lines), "session_id": f"s{s}", "turn": t, **when, "input_tokens": n_in, "output_tokens": n_out}
            lines.append(json.dumps({**row, "block_ids": chain[: (n_in + n_out) // 16]}))
    path.write_text("\n".join(lines))
    return load(path, cache=False)


def cluster(
    workload: Workload,
    lanes: int,
    *,
    until: float = np.inf,
    budget: int | None = None,
    nodes: int = 1,
    blocks: int = 1000,
    host: tuple[str, int] | None = None,
) -> Cluster:
    commons = Commons(workload.unique_ids)

    def engine(worker: int) -> VllmEngine:
        connector = OFFLOAD[host[0]]().connector(HostTier(host[1], "lru", 0.25, 0.01, 0.01)) if host else Connector(HostTier(0))
        chains = Chains(workload.run_offset, workload.run_start, workload.run_length, workload.unique_ids)
        return VllmEngine(
            EngineConfig(workload.block_tokens, blocks + 1, 64, 2048),
            chains,
            Linear(STEP_S, 0.0, 0.0, 0.0).build(),
            connector,
            workload.unique_ids,
            int(workload.chain_blocks.max()),
            commons,
        )

    if budget is None and until == np.inf:
        budget = workload.sessions
    duration = None if until == np.inf else until
    plan = SessionPlan.of(workload)
    setting = Setting(
        nodes, "both", workload.block_tokens, blocks, 2048, workload.unique_ids, stream(0, "router"), lambda new, cached: 1.0, 0.0
    )
    return Cluster(
        Plan(
            engine=engine,
            commons=commons,
            node_of=range(nodes),
            groups=np.stack([np.arange(nodes), np.arange(nodes) + 1], axis=1),
            prefillers=None,
            router=ROUTER["session-hash"]().build(setting),
            second_router=None,
            client=lambda env, server: ClosedLoop(env, workload, plan, server, lanes, budget, 0.0, duration),
        ),
        workload,
    )


def table(c: Cluster) -> dict[str, Any]:
    c.run()
    recorder = Recorder()
    recorder.extend(c.columns())
    recorder.check()
    return recorder.table()


def test_a_turn_comes_its_delay_after_the_end_of_the_last(tmp_path: Path) -> None:
    """Steps of 1 s. Turn 0 arrives at 0, prefills in step 1, its 3 tokens end at 3; turn 1 at 3 + 5 = 8, 2 tokens, ends at 10."""
    t = table(cluster(native(tmp_path, [[(0.0, 40, 3), (5.0, 80, 2)]]), 1))
    assert t["arrival_s"].tolist() == [0.0, 8.0]
    assert t["scheduled_s"].tolist() == [0.0, 8.0]
    assert t["first_token_s"].tolist() == [1.0, 9.0]
    assert t["finish_s"].tolist() == [3.0, 10.0]
    assert t["hbm_tokens"].tolist() == [0, 32]  # 42 computed tokens of turn 0 fill two blocks of 16
    assert t["theoretical_tokens"].tolist() == [0, 32]
    assert t["missed_partial_block"].tolist() == [8, 0]


def test_a_lane_takes_the_next_session_when_one_ends(tmp_path: Path) -> None:
    """Two lanes, three sessions: the third begins when the first of the others ends, at 2 s."""
    t = table(cluster(native(tmp_path, [[(0.0, 20, 2)], [(0.0, 20, 5)], [(0.0, 20, 1)]]), 2))
    assert t["session"].tolist() == [0, 2, 1]
    assert t["arrival_s"].tolist() == [0.0, 2.0, 0.0]
    assert t["finish_s"].tolist() == [2.0, 3.0, 5.0]
    assert t["lane"].tolist() == [0, 0, 1]


def test_a_second_pass_never_hits_the_first(tmp_path: Path) -> None:
    workload = native(tmp_path, [[(0.0, 64, 1)], [(0.0, 64, 1)]], shared=3)
    t = table(cluster(workload, 1, budget=4))
    assert t["hbm_tokens"].tolist() == [0, 48, 0, 48]  # sessions of a pass share three blocks


def test_the_window_closes_on_requests_in_flight(tmp_path: Path) -> None:
    c = cluster(native(tmp_path, [[(0.0, 20, 50)]]), 3, until=10.0)
    t = table(c)
    assert t["request"].size == 0
    assert c.use().running == 3
    assert c.now_s == 10.0


def test_sub_agents_spawn_and_join(tmp_path: Path) -> None:
    """Main turn 0 ends at 2; the sub-agent starts 1 s later, at 3, and ends at 7; main turn 1 (delay 2) waits for it: 7, not 4."""

    def request(t: float, n_in: int, n_out: int, api: float, ids: list[int]) -> dict[str, Any]:
        return {"t": t, "type": "n", "model": "m", "in": n_in, "out": n_out, "hash_ids": ids, "api_time": api, "think_time": 0.0}

    sub = {
        "t": 3.0, "type": "subagent", "agent_id": "a", "subagent_type": "x", "duration_ms": 4000, "total_tokens": 1, "tool_use_count": 0,
        "status": "completed", "models": ["m"], "tool_tokens": 0, "system_tokens": 0, "requests": [request(3.0, 64, 4, 4.0, [9])],
    }  # fmt: skip
    session = {
        "id": "s", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 0, "system_tokens": 0,
        "requests": [request(0.0, 64, 2, 2.0, [1]), sub, request(8.0, 130, 1, 1.0, [1, 2])],
    }  # fmt: skip
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(session))
    workload = load(path, cache=False)
    t = table(cluster(workload, 1))
    by_input = {int(n): i for i, n in enumerate(t["input_tokens"] * 10 + t["output_tokens"])}
    first, agent, second = (by_input[n] for n in (642, 644, 1301))
    assert t["finish_s"][first] == 2.0
    assert t["arrival_s"][agent] == 3.0
    assert t["finish_s"][agent] == 7.0
    assert t["arrival_s"][second] == pytest.approx(max(2.0 + workload.delay_s[workload.turn == 1][0], 7.0))


def test_sessions_keep_to_their_node(tmp_path: Path) -> None:
    workload = native(tmp_path, [[(0.0, 40, 2), (1.0, 80, 2), (1.0, 120, 2)]] * 12)
    c = cluster(workload, 6, nodes=3)
    t = table(c)
    nodes = {s: set(t["node"][t["session"] == s]) for s in range(12)}
    assert all(len(n) == 1 for n in nodes.values())
    assert len(set().union(*nodes.values())) == 3
    assert t["hbm_tokens"].sum() == 12 * (32 + 80)


def test_a_request_that_can_never_fit_is_rejected_and_its_session_goes_on(tmp_path: Path) -> None:
    t = table(cluster(native(tmp_path, [[(0.0, 16 * 50, 2), (1.0, 20, 2)]]), 1, blocks=20))
    assert t["rejected"].tolist() == [True, False]
    assert t["arrival_s"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("offload", sorted(OFFLOAD))
def test_laws_hold_under_pressure_with_every_connector(tmp_path: Path, offload: str) -> None:
    """More sessions than HBM holds: preemptions, evictions and loads; the engine's own checks run at the end."""
    rng = np.random.default_rng(5)
    sessions = []
    for _ in range(14):
        n, turns = 0, []
        for _ in range(5):
            n += int(rng.integers(20, 200))
            turns.append((float(rng.exponential(4.0)), n, int(rng.integers(2, 30))))
            n += turns[-1][2]
        sessions.append(turns)
    workload = native(tmp_path, sessions, shared=2)
    results = []
    for host in (None, (offload, 400)):
        c = cluster(workload, 10, blocks=75, host=host)
        t = table(c)
        assert t["request"].size == 70
        assert (t["theoretical_tokens"] >= t["hbm_tokens"] + t["dram_tokens"] - 15).all()
        results.append((int(t["hbm_tokens"].sum()), int(t["dram_tokens"].sum()), c))
    assert results[0][1] == 0
    assert results[1][1] > 0
    # A hit that is counted is a hit that is moved: what came up the link is what requests took from the host (whole blocks).
    up = int(results[1][2].use().ways["host"].blocks[1]) * 16
    assert up >= results[1][1]


def test_same_seed_same_rows(tmp_path: Path) -> None:
    workload = native(tmp_path, [[(0.0, 100 + 7 * s, 5), (2.0, 220 + 7 * s, 4)] for s in range(9)])
    a, b = (table(cluster(workload, 4, blocks=60)) for _ in range(2))
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])
