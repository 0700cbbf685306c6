"""Every metric of a `Point`, declared once: its unit, whether more of it is better, where it stands, what it means.

Tables, plots, the Pareto front and the documentation go by these. A `*` in a path stands for each link or tier that a run has, or
for the number of a fault, from 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvsim.errors import UnknownNameError, did_you_mean
from kvsim.metrics.summary import Point

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a point. `better` is None where neither direction is good by itself; `unit` is "" for counts."""

    name: str
    unit: str
    better: Better | None
    path: str
    meaning: str


def _times() -> Iterator[Metric]:
    for path, name, meaning in (
        ("ttft_s", "TTFT", "arrival to first token: queue, tier loads and prefill"),
        ("tpot_s", "TPOT", "first token to last over output tokens - 1, a value a request"),
        ("itl_s", "ITL", "time between two tokens of a request, a value a token"),
        ("e2e_s", "end to end", "arrival to last token"),
        ("queue_s", "queue", "arrival to first scheduling; waiting for tier loads is part of it"),
    ):
        for statistic in ("mean", "p50", "p90", "p95", "p99"):
            yield Metric(f"{name} {statistic}", "s", "lower", f"{path}.{statistic}", meaning)


def _hits() -> Iterator[Metric]:
    yield Metric(
        "hit rate", "share", "higher", "hit_rate.total", "prompt tokens found in any tier when first scheduled / all prompt tokens"
    )
    for tier, name in (("hbm", "HBM"), ("dram", "DRAM"), ("ssd", "SSD"), ("pool", "pool")):
        yield Metric(
            f"hit rate {name}", "share", None, f"hit_rate.{tier}", f"found in {name} / all prompt tokens; the tiers sum to the hit rate"
        )
    meaning = "hit rate of an infinite cache, requests in the order of this run"
    yield Metric("hit rate theoretical", "share", None, "hit_rate.theoretical", meaning)


def _missed() -> Iterator[Metric]:
    reasons: tuple[tuple[str, Better | None, str], ...] = (
        ("cold", None, "never seen before"),
        ("evicted", "lower", "seen, but gone from the last tier that held them"),
        ("elsewhere", "lower", "cached on another node"),
        ("pending", "lower", "being computed for another request at that moment"),
        ("too_late", "lower", "on their way from a lower tier, but not there in time"),
        ("partial_block", None, "fill no whole block, or belong to the block that is always recomputed"),
        ("not_stored", "lower", "gone from HBM and never stored in a lower tier"),
    )
    for reason, better, meaning in reasons:
        name = f"missed {reason.replace('_', ' ')}"
        yield Metric(name, "share", better, f"missed.{reason}", f"share of prompt tokens that did not hit: {meaning}")


def _faults() -> Iterator[Metric]:
    figures: tuple[tuple[str, str, str, Better | None, str], ...] = (
        ("start_s", "start", "s", None, "its start, in simulated seconds from the start of the run"),
        ("end_s", "end", "s", None, "its end; null if it never ended"),
        ("requests", "requests", "", None, "requests that finished while it lasted, inside the window"),
        ("total_tok_s_per_gpu", "throughput", "tok/s/GPU", "higher", "input + output tokens of these, cached input included"),
        ("hit_rate", "hit rate", "share", "higher", "prompt tokens of these found in any tier / all their prompt tokens"),
        ("ttft_p99_s", "TTFT p99", "s", "lower", "arrival to first token of these"),
        ("retried", "retried", "", "lower", "how many of these were sent again after their node went down"),
    )
    for key, name, unit, better, meaning in figures:
        yield Metric(f"fault {name}", unit, better, f"faults.*.{key}", meaning)


