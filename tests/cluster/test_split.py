"""Prefill and decode apart, and tiers, on timelines worked out here. A step takes 1 s unless a test says otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.cluster.conftest import TIERS, Shape, run, workload_of

SPLIT = Shape(nodes=2, split=1, nic_s=(0.25, 0.25))
# Six blocks of HBM, which the other session fills; a block comes up from DRAM in 0.125 s, from SSD and pool in 0.25 s.
TIGHT = Shape(hbm=6, host_s=(0.0, 0.125), ssd_s=(0.0, 0.25), nic_s=(0.0, 0.25))
# Turn 0 has 4 blocks; then another session of 6; at 30 s turn 1 wants the 4 of turn 0 and has 16 tokens of its own.
RETURNS = [[(0.0, 64, 1), (29.0, 80, 1)], [(10.0, 96, 1)]]


def test_a_request_goes_through_both_nodes() -> None:
    """Prefill 0-1; three blocks are handed over by 1.75; the last prompt token is computed again: tokens at 2.75, 3.75, 4.75."""
    cluster, t = run(SPLIT, workload_of([[(0.0, 40, 3)]]))
    assert (t["scheduled_s"][0], t["first_token_s"][0], t["finish_s"][0]) == (0.0, 2.75, 4.75)
    assert (t["node"][0], t["decode_node"][0], t["transfer_s"][0]) == (0, 1, 0.75)
    assert t["recomputed_tokens"][0] == 0
    assert cluster.use().ways["nic"].blocks.tolist() == [3, 3]
    assert cluster.front.done[0].handover == (1.0, 1.75, 3)


def test_a_full_decode_node_holds_up_the_prefill_node() -> None:
    """Both nodes hold two requests of three blocks. A and B are prefilled by 1, handed over by 1.75 and 2.5.

    C starts where A's blocks have gone, at 1.75, and D at 2.75. A decodes at 1.75, 2.75, 3.75 and ends at 4.75; only then C finds room,
    and is handed over by 5.5, which the decode node, busy until 5.75, tells then. Until then C holds its blocks, and E waits.
    """
    cluster, t = run(replace(SPLIT, hbm=6), workload_of([[(0.0, 40, 3)]] * 5))
    assert t["scheduled_s"].tolist() == [0.0, 0.0, 1.75, 2.75, 5.75]
    assert t["finish_s"][:2].tolist() == [4.75, 5.75]
    assert t["first_token_s"][2] == 6.75
    assert cluster.front.done[2].handover == (4.75, 5.5, 3)


@pytest.mark.parametrize(("cached", "blocks"), [(False, 5 + 7), (True, 5 + 3)])
def test_what_a_decode_node_has_is_not_handed_over(cached: bool, blocks: int) -> None:
    """79 tokens of turn 0 leave 4 full blocks in the decode node's HBM; turn 1 has 7 blocks."""
    cluster, t = run(replace(SPLIT, decode_prefix_cache=cached), workload_of([[(0.0, 64 + 10, 6), (5.0, 100, 2)]]))
    assert t["hbm_tokens"].tolist() == [0, 64]  # of the prefill node, which never saw the output
    assert int(cluster.use().ways["nic"].blocks[1]) == blocks
    assert t["transfer_s"].tolist() == [1.25, 0.25 * (blocks - 5)]


def test_handovers_queue_on_the_nic() -> None:
    """Two prefill nodes into one decode node: 3 blocks of each at 1 s; the second waits until 1.75 and ends at 2.5."""
    cluster, t = run(replace(SPLIT, nodes=3, split=2), workload_of([[(0.0, 40, 2)], [(0.0, 40, 2)]]))
    assert [r.handover for r in cluster.front.done] == [(1.0, 1.75, 3), (1.75, 2.5, 3)]
    assert t["first_token_s"].tolist() == [2.75, 3.75]
    assert t["transfer_s"].tolist() == [0.75, 1.5]


