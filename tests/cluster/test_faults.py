"""Faults on timelines worked out here: what is lost, what is sent again, what takes longer. A step takes 1 s."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsim.cluster import Cluster
from kvsim.cluster.faults import Fault
from tests.cluster.conftest import TIERS, Shape, Tiers, run, workload_of
from tests.cluster.test_split import RETURNS, SPLIT, TIGHT


def down(at_s: float, until_s: float | None, node: int = 0) -> tuple[Fault, ...]:
    return (Fault("node-down", at_s, until_s, node),)


def test_a_lost_request_is_sent_to_another_node() -> None:
    """Node 0 is lost at 3.5, in the fourth of 10 steps: node 1 starts afresh then. It counts from its first arrival."""
    cluster, t = run(Shape(nodes=2, faults=down(3.5, 20.0)), workload_of([[(0.0, 40, 10)]]))
    assert (t["node"][0], t["retries"][0]) == (1, 1)
    assert (t["arrival_s"][0], t["scheduled_s"][0], t["finish_s"][0]) == (0.0, 3.5, 13.5)
    assert cluster.use().running == 0
    assert [worker for worker, _ in cluster.retired] == [0]


def test_without_a_node_requests_wait_for_one() -> None:
    """One is lost at 4 and one arrives at 5; both start when the node is back, at 9."""
    _, t = run(Shape(faults=down(4.0, 9.0)), workload_of([[(0.0, 40, 6)], [(5.0, 40, 2)]]))
    assert t["scheduled_s"].tolist() == [9.0, 9.0]
    assert t["arrival_s"].tolist() == [0.0, 5.0]
    assert t["retries"].tolist() == [1, 0]


@pytest.mark.parametrize("tiers", ["none", "native-lru", "simple-eager", "native+ssd", "gds"])
def test_a_node_comes_back_with_empty_caches(tiers: str) -> None:
    _, whole = run(Shape(TIERS[tiers]), workload_of([[(0.0, 64, 4), (20.0, 100, 1)]]))
    _, t = run(Shape(TIERS[tiers], faults=down(10.0, 12.0)), workload_of([[(0.0, 64, 4), (20.0, 100, 1)]]))
    assert whole["hbm_tokens"].tolist() == [0, 64]
    assert t["theoretical_tokens"].tolist() == [0, 64]
    assert t["computed_tokens"].tolist() == [64, 100]
    assert t["missed_evicted"].tolist() == [0, 64]


def test_the_pool_outlives_a_node() -> None:
    """What the node wrote to the pool it reads again: 4 blocks in 1 s."""
    shape = replace(TIGHT, tiers=TIERS["pool"], hbm=20, faults=down(10.0, 12.0))
    _, t = run(shape, workload_of([[(0.0, 64, 4), (20.0, 100, 1)]]))
    assert t["pool_tokens"].tolist() == [0, 64]
    assert t["first_token_s"][1] == 24.0 + 1.0 + 1.0


def test_an_orphaned_handover_is_computed_where_it_goes() -> None:
    """A handover that would take from 1 to 7 is cut at 3.5: the decode node computes the prompt in a step and has its tokens by 6.5."""
    _, t = run(replace(SPLIT, nic_s=(2.0, 2.0), faults=down(3.5, 20.0)), workload_of([[(0.0, 40, 3)]]))
    assert (t["scheduled_s"][0], t["first_token_s"][0], t["finish_s"][0]) == (0.0, 4.5, 6.5)
    assert t["retries"][0] == 0
    assert t["transfer_s"][0] == 2.5


def test_a_handover_that_has_arrived_needs_no_giver() -> None:
    """The decode node is amid a step, from 2.75 to 3.75, when a handover ends, at 3.0, and when the giver goes down, at 3.5.

    Nothing is lost, and the node that is back at 5 has nothing to let go of what the old one held.
    """
    sessions = [[(0.0, 40, 9)], [(1.25, 16, 2)], [(6.0, 40, 2)], [(6.0, 40, 2)]]
    shape = replace(SPLIT, nic_s=(0.25, 0.25), hbm=8, faults=down(3.5, 5.0))
    cluster, t = run(shape, workload_of(sessions))
    whole = run(replace(shape, faults=()), workload_of(sessions))[1]
    assert cluster.front.done[0].turn.row == 1
    assert cluster.front.done[0].handover == (2.75, 3.0, 1)
    np.testing.assert_array_equal(t["finish_s"][:2], whole["finish_s"][:2])
    assert t["retries"].tolist() == [0, 0, 0, 0]
    assert int(cluster.engines[0].e.state.held[0]) == 0


def test_a_handover_cut_in_the_step_under_way_is_computed() -> None:
    """As above, but the giver goes down at 2.875, before the end of the handover at 3.0: the decode node computes the prompt at 3.75."""
    sessions = [[(0.0, 40, 9)], [(1.25, 16, 2)]]
    _, t = run(replace(SPLIT, hbm=8, faults=down(2.875, 5.0)), workload_of(sessions))
    assert t["first_token_s"][1] == 4.75
    assert t["transfer_s"][1] == 0.125
    assert t["recomputed_tokens"][1] == 15  # all but the token that a decode node always computes


def test_a_decode_node_that_is_lost_sends_its_requests_through_both_again() -> None:
    """Lost at 3.5 while it decodes; the other decode node gets it after a second prefill (the cache is still warm: 32 of 40 tokens)."""
    cluster, t = run(replace(SPLIT, nodes=3, faults=down(3.5, None, node=1)), workload_of([[(0.0, 40, 9)]]))
    assert (t["retries"][0], t["node"][0], t["decode_node"][0]) == (1, 0, 2)
    assert t["first_token_s"][0] == 3.5 + 1.0 + 0.75 + 1.0
    assert t["hbm_tokens"][0] == 32
    assert cluster.front.done[0].handover == (4.5, 5.25, 3)


def test_a_prompt_for_nobody_is_let_go() -> None:
    """The only decode node is away from 0.5 to 5: the prompt, prefilled by 1, is let go, and prefilled again at 5."""
    cluster, t = run(replace(SPLIT, faults=down(0.5, 5.0, node=1)), workload_of([[(0.0, 40, 2)]]))
    assert t["retries"][0] == 1
    assert t["first_token_s"][0] == 5.0 + 1.0 + 0.75 + 1.0
    assert int(cluster.engines[0].e.state.held[0]) == 0


@pytest.mark.parametrize(
    ("tiers", "fault", "first_token_s"),
    [
        ("native+ssd", Fault("ssd-slow", 20.0, None, 0, 4.0), 4.0 + 0.5 + 1.0),
        ("native+ssd", Fault("ssd-slow", 20.0, 29.0, 0, 4.0), 1.0 + 0.5 + 1.0),
        ("native+ssd", Fault("link-degraded", 20.0, None, 0, 2.0, "host"), 1.0 + 1.0 + 1.0),
        ("native+ssd", Fault("link-degraded", 20.0, None, 0, 2.0, "nic"), 1.0 + 0.5 + 1.0),
        ("native+gds", Fault("ssd-slow", 20.0, None, 0, 4.0), 4.0 + 1.0),
        ("pool", Fault("link-degraded", 20.0, None, 0, 2.0, "nic"), 2.0 + 1.0),
        ("pool", Fault("link-degraded", 20.0, 29.0, 0, 2.0, "nic"), 1.0 + 1.0),
    ],
)
def test_what_is_slow_takes_so_many_times_as_long(tiers: str, fault: Fault, first_token_s: float) -> None:
    """Four blocks: 1 s from the SSD or the pool, 0.5 s from DRAM, then a step; all in their own place."""
    _, t = run(replace(TIGHT, tiers=TIERS[tiers], host=6, faults=(fault,)), workload_of(RETURNS))
    assert t["first_token_s"][1] - t["arrival_s"][1] == first_token_s


def test_a_full_ssd_takes_nothing_new_and_gives_what_it_has() -> None:
    shape = replace(TIGHT, tiers=TIERS["native+ssd"], host=6)
    sessions = [[(0.0, 64, 4), (29.0, 80, 1)], [(10.0, 96, 1)]]
    for fault, tokens in ((Fault("ssd-full", 5.0, None), 64), (Fault("ssd-full", 0.0, 5.0), 0)):
        cluster, t = run(replace(shape, faults=(fault,)), workload_of(sessions))
        assert t["ssd_tokens"].tolist() == [0, tokens, 0]
        assert cluster.plan.commons.ssds[0].used == (4 if tokens else 6)


@pytest.mark.parametrize("tiers", ["pool", "native+pool"])
@pytest.mark.parametrize(("at_s", "until_s", "tokens"), [(20.0, 25.0, 0), (-1.0, 5.0, 0), (50.0, 60.0, 64)])
def test_a_lost_pool_loses_what_it_held(tiers: str, at_s: float, until_s: float, tokens: int) -> None:
    """Written at 1-2 s, and lost before it is wanted; or away when it would have been written."""
    shape = replace(TIGHT, tiers=TIERS[tiers], host=6, faults=(Fault("pool-lost", max(at_s, 0.0), until_s),))
    _, t = run(shape, workload_of([[(0.0, 64, 2), (29.0, 80, 1)], [(10.0, 96, 1)]]))
    assert t["pool_tokens"].tolist() == [0, tokens, 0]


@pytest.mark.parametrize("tiers", ["native+ssd", "native+pool", "pool", "gds"])
def test_an_idle_node_still_writes_what_it_was_to_write(tiers: str) -> None:
    """The only request ends at 1 s; what it leaves goes down at once, not when the node has the next request."""
    used = []

    def look(cluster: Cluster) -> None:
        commons = cluster.plan.commons
        store = commons.pool or commons.ssds[0]
        used.append(int(((store.state.rows.held == 1) & (store.state.rows.ready <= 9.0)).sum()))

    shape = replace(TIGHT, tiers=TIERS[tiers])
    shape.build(workload_of([[(0.0, 64, 1)], [(20.0, 64, 1)]]), looks=[(9.0, look)]).run()
    assert used == [4]


def test_a_node_down_for_good_leaves_the_rest_to_others() -> None:
    _, t = run(Shape(Tiers("vllm-native"), nodes=3, faults=down(4.25, None, node=1)), workload_of([[(0.5 * s, 64, 5)] for s in range(12)]))
    assert t["retries"].sum() > 0
    assert (t["node"][t["arrival_s"] > 4.25] != 1).all()
    assert (t["node"][t["retries"] > 0] != 1).all()
