"""Percentiles read from a histogram against numpy's on the values themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.metrics.histogram import FIRST_EDGE_S, N_BINS, RATIO, mean, percentile

TIMES = st.lists(st.floats(1.02e-5, 1500.0), min_size=1, max_size=60)


def counted(values: list[float]) -> np.ndarray:
    """The histogram of `values`, bin by bin from the definition."""
    edges = FIRST_EDGE_S * RATIO ** np.arange(1, N_BINS)
    return np.bincount(np.searchsorted(edges, values, side="right"), minlength=N_BINS)


@given(TIMES, st.floats(0, 100))
def test_percentiles_are_numpys_to_half_a_percent(values: list[float], q: float) -> None:
    assert percentile(counted(values), q) == pytest.approx(np.percentile(values, q), rel=0.005)


@given(TIMES)
def test_mean_is_right_to_half_a_percent_and_percentiles_never_fall(values: list[float]) -> None:
    counts = counted(values)
    assert mean(counts) == pytest.approx(np.mean(values), rel=0.005)
    read = [percentile(counts, q) for q in (0, 50, 90, 95, 99, 100)]
    assert read == sorted(read)  # type: ignore[type-var]


def test_between_two_values_the_percentile_is_linear() -> None:
    # 0.01 and 0.03: the median is half-way, p90 nine tenths of the way.
    counts = counted([0.01, 0.03])
    low, high = percentile(counts, 0), percentile(counts, 100)
    assert low == pytest.approx(0.01, rel=0.005) and high == pytest.approx(0.03, rel=0.005)
    assert low is not None and high is not None
    assert percentile(counts, 50) == pytest.approx((low + high) / 2)
    assert percentile(counts, 90) == pytest.approx(low + 0.9 * (high - low))


def test_nothing_counted_has_no_percentile() -> None:
    empty = np.zeros(N_BINS, np.int64)
    assert percentile(empty, 50) is None and mean(empty) is None


def test_waits_of_nothing_read_as_zero_and_the_last_bin_is_open() -> None:
    assert percentile(counted([0.0, 0.0, 0.0]), 99) == 0.0
    assert percentile(counted([1e9]), 50) == pytest.approx(FIRST_EDGE_S * RATIO ** (N_BINS - 0.5))


def test_the_kernel_counts_into_the_bins_that_are_read() -> None:
    from kvsim.transfer.channel import log_bin

    for i in range(0, N_BINS, 37):
        assert log_bin(FIRST_EDGE_S * RATIO ** (i + 0.5)) == i
    assert log_bin(0.0) == 0 and log_bin(1e9) == N_BINS - 1
