"""Catalog files: what is refused, and that the place is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.catalog.entries import Hardware, Link
from kvsim.catalog.loader import FOLDER, Entry, build, read
from kvsim.errors import CatalogError

GOOD = """\
# links
fast:
  up: 2GB/s
  down: 1GB/s
  latency: 5ms
  source: a page
  date: 2026-01-31
  note: {up: user parameter}
"""


def load(tmp_path: Path, text: str) -> Link:
    path = tmp_path / "links.yaml"
    path.write_text(text)
    return build(Link, read(path)["fast"])


def test_an_entry_becomes_its_dataclass(tmp_path: Path) -> None:
    link = load(tmp_path, GOOD)
    assert link == Link(name="fast", up=2e9, down=1e9, latency=5e-3, source="a page", date="2026-01-31")
    assert link.bandwidth == 1e9
    assert link.note == {"up": "user parameter"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  source: a page\n", "", "links.yaml:2: fast.source: an entry needs a source"),
        ("  date: 2026-01-31\n", "", "links.yaml:2: fast.date: an entry needs a date"),
        ("source: a page", "source: ''", "links.yaml:6: fast.source: an entry needs a source"),
        ("latency", "latencyy", "links.yaml:5: fast.latencyy: unknown field, did you mean 'latency'?"),
        ("5ms", "5", "links.yaml:5: fast.latency: 5 has no unit, write it like '3600s'"),
        ("5ms", "-5ms", "links.yaml:5: fast.latency: must not be negative, got '-5ms'"),
        ("5ms", "5GB", "links.yaml:5: fast.latency: '5GB' is a quantity of bytes, not of seconds"),
        ("1GB/s", "0GB/s", "links.yaml:4: fast.down: must be more than 0, got 0.0"),
        ("  down: 1GB/s\n", "", "links.yaml:2: fast.bandwidth: is missing: give it, or up and down"),
        ("  down: 1GB/s\n", "  down: 1GB/s\n  up: 3GB/s\n", "links.yaml:5: fast.up: is there twice, first in line 3"),
        ("note: {up", "note: {upp", "links.yaml:8: fast.note.upp: is about a field that the entry doesn't have, did you mean 'up'?"),
        ("note: {up: user parameter}", "note: inferred", "links.yaml:8: fast.note: expected a mapping of field names"),
        ("up: 2GB/s", "up: [2GB/s", "links.yaml:4:7: is not YAML"),
        ("fast:\n", "fast: 3\nslow:\n", "links.yaml:2: fast: expected a mapping, got 3"),
        ("2026-01-31", "2026-01-32", "links.yaml:7: fast.date: cannot be read"),
    ],
)
def test_mistakes_name_their_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(CatalogError) as raised:
        load(tmp_path, GOOD.replace(old, new))
    assert str(raised.value).startswith(message)


def test_fields_of_the_wrong_kind_are_refused() -> None:
    fields = {"hbm": "80GB", "hbm_bandwidth": "3TB/s", "bf16": "1PFLOPS"}
    assert build(Hardware, Entry("x", fields)).scaleup_gpus == 8
    for change, message in (
        ({"scaleup_gpus": "8"}, "scaleup_gpus: expected a whole number, got '8'"),
        ({"scaleup_gpus": True}, "scaleup_gpus: expected a whole number, got True"),
        ({"scaleup_gpus": 0}, "scaleup_gpus: must be more than 0, got 0"),
        ({"host_link": 5}, "host_link: expected text, got 5"),
        ({"hbm": None}, "hbm: expected a quantity such as '64GiB', got None"),
    ):
        with pytest.raises(CatalogError) as raised:
            build(Hardware, Entry("x", {**fields, **change}))
        assert str(raised.value) == message
    del fields["hbm"]
    with pytest.raises(CatalogError, match="hbm: is missing"):
        build(Hardware, Entry("x", fields))


def test_mistakes_in_a_curve_name_their_point(tmp_path: Path) -> None:
    curve = "  dma:\n    up:\n      4KiB: 1GB/s\n      2KiB: 3GB/s\n"
    for old, new, message in (
        ("  date", curve + "  date", "links.yaml:10: fast.dma.up.2KiB: sizes must be more than 0 and increase, got '2KiB'"),
        ("  date", curve.replace("2KiB: 3", "8KiB: 0") + "  date", "links.yaml:10: fast.dma.up.8KiB: must be more than 0, got '0GB/s'"),
        ("  date", "  kernel: {up: {4KiB: 1GB/s}}\n  date", "links.yaml:7: fast.kernel.down: is missing"),
    ):
        with pytest.raises(CatalogError) as raised:
            load(tmp_path, GOOD.replace(old, new))
        assert str(raised.value) == message


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda p: p.name)
def test_own_files_have_their_sources(path: Path) -> None:
    for entry in read(path).values():
        assert len(entry.fields["source"]) > 10
        assert str(entry.fields["date"]).startswith("20")