def test_a_prompt_of_the_prefill_tiers_reaches_the_decode_node() -> None:
    """Turn 1 finds its 4 blocks in DRAM of the prefill node: they are loaded, the rest computed, and all 5 handed over."""
    shape = replace(TIGHT, tiers=TIERS["native-lru"], nodes=2, split=1)
    _, t = run(shape, workload_of(RETURNS))
    arrived = float(t["finish_s"][0]) + 29.0
    assert t["dram_tokens"].tolist() == [0, 64, 0]
    # 4 blocks up in 0.5 s, a step, 5 blocks over in 1.25 s, a step.
    assert t["first_token_s"][1] == arrived + 0.5 + 1.0 + 1.25 + 1.0


def test_dram_by_hand() -> None:
    """Four blocks up in 0.5 s, then a step."""
    _, t = run(replace(TIGHT, tiers=TIERS["native-lru"]), workload_of(RETURNS))
    assert t["dram_tokens"].tolist() == [0, 64, 0]
    assert (t["arrival_s"][1], t["scheduled_s"][1], t["first_token_s"][1]) == (30.0, 30.5, 31.5)
    assert t["load_s"][1] == 0.5


def test_ssd_in_two_hops() -> None:
    """DRAM holds the six blocks of the other session: up from SSD in 1 s, from DRAM in 0.5 s, then a step."""
    cluster, t = run(replace(TIGHT, tiers=TIERS["native+ssd"], host=6), workload_of(RETURNS))
    assert t["ssd_tokens"].tolist() == [0, 64, 0]
    assert t["dram_tokens"].tolist() == [0, 0, 0]
    assert (t["scheduled_s"][1], t["first_token_s"][1]) == (31.5, 32.5)
    use = cluster.use().ways
    assert use["ssd"].blocks.tolist() == [10, 4]  # 4 + 6 blocks went down once each; the run ends before the last one does
    assert int(use["host"].blocks[1]) == 4


def test_gds_in_one_hop() -> None:
    """Straight into HBM in 1 s, then a step: no block of DRAM, nothing on its link."""
    cluster, t = run(replace(TIGHT, tiers=TIERS["native+gds"], host=6), workload_of(RETURNS))
    assert t["ssd_tokens"].tolist() == [0, 64, 0]
    assert (t["scheduled_s"][1], t["first_token_s"][1]) == (31.0, 32.0)
    assert int(cluster.use().ways["host"].blocks[1]) == 0


def test_gds_without_dram() -> None:
    _, t = run(replace(TIGHT, tiers=TIERS["gds"]), workload_of(RETURNS))
    assert t["ssd_tokens"].tolist() == [0, 64, 0]
    assert (t["scheduled_s"][1], t["first_token_s"][1]) == (31.0, 32.0)


def test_what_finds_no_room_in_dram_is_a_miss() -> None:
    """DRAM of two blocks, filled two at a time: of four blocks on the SSD two can be lifted, the rest is computed."""
    shape = replace(TIGHT, tiers=TIERS["native+ssd"], host=2, max_batched=32)
    _, t = run(shape, workload_of([[(0.0, 64, 8), (29.0, 80, 1)], [(15.0, 96, 1)]]))
    assert t["ssd_tokens"].tolist() == [0, 32, 0]
    assert t["missed_evicted"].tolist() == [0, 32, 0]
    # Up in 0.5 s and 0.25 s, then 48 tokens in two steps.
    assert (t["scheduled_s"][1], t["first_token_s"][1]) == (38.75, 40.75)


@pytest.mark.parametrize("tiers", ["pool", "native+pool"])
def test_the_pool_is_written_and_read_over_the_nics(tiers: str) -> None:
    """Node 0 writes the 4 shared blocks, node 1 reads them: 1 s; through DRAM 0.5 s more."""
    shape = replace(TIGHT, tiers=TIERS[tiers], nodes=2)
    cluster, t = run(shape, workload_of([[(0.0, 64, 3)], [(20.0, 80, 1)]], shared=4))
    assert t["node"].tolist() == [0, 1]
    assert t["pool_tokens"].tolist() == [0, 64]
    assert t["first_token_s"][1] == 22.0 + (0.5 if tiers == "native+pool" else 0.0)
    nics = cluster.plan.commons.nics.way.blocks.tolist()
    assert nics[0] == 4
    assert nics[3] == 4
    assert nics[1] == 0


