"""The summary of one point: what `summary.json` says of a variant at a concurrency. Pure functions of recorded columns.

Window. Only requests that finished from `start_s` to `end_s`, both included, count: no warm-up, no drain; a request that began before
the window and ends in it counts whole. Rates divide by the window's length, not by the time between the first and the last request.
Percentiles are numpy's (linear between order statistics). A rate or a percentile with nothing to divide by is None, never 0 or NaN.

Interactivity is the rate at which one user sees tokens. Its percentiles invert the slow tail: p90 = 1 / (p90 of the time per token),
the speed that nine tokens in ten reach; taking the 90th percentile of the rates would give the fast tail.

Faults have the same figures for their own time, as far as the window covers it: they count the requests that finished in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.metrics import histogram
from kvsim.metrics.recorder import HITS, MISSED, Columns

PERCENTILES = (50, 90, 95, 99)
DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Window:
    """The part of simulated time that is measured."""

    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not self.start_s <= self.end_s:
            raise ValueError(f"a window must not end before it starts, got {self.start_s} to {self.end_s} s")

    @property
    def duration_s(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What one link and direction did in the window; `waits` is the histogram of the time transfers queued for it."""

    bytes: int
    busy_s: float
    waits: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SsdUse:
    """Bytes written to the SSD tiers in the window, the capacity of their drives, and what these are rated for.

    `endurance_dwpd` is the data sheet's drive writes a day over `warranty_years` (None: not known); `waf`, the write amplification
    factor, is what the flash wears by for a byte written: 1 for large sequential writes.
    """

    written_bytes: int
    capacity_bytes: int
    endurance_dwpd: float | None
    warranty_years: float = 5.0
    waf: float = 1.0

    def __post_init__(self) -> None:
        if self.written_bytes < 0:
            raise ValueError(f"written_bytes must not be negative, got {self.written_bytes}")
        for name in ("capacity_bytes", "endurance_dwpd", "warranty_years", "waf"):
            number = getattr(self, name)
            if number is not None and not 0 < number < float("inf"):
                raise ValueError(f"{name} must be above 0, got {number}")


@dataclass(frozen=True, slots=True)
class FaultSpan:
    """A fault of the run, warm-up and drain included; `end_s` is None for one that never ended."""

    what: str
    start_s: float
    end_s: float | None

    def __post_init__(self) -> None:
        if not self.what:
            raise ValueError("a fault needs a name")
        if self.end_s is not None and not self.start_s <= self.end_s:
            raise ValueError(f"a fault must not end before it starts, got {self.start_s} to {self.end_s} s")


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates over the window; the first four per GPU."""

    total_tok_s_per_gpu: float | None
    input_tok_s_per_gpu: float | None
    output_tok_s_per_gpu: float | None
    uncached_input_tok_s_per_gpu: float | None
    requests_s: float | None


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a time in seconds."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Interactivity:
    """Tokens per second one user sees: p50 and p90 from the time between tokens, e2e_p90 from end-to-end time over output tokens."""

    p50: float | None
    p90: float | None
    e2e_p90: float | None


@dataclass(frozen=True, slots=True)
class HitRate:
    """Shares of all prompt tokens; the tiers sum to `total`, and `theoretical` is what an infinite cache would reach."""

    total: float | None
    hbm: float | None
    dram: float | None
    ssd: float | None
    pool: float | None
    theoretical: float | None


@dataclass(frozen=True, slots=True)
class PrefillTokens:
    """Prompt tokens computed and saved by hits (they sum to the input), and tokens computed again after preemptions."""

    computed: int
    saved: int
    recomputed: int


@dataclass(frozen=True, slots=True)
class Missed:
    """Why prompt tokens did not hit, as shares of all prompt tokens; they sum to 1 - total hit rate."""

    cold: float | None
    evicted: float | None
    elsewhere: float | None
    pending: float | None
    too_late: float | None
    partial_block: float | None
    not_stored: float | None


@dataclass(frozen=True, slots=True)
class Transfer:
    """Use of a link: `busy` is the share of the window it carried something, `queue_p99_s` the wait before a transfer started."""

    bytes: int
    busy: float | None
    queue_p99_s: float | None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Requests still in the cluster at the end of the run."""

    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class SsdWear:
    """What the writes of the window do to the drives if they go on: `life_years` is None where nothing wears or no rating is known."""

    written_bytes_per_day: float | None
    drive_writes_per_day: float | None
    life_years: float | None