METRICS: tuple[Metric, ...] = (
    Metric("duration", "s", None, "duration_s", "length of the measured window"),
    Metric("requests", "", None, "requests", "requests that finished in the window"),
    Metric("sessions", "", None, "sessions", "session instances these requests belong to"),
    Metric("input tokens", "tokens", None, "input_tokens", "prompt tokens of these requests, cached or not"),
    Metric("output tokens", "tokens", None, "output_tokens", "answer tokens of these requests"),
    Metric("throughput", "tok/s/GPU", "higher", "throughput.total_tok_s_per_gpu", "input + output tokens, cached input included"),
    Metric("throughput input", "tok/s/GPU", "higher", "throughput.input_tok_s_per_gpu", "input tokens, cached or not"),
    Metric("throughput output", "tok/s/GPU", "higher", "throughput.output_tok_s_per_gpu", "output tokens"),
    Metric(
        "throughput uncached",
        "tok/s/GPU",
        None,
        "throughput.uncached_input_tok_s_per_gpu",
        "input tokens that no cache had and that were computed: work done, not work saved",
    ),
    Metric("request rate", "1/s", "higher", "throughput.requests_s", "requests finished per second, all nodes together"),
    *_times(),
    Metric("interactivity p50", "tok/s/user", "higher", "interactivity_tok_s_user.p50", "1 / p50 of the time between tokens"),
    Metric(
        "interactivity p90", "tok/s/user", "higher", "interactivity_tok_s_user.p90", "1 / p90 of the time between tokens: the slow tail"
    ),
    Metric(
        "interactivity e2e p90",
        "tok/s/user",
        "higher",
        "interactivity_tok_s_user.e2e_p90",
        "1 / p90 of (end-to-end time / output tokens): the slow tail, TTFT included",
    ),
    *_hits(),
    Metric("prefill computed", "tokens", None, "prefill_tokens.computed", "prompt tokens computed"),
    Metric("prefill saved", "tokens", "higher", "prefill_tokens.saved", "prompt tokens not computed because a tier had them"),
    Metric("recomputed", "tokens", "lower", "prefill_tokens.recomputed", "prompt and output tokens computed again after preemptions"),
    *_missed(),
    Metric("preemptions", "", "lower", "preemptions", "times these requests lost their blocks and started again"),
    Metric("rejected", "", "lower", "rejected", "requests refused in the window because they could never fit; in no other figure"),
    Metric("running at the end", "", None, "unfinished.running", "requests in a batch when the run stopped; in no other figure"),
    Metric("waiting at the end", "", None, "unfinished.waiting", "requests queued when the run stopped; in no other figure"),
    Metric("bytes moved", "bytes", None, "transfers.*.bytes", "carried by the link in the window"),
    Metric("link busy", "share", None, "transfers.*.busy", "share of the window in which the link carried something"),
    Metric("link queue p99", "s", "lower", "transfers.*.queue_p99_s", "wait of a transfer before the link took it"),
    Metric("evictions", "blocks", None, "evictions.*", "cached blocks given up for room"),
    Metric(
        "SSD writes", "drive writes/day", "lower", "ssd_writes_per_day", "bytes written a day / capacity of the drives; null without an SSD"
    ),
    Metric("SSD bytes written", "bytes/day", "lower", "ssd.written_bytes_per_day", "bytes written to the drives, a day of this load"),
    Metric("SSD drive writes", "drive writes/day", "lower", "ssd.drive_writes_per_day", "the same number as `ssd_writes_per_day`"),
    Metric("SSD life", "years", "higher", "ssd.life_years", "bytes the drives are rated for / bytes a year; null if unrated or unwritten"),
    *_faults(),
    Metric("cost", "$/Mtok", "lower", "economics.cost_per_mtok", "cost of a million tokens, input + output"),
    Metric("revenue", "$/h/GPU", "higher", "economics.revenue_per_gpu_hour", "revenue of a GPU-hour"),
    Metric("margin", "share", "higher", "economics.margin", "profit / revenue"),
    Metric("simulated time", "s", None, "simulated_s", "simulated seconds, warm-up included"),
    Metric("wall time", "s", None, "wall_s", "seconds the simulation took"),
)
_BY_PATH = {metric.path: metric for metric in METRICS}


def metric(path: str) -> Metric:
    """The metric at `path`; raises `UnknownNameError` with the nearest known one."""
    try:
        return _BY_PATH[path]
    except KeyError:
        raise UnknownNameError(f"unknown metric {path!r}{did_you_mean(path, _BY_PATH)}") from None


def value(point: Point, path: str) -> float | None:
    """The number at `path`, None where the point has none. `*` is not a path of one number: name the link, tier or number instead.

    Raises `UnknownNameError` for a path that no point has.
    """
    here: object = point
    for key in path.split("."):
        if here is None:
            return None
        known = _parts(here)
        if key not in known:
            raise UnknownNameError(f"unknown metric {path!r}{did_you_mean(path, _BY_PATH)}")
        here = known[key]
    if here is None or (isinstance(here, (int, float)) and not isinstance(here, bool)):
        return here
    raise UnknownNameError(f"{path!r} is not a number{did_you_mean(path, _BY_PATH)}")


def _parts(here: object) -> dict[str, object]:
    """What a path may go on to."""
    if isinstance(here, dict):
        return here
    if isinstance(here, tuple):
        return {str(i): part for i, part in enumerate(here)}
    return {name: getattr(here, name) for name in getattr(here, "__dataclass_fields__", ())}