def test_every_replica_is_written() -> None:
    shape = replace(TIGHT, tiers=TIERS["pool"], nodes=2, replicas=3)
    cluster, _ = run(shape, workload_of([[(0.0, 64, 3)], [(20.0, 80, 1)]], shared=4))
    nics = cluster.plan.commons.nics.way.blocks.tolist()
    assert (nics[0], nics[3]) == (12, 4)


def test_what_was_read_from_the_pool_stays_for_its_lease() -> None:
    """A pool of six blocks. Turn 1 reads the 4 of turn 0 at 30 s; at 50 s another session
    writes 6: 2 find room, 4 only where those that were read are not leased any more.
    """
    sessions = [[(0.0, 64, 2), (28.0, 72, 2), (0.0, 76, 1)], [(50.0, 96, 2)]]
    base = replace(TIGHT, tiers=TIERS["pool"], nodes=2, pool=6, hbm=8)
    for lease_s, evicted, dropped in ((0.0, 4, 0), (100.0, 0, 4)):
        cluster, _ = run(replace(base, lease_s=lease_s), workload_of(sessions))
        pool = cluster.plan.commons.pool
        assert pool is not None
        assert (pool.evictions, int(pool.state.meta.dropped[0])) == (evicted, dropped)


@pytest.mark.parametrize(("up_s", "step_s"), [(1.0, 4.25), (0.1, 1.0)])
@pytest.mark.parametrize("tiers", ["native-lru", "simple-eager", "native+gds", "gds", "pool"])
def test_layers_overlap_with_a_load(tiers: str, up_s: float, step_s: float) -> None:
    """Four layers, four blocks: a step of 1 s lasts max(1, load + 1 / 4)."""
    shape = replace(TIGHT, tiers=TIERS[tiers], host=6 if "gds" in tiers else 40, layers=4)
    _, t = run(replace(shape, host_s=(0.0, up_s), ssd_s=(0.0, up_s), nic_s=(0.0, up_s)), workload_of(RETURNS))
    assert t["hbm_tokens"].tolist() == [0, 0, 0]
    assert int(t["dram_tokens"][1] + t["ssd_tokens"][1] + t["pool_tokens"][1]) == 64
    assert t["scheduled_s"][1] == 30.0
    assert t["first_token_s"][1] - 30.0 == pytest.approx(step_s)


def test_ranks_in_lockstep_take_the_slowest_ones_step() -> None:
    """100 prompt tokens of rank 0 take 0.25 + 1 s, 10 of rank 1 take 0.35 s alone; together both take 1.25 s."""
    apart = Shape(dp=2, step=(0.25, 0.01, 0.0, 0.0))
    w = workload_of([[(0.0, 100, 1)], [(0.0, 10, 1)]])
    _, t = run(apart, w)
    np.testing.assert_allclose(t["finish_s"], [1.25, 0.35])
    _, t = run(replace(apart, lockstep=True), w)
    assert t["finish_s"].tolist() == [1.25, 1.25]


def test_two_ranks_share_the_memory_behind_their_links() -> None:
    """Both load 4 blocks at 30 s. Links that together ask 1.5 times what the memory gives: 4 s for the first, 6 s for the second."""
    shape = replace(TIGHT, tiers=TIERS["native-lru"], dp=2, host_s=(0.0, 1.0), router="session-hash")
    first = [[(0.0, 64, 1), (29.0, 80, 1)]] * 2
    other = [[(10.0, 96, 1)]] * 2
    w = workload_of([*first, *other])
    _, t = run(replace(shape, router="round-robin"), w)
    assert t["dram_tokens"].tolist() == [0, 64, 0, 64, 0, 0]
    assert t["load_s"][[1, 3]].tolist() == [4.0, 4.0]
    _, t = run(replace(shape, router="round-robin", per_shared=(0.75, 0.75)), w)
    assert t["load_s"][[1, 3]].tolist() == [4.0, 6.0]
