"""Every router over every combination of tiers, splits, ranks and faults: nothing is lost or counted twice, whatever the sessions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cluster.faults import Fault
from kvsim.router import ROUTER
from tests.cluster.conftest import TIERS, Session, Shape, growing, run, same, workload_of

ROUTERS = sorted(ROUTER)
ROUTER_PAIRS = st.tuples(st.sampled_from(ROUTERS), st.sampled_from(ROUTERS))
DELAYS = st.one_of(st.integers(0, 6).map(float), st.floats(0, 6))
SESSIONS = st.lists(
    st.lists(st.tuples(DELAYS, st.integers(1, 120), st.integers(1, 25)), min_size=1, max_size=4), min_size=1, max_size=8
).map(growing)
SIZES = st.fixed_dictionaries(
    {
        "nodes": st.integers(1, 4),
        "hbm": st.integers(34, 90),
        "host": st.integers(1, 90),
        "ssd": st.integers(1, 90),
        "pool": st.integers(1, 120),
        "layers": st.sampled_from([0, 0, 4]),
        "max_seqs": st.integers(2, 8),
        "max_batched": st.sampled_from([32, 64, 256]),
        "prompt_only": st.booleans(),
    }
)
TIMES = st.fixed_dictionaries(
    {
        "step": st.sampled_from([(1.0, 0.0, 0.0, 0.0), (0.25, 0.01, 0.001, 0.0)]),
        "latency_s": st.sampled_from([0.0, 0.25]),
        "host_s": st.sampled_from([(0.0, 0.0), (0.01, 0.02), (0.5, 0.25), (0.02, 3.0)]),
        "ssd_s": st.sampled_from([(0.0, 0.0), (0.125, 0.0625), (2.0, 1.0)]),
        "nic_s": st.sampled_from([(0.0, 0.0), (0.02, 0.03), (1.0, 0.5)]),
        "duplex": st.sampled_from([1.0, 0.5]),
    }
)
STORES = st.fixed_dictionaries(
    {
        "high": st.sampled_from([1.0, 0.9]),
        "low": st.sampled_from([0.85, 0.5]),
        "lease_s": st.sampled_from([0.0, 5.0]),
        "replicas": st.integers(1, 2),
    }
)
TOPOLOGIES = {
    "1P1D": {"nodes": 2, "split": 1},
    "2P1D": {"nodes": 3, "split": 2},
    "1P2D": {"nodes": 3, "split": 1},
    "1P2D, decode prefix cache": {"nodes": 3, "split": 1, "decode_prefix_cache": True},
    "2P2D, 2 ranks": {"nodes": 4, "split": 2, "dp": 2, "decode_prefix_cache": True},
    "3 nodes": {"nodes": 3},
    "2 nodes of 2 ranks": {"nodes": 2, "dp": 2},
    "2 nodes of 3 ranks in lockstep": {"nodes": 2, "dp": 3, "lockstep": True},
    "1P1D, 2 ranks in lockstep": {"nodes": 2, "split": 1, "dp": 2, "lockstep": True},
}


def faults_of(tiers: str, nodes: int) -> st.SearchStrategy[tuple[Fault, ...]]:
    """Any faults that these tiers can have."""
    t = TIERS[tiers]
    kinds = ["node-down", "link-degraded", *(["ssd-slow", "ssd-full"] if t.ssd else []), *(["pool-lost"] if t.pool else [])]
    starts = st.one_of(st.integers(0, 30).map(float), st.floats(0, 30))

    def fault(kind: Any) -> st.SearchStrategy[Fault]:
        lasts = st.floats(0.5, 40) if kind == "node-down" else st.one_of(st.none(), st.floats(0.5, 40))
        return st.builds(
            lambda at, last, node, factor, link: Fault(kind, at, None if last is None else at + last, node, factor, link),
            starts,
            lasts,
            st.integers(0, nodes - 1),
            st.sampled_from([1.5, 10.0]),
            st.sampled_from(["host", "nic"]),
        )

    return st.lists(st.sampled_from(kinds).flatmap(fault), max_size=3).filter(_apart).map(tuple)


def _apart(faults: list[Fault]) -> bool:
    """Whether no node goes down while it is down."""
    downs = sorted((f.node, f.at_s, f.until_s) for f in faults if f.kind == "node-down" and f.until_s is not None)
    return all(a[0] != b[0] or a[2] < b[1] for a, b in pairwise(downs))


@pytest.mark.slow_without_jit
@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize("router", ROUTERS)
@settings(max_examples=2)
@given(raw=SESSIONS, sizes=SIZES, times=TIMES, stores=STORES, shared=st.integers(0, 3))
def test_any_router_over_any_tiers(router: str, tiers: str, raw: list[Session], sizes: Any, times: Any, stores: Any, shared: int) -> None:
    run(Shape(TIERS[tiers], router=router, **sizes, **times, **stores), workload_of(raw, shared))


@pytest.mark.slow_without_jit
@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
@settings(max_examples=3)
@given(
    raw=SESSIONS,
    sizes=SIZES,
    times=TIMES,
    stores=STORES,
    shared=st.integers(0, 3),
    routers=ROUTER_PAIRS,
    until=st.one_of(st.none(), st.floats(0, 40)),
    data=st.data(),
)
def test_any_fault_in_any_topology(
    topology: str,
    tiers: str,
    raw: list[Session],
    sizes: Any,
    times: Any,
    stores: Any,
    shared: int,
    routers: tuple[str, str],
    until: float | None,
    data: st.DataObject,
) -> None:
    """Every node that goes down comes back, so all requests end."""
    made = {**sizes, **times, **stores, **TOPOLOGIES[topology]}
    faults = data.draw(faults_of(tiers, made["nodes"]))
    run(Shape(TIERS[tiers], **made, router=routers[0], second=routers[1], faults=faults), workload_of(raw, shared), until)


@pytest.mark.slow_without_jit
@pytest.mark.parametrize("tiers", TIERS)
@settings(max_examples=3)
@given(raw=SESSIONS, sizes=SIZES, times=TIMES, topology=st.sampled_from(sorted(TOPOLOGIES)), routers=ROUTER_PAIRS, data=st.data())
def test_same_seed_same_bytes(
    tiers: str, raw: list[Session], sizes: Any, times: Any, topology: str, routers: tuple[str, str], data: st.DataObject
) -> None:
    made = {**sizes, **times, **TOPOLOGIES[topology]}
    faults = data.draw(faults_of(tiers, made["nodes"]))
    shape, w = Shape(TIERS[tiers], **made, router=routers[0], second=routers[1], faults=faults), workload_of(raw, 2)
    a, b = (run(shape, w)[1] for _ in range(2))
    same(a, b)
