"""The summary of a point: one example worked by hand, and what holds for any rows."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.metrics.histogram import N_BINS
from kvsim.metrics.summary import (
    FaultSpan,
    FaultWindow,
    Interactivity,
    LinkUse,
    Percentiles,
    Point,
    SsdUse,
    SsdWear,
    Transfer,
    Unfinished,
    Window,
    percentiles,
    summarise,
)

EMPTY = np.zeros(N_BINS, np.int64)
near: Any = pytest.approx
NONE = Percentiles(None, None, None, None, None)


def bins(*seconds: float) -> Any:
    counts = EMPTY.copy()
    for s in seconds:
        counts[int(np.log(s / 1e-5) / np.log(1.01))] += 1
    return counts


def point(columns: Any, window: Window, **given: Any) -> Point:
    known: dict[str, Any] = {
        "variant": "HBM",
        "concurrency": 4,
        "gpus": 2,
        "itl_counts": EMPTY,
        "transfers": {},
        "evictions": {},
        "unfinished": Unfinished(0, 0),
        "ssd": None,
        "faults": (),
        "simulated_s": 30.0,
        "wall_s": 0.5,
    }
    return summarise(columns, window, **known | given)


@pytest.fixture
def worked(row: Any, columns: Any) -> Any:
    """Window 10 to 20 s: three requests count, one is rejected in it, one ended before it, one ends after it."""

    def at(arrival: float, scheduled: float, first: float, finish: float, **values: Any) -> Any:
        return row(arrival_s=arrival, scheduled_s=scheduled, first_token_s=first, finish_s=finish, **values)

    return columns(
        [
            at(1, 2, 3, 9.999, session=9, input_tokens=5000, output_tokens=70, preemptions=3),
            at(8, 9, 10, 12, session=0, input_tokens=100, output_tokens=5, hbm_tokens=60, dram_tokens=20, theoretical_tokens=90,
               missed_evicted=10, preemptions=1, recomputed_tokens=7),
            at(13, np.nan, np.nan, 13, session=3, input_tokens=9999, output_tokens=1, rejected=True, computed_tokens=0, missed_cold=0),
            at(11, 14, 15, 15, session=2, input_tokens=100, output_tokens=1, ssd_tokens=30, pool_tokens=10, theoretical_tokens=40),
            at(12, 12, 13, 20, session=0, input_tokens=200, output_tokens=8, hbm_tokens=150, theoretical_tokens=160,
               missed_partial_block=40, missed_evicted=10, missed_cold=0),
            at(10, 10, 11, 20.001, session=1, input_tokens=5000, output_tokens=70),
        ]
    )  # fmt: skip


def test_the_worked_example(worked: Any) -> None:
    p = point(worked, Window(10, 20), itl_counts=bins(*[0.02] * 4, *[0.05] * 6), evictions={"hbm": 12}, unfinished=Unfinished(2, 3))
    assert (p.variant, p.concurrency, p.duration_s) == ("HBM", 4, 10.0)
    assert (p.requests, p.sessions, p.input_tokens, p.output_tokens) == (3, 2, 400, 14)
    assert p.throughput.total_tok_s_per_gpu == pytest.approx(414 / 20)
    assert p.throughput.input_tok_s_per_gpu == pytest.approx(20)
    assert p.throughput.output_tok_s_per_gpu == pytest.approx(0.7)
    assert p.throughput.uncached_input_tok_s_per_gpu == pytest.approx(130 / 20)
    assert p.throughput.requests_s == pytest.approx(0.3)
    # TTFT 2, 4, 1: p90 lies 0.8 of the way from the second to the third, 2 + 0.8 * 2.
    assert astuple(p.ttft_s) == pytest.approx((7 / 3, 2.0, 3.6, 3.8, 3.96))
    # TPOT 2/4 and 7/7; the request of one token has none.
    assert astuple(p.tpot_s) == pytest.approx((0.75, 0.75, 0.95, 0.975, 0.995))
    assert astuple(p.e2e_s) == pytest.approx((16 / 3, 4.0, 7.2, 7.6, 7.92))
    assert astuple(p.queue_s) == pytest.approx((4 / 3, 1.0, 2.6, 2.8, 2.96))
    assert p.itl_s.mean == pytest.approx(0.038, rel=0.005) and p.itl_s.p50 == pytest.approx(0.05, rel=0.005)
    # E2E over output tokens: 0.8, 4, 1; p90 = 1 + 0.8 * 3.
    assert p.interactivity_tok_s_user.e2e_p90 == pytest.approx(1 / 3.4)
    assert p.interactivity_tok_s_user.p50 == pytest.approx(20, rel=0.006)
    h = p.hit_rate
    assert (h.total, h.hbm, h.dram, h.ssd, h.pool, h.theoretical) == pytest.approx((0.675, 0.525, 0.05, 0.075, 0.025, 0.725))
    assert (p.prefill_tokens.computed, p.prefill_tokens.saved, p.prefill_tokens.recomputed) == (130, 270, 7)
    m = p.missed
    assert (m.cold, m.evicted, m.partial_block) == pytest.approx((0.175, 0.05, 0.1))
    assert m.elsewhere == m.pending == m.too_late == m.not_stored == 0
    assert (p.preemptions, p.rejected, p.unfinished, p.evictions) == (1, 1, Unfinished(2, 3), {"hbm": 12})
    assert (p.economics, p.ssd_writes_per_day, p.ssd, p.faults, p.simulated_s, p.wall_s) == (None, None, None, (), 30.0, 0.5)


def test_interactivity_inverts_the_slow_tail() -> None:
    # Of twenty gaps three are slow: the 90th percentile of the speeds would be 100 tok/s, but only 5 is what nine in ten reach.
    seen = point(_columns_of(0), Window(0, 1), itl_counts=bins(*[0.01] * 17, *[0.2] * 3)).interactivity_tok_s_user
    assert seen.p50 == pytest.approx(100, rel=0.006) and seen.p90 == pytest.approx(5, rel=0.006)


def test_with_nothing_finished_rates_are_zero_and_ratios_null() -> None:
    p = point(_columns_of(0), Window(5, 15))
    assert p.requests == p.sessions == p.input_tokens == p.rejected == p.preemptions == 0
    assert p.throughput.total_tok_s_per_gpu == 0 and p.throughput.requests_s == 0
    assert p.ttft_s == p.tpot_s == p.itl_s == p.e2e_s == p.queue_s == NONE
    assert p.interactivity_tok_s_user == Interactivity(None, None, None)
    assert p.hit_rate.total is None and p.hit_rate.theoretical is None and p.missed.cold is None


def test_a_window_of_no_length_has_no_rates(worked: Any) -> None:
    p = point(worked, Window(12, 12), transfers={"pcie": LinkUse(5, 0.0, EMPTY)}, ssd=SsdUse(10, 100, 1.0))
    assert p.requests == 1 and p.duration_s == 0
    assert set(msgspec.to_builtins(p.throughput).values()) == {None}
    assert p.transfers == {"pcie": Transfer(5, None, None)} and p.ssd_writes_per_day is None
    assert p.ssd == SsdWear(None, None, None)
    with pytest.raises(ValueError, match="must not end before it starts"):
        Window(2, 1)


def test_gaps_of_zero_have_no_interactivity() -> None:
    counts = EMPTY.copy()
    counts[0] = 10
    assert point(_columns_of(0), Window(0, 1), itl_counts=counts).interactivity_tok_s_user.p50 is None


def test_links_and_ssd(worked: Any) -> None:
    waits = EMPTY.copy()
    waits[0] = 100
    p = point(
        worked,
        Window(10, 20),
        transfers={"pcie5 down": LinkUse(1 << 40, 2.5, waits), "pcie5 up": LinkUse(0, 0.0, bins(*[0.5] * 3))},
        ssd=SsdUse(written_bytes=500, capacity_bytes=1000, endurance_dwpd=None),
    )
    assert p.transfers["pcie5 down"] == Transfer(1 << 40, 0.25, 0.0)
    assert p.transfers["pcie5 up"].queue_p99_s == pytest.approx(0.5, rel=0.005)
    # Half the drive in 10 s is 4,320 drives a day.
    assert p.ssd_writes_per_day == pytest.approx(4320)
    assert p.ssd == SsdWear(near(4_320_000), near(4320), None)


def test_wear_of_a_drive_that_takes_what_a_node_prefills() -> None:
    # 20k new tokens/s of 38 kB fill a drive of 7.68 TB 8.55 times a day: rated for one a day over five years, it lasts 7 months.
    use = SsdUse(written_bytes=20_000 * 38_000 * 3600, capacity_bytes=7_680_000_000_000, endurance_dwpd=1.0)
    wear = point(_columns_of(0), Window(0, 3600), ssd=use).ssd
    assert wear == SsdWear(near(6.5664e13), near(8.55), near(5 / 8.55))
    twice = point(_columns_of(0), Window(0, 3600), ssd=replace(use, waf=2.0, warranty_years=3.0)).ssd
    assert twice == SsdWear(near(6.5664e13), near(8.55), near(3 / 8.55 / 2))
    idle = point(_columns_of(0), Window(0, 3600), ssd=replace(use, written_bytes=0)).ssd
    assert idle == SsdWear(0.0, 0.0, None)


@pytest.mark.parametrize(
    "wrong", [{"capacity_bytes": 0}, {"endurance_dwpd": 0.0}, {"waf": -1.0}, {"warranty_years": float("nan")}, {"written_bytes": -1}]
)
def test_a_drive_that_cannot_be_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(SsdUse(1, 1, 1.0), **wrong)


def test_faults_have_the_figures_of_their_time(worked: Any) -> None:
    worked["retries"][[0, 1, 4, 5]] = (9, 1, 2, 9)
    faults = (
        FaultSpan("node 1 down", 12, 15),
        FaultSpan("SSD slow", 16, None),
        FaultSpan("pool lossy", 0, 12),
        FaultSpan("over before", 0, 5),
        FaultSpan("after the end", 25, 30),
    )
    down, slow, lossy, before, after = point(worked, Window(10, 20), faults=faults).faults
    # The requests that end at 12 and 15 s; of TTFT 2 and 4 s the p99 lies 0.99 of the way. The one rejected at 13 s is none of them.
    assert down == FaultWindow(
        "node 1 down", 12.0, 15.0, requests=2, total_tok_s_per_gpu=near(206 / 3 / 2), hit_rate=near(120 / 200),
        ttft_p99_s=near(3.98), retried=1,
    )  # fmt: skip
    # One that never ends is measured to the end of the window; the request that ends at 20.001 s is past it.
    assert slow == FaultWindow(
        "SSD slow", 16.0, None, requests=1, total_tok_s_per_gpu=near(208 / 4 / 2), hit_rate=near(0.75),
        ttft_p99_s=near(1.0), retried=1,
    )  # fmt: skip
    # The request that ended at 9.999 s was warm-up.
    assert (lossy.start_s, lossy.end_s, lossy.requests) == (0.0, 12.0, 1)
    assert lossy.total_tok_s_per_gpu == pytest.approx(105 / 2 / 2)
    for unmeasured in (before, after):
        assert (unmeasured.requests, unmeasured.retried) == (0, 0)
        assert unmeasured.total_tok_s_per_gpu is unmeasured.hit_rate is unmeasured.ttft_p99_s is None


def test_a_fault_of_the_whole_window_is_the_point(worked: Any) -> None:
    p = point(worked, Window(10, 20), faults=[FaultSpan("all", 0, 99)])
    (fault,) = p.faults
    assert (fault.requests, fault.total_tok_s_per_gpu) == (p.requests, p.throughput.total_tok_s_per_gpu)
    assert (fault.hit_rate, fault.ttft_p99_s) == (p.hit_rate.total, p.ttft_s.p99)


@pytest.mark.parametrize("wrong", [("x", 2, 1), ("x", float("nan"), 1), ("", 0, 1)])
def test_a_fault_has_a_name_and_ends_after_it_starts(wrong: Any) -> None:
    with pytest.raises(ValueError, match="fault"):
        FaultSpan(*wrong)


@given(st.integers(0, 40), st.integers(0, 1000), st.floats(0, 100), st.floats(0, 100))
def test_what_holds_for_any_rows_and_window(n: int, seed: int, a: float, b: float) -> None:
    columns = _columns_of(n, seed)
    window = Window(min(a, b), max(a, b))
    middle = (window.start_s + window.end_s) / 2
    p = point(columns, window, faults=[FaultSpan("first", -1, np.nextafter(middle, -1)), FaultSpan("second", middle, None)])
    assert sum(fault.requests for fault in p.faults) == p.requests
    inside = [window.start_s <= t <= window.end_s for t in columns["finish_s"]]
    assert p.requests + p.rejected == sum(inside)
    assert p.prefill_tokens.computed + p.prefill_tokens.saved == p.input_tokens
    for family in (p.ttft_s, p.e2e_s, p.queue_s):
        if p.requests:
            assert family.p50 <= family.p90 <= family.p95 <= family.p99  # type: ignore[operator]
    if p.input_tokens:
        h = p.hit_rate
        assert h.hbm + h.dram + h.ssd + h.pool == pytest.approx(h.total)  # type: ignore[operator]
        assert sum(msgspec.to_builtins(p.missed).values()) == pytest.approx(1 - h.total)  # type: ignore[operator]
    json.loads(msgspec.json.encode(p), parse_constant=_no_constant)


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_percentiles_of_few_samples(n: int) -> None:
    values = np.arange(n, dtype=float)[::-1]
    got = percentiles(values)
    assert got.p50 == pytest.approx((n - 1) / 2) and got.p90 == pytest.approx(0.9 * (n - 1)) and got.p99 <= n - 1  # type: ignore[operator]


def _no_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def _columns_of(n: int, seed: int = 0) -> Any:
    from kvsim.metrics.recorder import COLUMNS, HITS, MISSED

    rng = np.random.default_rng(seed)
    out: dict[str, Any] = {name: np.zeros(n, column.dtype) for name, column in COLUMNS.items()}
    times = np.sort(rng.uniform(0, 100, (n, 4)), axis=1)
    out |= dict(zip(("arrival_s", "scheduled_s", "first_token_s", "finish_s"), times.T, strict=True))
    for name in (*HITS, *MISSED):
        out[name] = rng.integers(0, 100, n)
    out["computed_tokens"] = sum(out[name] for name in MISSED)
    out["input_tokens"] = out["computed_tokens"] + sum(out[name] for name in HITS)
    out["output_tokens"] = rng.integers(1, 9, n)
    out["rejected"] = rng.random(n) < 0.1
    return out