@dataclass(frozen=True, slots=True)
class FaultWindow:
    """A fault's own times, and the point's figures over the part of them that was measured: nulls where none was.

    `requests` finished in that part; `retried` of them had been sent again after a node went down.
    """

    what: str
    start_s: float
    end_s: float | None
    requests: int
    total_tok_s_per_gpu: float | None
    hit_rate: float | None
    ttft_p99_s: float | None
    retried: int


@dataclass(frozen=True, slots=True)
class Economics:
    """Money: filled in by `kvsim.economics`."""

    cost_per_mtok: float | None
    revenue_per_gpu_hour: float | None
    margin: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """One variant at one concurrency (None: the clients have none, as in an open loop). Keys and nesting are those of `summary.json`."""

    variant: str
    concurrency: int | None
    duration_s: float
    requests: int
    sessions: int
    input_tokens: int
    output_tokens: int
    throughput: Throughput
    ttft_s: Percentiles
    tpot_s: Percentiles
    itl_s: Percentiles
    e2e_s: Percentiles
    queue_s: Percentiles
    interactivity_tok_s_user: Interactivity
    hit_rate: HitRate
    prefill_tokens: PrefillTokens
    missed: Missed
    preemptions: int
    rejected: int
    unfinished: Unfinished
    transfers: dict[str, Transfer]
    evictions: dict[str, int]
    ssd_writes_per_day: float | None
    ssd: SsdWear | None
    faults: tuple[FaultWindow, ...]
    economics: Economics | None
    simulated_s: float
    wall_s: float


def summarise(
    columns: Columns,
    window: Window,
    *,
    variant: str,
    concurrency: int | None,
    gpus: int,
    itl_counts: NDArray[np.int64],
    transfers: Mapping[str, LinkUse],
    evictions: Mapping[str, int],
    unfinished: Unfinished,
    ssd: SsdUse | None,
    faults: Sequence[FaultSpan],
    simulated_s: float,
    wall_s: float,
) -> Point:
    """The point that `columns` (`kvsim.metrics.recorder.COLUMNS`) and the counters of the window make.

    `itl_counts` is the histogram (`kvsim.metrics.histogram`) of the times between tokens that came out in the window, those of
    requests that did not finish in it included. `ssd` is None where there is no SSD. `faults` are in the order they are shown.
    """
    inside = _inside(columns, window.start_s, window.end_s)
    rows = {name: column[inside & ~columns["rejected"]] for name, column in columns.items()}
    wear = None if ssd is None else _wear(ssd, window.duration_s)
    total = {name: int(rows[name].sum()) for name in ("input_tokens", "output_tokens", "computed_tokens", "recomputed_tokens")}
    e2e = rows["finish_s"] - rows["arrival_s"]
    return Point(
        variant=variant,
        concurrency=concurrency,
        duration_s=float(window.duration_s),
        requests=rows["request"].size,
        sessions=np.unique(rows["session"]).size,
        input_tokens=total["input_tokens"],
        output_tokens=total["output_tokens"],
        throughput=_throughput(total, rows["request"].size, window.duration_s, gpus),
        ttft_s=percentiles(rows["first_token_s"] - rows["arrival_s"]),
        tpot_s=percentiles(_per_token(rows["finish_s"] - rows["first_token_s"], rows["output_tokens"] - 1)),
        itl_s=Percentiles(histogram.mean(itl_counts), *(histogram.percentile(itl_counts, q) for q in PERCENTILES)),
        e2e_s=percentiles(e2e),
        queue_s=percentiles(rows["scheduled_s"] - rows["arrival_s"]),
        interactivity_tok_s_user=Interactivity(
            p50=_ratio(1.0, histogram.percentile(itl_counts, 50)),
            p90=_ratio(1.0, histogram.percentile(itl_counts, 90)),
            e2e_p90=_ratio(1.0, percentiles(_per_token(e2e, rows["output_tokens"])).p90),
        ),
        hit_rate=_hit_rate(rows, total["input_tokens"]),
        prefill_tokens=PrefillTokens(
            computed=total["computed_tokens"], saved=sum(int(rows[name].sum()) for name in HITS), recomputed=total["recomputed_tokens"]
        ),
        missed=Missed(**{name.removeprefix("missed_"): _ratio(int(rows[name].sum()), total["input_tokens"]) for name in MISSED}),
        preemptions=int(rows["preemptions"].sum()),
        rejected=int((inside & columns["rejected"]).sum()),
        unfinished=unfinished,
        transfers={name: _transfer(use, window.duration_s) for name, use in transfers.items()},
        evictions={name: int(count) for name, count in evictions.items()},
        ssd_writes_per_day=None if wear is None else wear.drive_writes_per_day,
        ssd=wear,
        faults=tuple(_fault_window(rows, fault, window, gpus) for fault in faults),
        economics=None,
        simulated_s=float(simulated_s),
        wall_s=float(wall_s),
    )


