"""The catalog: every entry loads, has its source, and mistakes in one are named where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim import catalog
from kvsim.errors import CatalogError


@pytest.mark.parametrize(("section", "load"), [("hardware", catalog.hardware), ("link", catalog.link), ("model", catalog.model)])
def test_every_entry_loads_with_its_source(section: str, load) -> None:  # type: ignore[no-untyped-def]
    for name in catalog.names(section):
        entry = load(name)
        assert entry.name == name
        assert len(entry.source) > 5
        assert entry.date.startswith("20")


def test_host_links_exist() -> None:
    for name in catalog.names("hardware"):
        gpu = catalog.hardware(name)
        assert catalog.link(gpu.host_link).bandwidth > 1e9
        assert gpu.flops("fp4") >= gpu.flops("fp8") >= gpu.flops("bf16") == gpu.bf16


def test_unknown_name_is_guessed() -> None:
    with pytest.raises(CatalogError, match="has no hardware 'h10', did you mean 'h100'"):
        catalog.hardware("h10")
    with pytest.raises(CatalogError, match="has no model 'kimi-k4', did you mean 'kimi-k"):
        catalog.model("kimi-k4")


def test_entry_without_source_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "links.yaml"
    path.write_text("a: {bandwidth: 1GB/s, source: me, date: 2026-01-01}\nb: {bandwidth: 1GB/s, date: 2026-01-01}\n")
    with pytest.raises(CatalogError, match=r"links.yaml:2: b.source: an entry needs a source"):
        catalog.read_section(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bandwidth": "1GB"}, "bandwidth: '1GB' is a quantity of bytes, not of bandwidth"),
        ({"bandwidth": "1GB/s", "lanes": 3}, "lanes: unknown field"),
        ({}, "bandwidth: is missing"),
    ],
)
def test_inline_mistakes(fields: dict[str, object], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        catalog.link(fields)


def test_inline_link() -> None:
    assert catalog.link({"bandwidth": "40GB/s", "latency": "5us"}).bandwidth == 40e9
