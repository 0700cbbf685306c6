"""Made-up points for tables and plots."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.metrics.summary import HitRate, Interactivity, Missed, Percentiles, Point, PrefillTokens, Throughput, Unfinished


def build(variant: str, concurrency: int | None, total: float | None = 1000.0, interactivity: float | None = 50.0, **given: Any) -> Point:
    """A point with the given throughput per GPU and interactivity; `hits` are the rates of HBM, DRAM, SSD and pool."""
    hits: tuple[float, float, float, float] | None = given.get("hits", (0.9, 0.05, 0.0, 0.0))
    times = Percentiles(*given.get("ttft", (1.0, 0.5, 2.0, 2.5, 3.0)))
    return Point(
        variant=variant,
        concurrency=concurrency,
        duration_s=3600.0,
        requests=given.get("requests", 100),
        sessions=10,
        input_tokens=1_000_000,
        output_tokens=10_000,
        throughput=Throughput(total, total, given.get("output", 12.3), given.get("uncached", 45.6), 0.1),
        ttft_s=times,
        tpot_s=times,
        itl_s=times,
        e2e_s=times,
        queue_s=times,
        interactivity_tok_s_user=Interactivity(interactivity, interactivity, interactivity),
        hit_rate=HitRate(None, None, None, None, None, None) if hits is None else HitRate(sum(hits), *hits, given.get("ideal", 0.978)),
        prefill_tokens=PrefillTokens(50_000, given.get("saved", 950_000), 0),
        missed=Missed(0.05, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        preemptions=given.get("preemptions", 0),
        rejected=given.get("rejected", 0),
        unfinished=Unfinished(0, 0),
        transfers={},
        evictions={},
        ssd_writes_per_day=None if given.get("ssd") is None else given["ssd"].drive_writes_per_day,
        ssd=given.get("ssd"),
        faults=given.get("faults", ()),
        economics=None,
        simulated_s=3600.0,
        wall_s=1.0,
    )


@pytest.fixture
def make() -> Any:
    return build


@pytest.fixture
def cliff() -> list[Point]:
    """HBM alone collapses past a concurrency of 16, with DRAM throughput keeps growing."""
    alone = {1: (2557, 133.6), 2: (4991, 117.6), 4: (9542, 91.9), 8: (11403, 82.4), 16: (12011, 51.0), 32: (3387, 19.1), 64: (3012, 11.2)}
    both = {1: (2549, 133.1), 2: (4970, 117.0), 4: (9500, 91.0), 8: (11900, 81.5), 16: (16400, 60.2), 32: (21800, 44.7), 64: (24100, 27.5)}
    return [build(name, c, *values) for name, arm in (("HBM only", alone), ("HBM + DRAM", both)) for c, values in arm.items()]