def percentiles(values: NDArray[Any]) -> Percentiles:
    """Mean and percentiles of `values` [n]; all None for n = 0."""
    if values.size == 0:
        return Percentiles(None, None, None, None, None)
    return Percentiles(float(values.mean()), *map(float, np.percentile(values, PERCENTILES)))


def _inside(columns: Columns, start_s: float, end_s: float) -> NDArray[np.bool_]:
    """Rows of requests that finished from `start_s` to `end_s`."""
    inside: NDArray[np.bool_] = (columns["finish_s"] >= start_s) & (columns["finish_s"] <= end_s)
    return inside


def _fault_window(finished: Columns, fault: FaultSpan, window: Window, gpus: int) -> FaultWindow:
    """Figures of the rows of `finished` that ended during `fault`, as far as `window` goes."""
    start_s = max(fault.start_s, window.start_s)
    end_s = window.end_s if fault.end_s is None else min(fault.end_s, window.end_s)
    inside = _inside(finished, start_s, end_s)
    rows = {name: column[inside] for name, column in finished.items()}
    input_tokens, output_tokens = (int(rows[name].sum()) for name in ("input_tokens", "output_tokens"))
    return FaultWindow(
        what=fault.what,
        start_s=float(fault.start_s),
        end_s=None if fault.end_s is None else float(fault.end_s),
        requests=rows["request"].size,
        total_tok_s_per_gpu=_ratio(input_tokens + output_tokens, max(end_s - start_s, 0.0) * gpus),
        hit_rate=_hit_rate(rows, input_tokens).total,
        ttft_p99_s=percentiles(rows["first_token_s"] - rows["arrival_s"]).p99,
        retried=int((rows["retries"] > 0).sum()),
    )


def _wear(use: SsdUse, duration_s: float) -> SsdWear:
    """Life = bytes the drives may take / (bytes written a year x write amplification), the former being the rating over the warranty."""
    a_day = _ratio(use.written_bytes * DAY_S, duration_s)
    drives_a_day = None if a_day is None else a_day / use.capacity_bytes
    rated = None if use.endurance_dwpd is None else use.endurance_dwpd * use.warranty_years
    life = None if rated is None or drives_a_day is None else _ratio(rated, drives_a_day * use.waf)
    return SsdWear(a_day, drives_a_day, life)


def _throughput(total: Mapping[str, int], requests: int, duration_s: float, gpus: int) -> Throughput:
    gpu_seconds = duration_s * gpus
    return Throughput(
        total_tok_s_per_gpu=_ratio(total["input_tokens"] + total["output_tokens"], gpu_seconds),
        input_tok_s_per_gpu=_ratio(total["input_tokens"], gpu_seconds),
        output_tok_s_per_gpu=_ratio(total["output_tokens"], gpu_seconds),
        uncached_input_tok_s_per_gpu=_ratio(total["computed_tokens"], gpu_seconds),
        requests_s=_ratio(requests, duration_s),
    )


def _hit_rate(rows: Columns, input_tokens: int) -> HitRate:
    by_tier = {name.removesuffix("_tokens"): int(rows[name].sum()) for name in HITS}
    return HitRate(
        total=_ratio(sum(by_tier.values()), input_tokens),
        theoretical=_ratio(int(rows["theoretical_tokens"].sum()), input_tokens),
        **{tier: _ratio(tokens, input_tokens) for tier, tokens in by_tier.items()},
    )


def _transfer(use: LinkUse, duration_s: float) -> Transfer:
    return Transfer(int(use.bytes), _ratio(float(use.busy_s), duration_s), histogram.percentile(use.waits, 99))


def _per_token(seconds: NDArray[Any], tokens: NDArray[Any]) -> NDArray[Any]:
    """Seconds a token, of the rows that have tokens to share them among."""
    some = tokens > 0
    shares: NDArray[np.float64] = seconds[some] / tokens[some]
    return shares


def _ratio(part: float, whole: float | None) -> float | None:
    return float(part / whole) if whole else None
