"""Every number of a point is declared, every declaration is a number of a point, and the documentation says the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from kvsim.errors import UnknownNameError
from kvsim.metrics.declared import METRICS, metric, value
from kvsim.metrics.histogram import N_BINS
from kvsim.metrics.recorder import COLUMNS
from kvsim.metrics.summary import Economics, FaultSpan, LinkUse, Point, SsdUse, Unfinished, Window, summarise

DOCS = Path(__file__).parents[2] / "docs" / "results.md"


@pytest.fixture
def full_point(random_columns: Any) -> Point:
    counts = np.ones(N_BINS, np.int64)
    p = summarise(
        random_columns(50),
        Window(0, 100),
        variant="v",
        concurrency=8,
        gpus=1,
        itl_counts=counts,
        transfers={"pcie": LinkUse(7, 1.0, counts)},
        evictions={"hbm": 3},
        unfinished=Unfinished(1, 2),
        ssd=SsdUse(1, 2, 1.0),
        faults=[FaultSpan("node 0 down", 10.0, 90.0)],
        simulated_s=100.0,
        wall_s=1.0,
    )
    return replace(p, economics=Economics(1.0, 2.0, 0.5))


def leaves(tree: Any, path: str = "") -> Iterator[str]:
    for key, sub in tree.items():
        if isinstance(sub, (list, tuple)):
            sub = {str(i): part for i, part in enumerate(sub)}
        if isinstance(sub, dict):
            yield from leaves(sub, f"{path}{key}.")
        else:
            yield path + key


def test_the_declared_metrics_are_the_numbers_of_a_point(full_point: Point) -> None:
    found = set(leaves(msgspec.to_builtins(full_point))) - {"variant", "concurrency", "faults.0.what"}
    named = {"transfers": "pcie", "evictions": "hbm", "faults": "0"}
    declared = {m.path.replace("*", named.get(m.path.partition(".")[0], "*")) for m in METRICS}
    assert declared == found
    for path in declared:
        assert isinstance(value(full_point, path), (int, float)), path


def test_names_and_paths_are_unique_and_every_metric_means_something() -> None:
    assert len({m.name for m in METRICS}) == len({m.path for m in METRICS}) == len(METRICS)
    assert all(m.meaning for m in METRICS)


def test_directions_of_the_pareto_axes() -> None:
    assert metric("throughput.total_tok_s_per_gpu").better == "higher"
    assert metric("interactivity_tok_s_user.p50").better == "higher"
    assert metric("ttft_s.p99").better == "lower"
    assert metric("economics.cost_per_mtok").better == "lower"


def test_values_are_those_of_the_point(full_point: Point) -> None:
    assert value(full_point, "ttft_s.p50") == full_point.ttft_s.p50
    assert value(full_point, "transfers.pcie.bytes") == 7
    assert value(full_point, "faults.0.start_s") == 10.0
    assert value(replace(full_point, economics=None), "economics.margin") is None


@pytest.mark.parametrize(
    "path",
    ["ttft_s.p51", "ttft_s", "transfers.*.bytes", "variant", "requests.p50", "__class__", "faults.0", "faults.1.requests", "faults.0.what"],
)
def test_what_is_no_number_of_a_point_is_an_unknown_metric(path: str, full_point: Point) -> None:
    with pytest.raises(UnknownNameError):
        value(full_point, path)


def test_a_mistyped_metric_is_corrected() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'ttft_s\.p99'"):
        metric("ttft.p99")


def test_the_documentation_lists_exactly_the_metrics_and_columns() -> None:
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if re.match(r"\| `", line)]
    metrics = [f"| `{m.path}` | {m.name} | {m.unit or 'count'} | {m.better or 'neither'} | {m.meaning} |" for m in METRICS]
    columns = [f"| `{name}` | {np.dtype(c.dtype).name} | {c.unit} | {c.meaning} |" for name, c in COLUMNS.items()]
    assert rows == [*metrics, *columns]
