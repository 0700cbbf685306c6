"""Names, inline entries, config.json files of users."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvsim import catalog
from kvsim.catalog import Hardware, Link, Model
from kvsim.catalog.copying import Copying, Curve, Law
from kvsim.errors import CatalogError

PLAIN = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 1024,
}

GBS = {"bandwidth": "50GB/s"}


@pytest.mark.parametrize(("section", "kind"), [("hardware", Hardware), ("link", Link), ("model", Model)])
def test_every_entry_loads(section: str, kind: Any) -> None:
    for name in catalog.names(section):
        entry = getattr(catalog, section)(name)
        assert isinstance(entry, kind)
        assert entry.name == name


def test_names_that_scenarios_use() -> None:
    assert {"h100", "h200", "b200", "b300", "gb200", "gb300", "mi355x"} <= set(catalog.names("hardware"))
    links = {"pcie4", "pcie5", "pcie6", "nvlink-c2c", "nvlink4", "nvlink5", "rdma-200g", "rdma-400g", "rdma-800g", "nvme-gen4", "nvme-gen5"}
    assert links <= set(catalog.names("link"))
    models = "llama-3.1-8b llama-3.1-70b qwen3-32b qwen3-235b deepseek-v3 kimi-k2.5 kimi-k3 minimax-m2.5 minimax-m3 glm-5.2 gpt-oss-120b"
    assert set(models.split()) <= set(catalog.names("model"))


@pytest.mark.parametrize(
    ("section", "name", "message"),
    [
        ("hardware", "h10", "the catalog has no hardware 'h10', did you mean 'h100'?"),
        ("link", "pcie55", "the catalog has no link 'pcie55', did you mean 'pcie5'?"),
        ("model", "kimi-k4", "the catalog has no model 'kimi-k4', did you mean 'kimi-k3'?"),
    ],
)
def test_unknown_names_are_guessed(section: str, name: str, message: str) -> None:
    with pytest.raises(CatalogError) as raised:
        getattr(catalog, section)(name)
    assert str(raised.value) == message


def test_rates_by_format() -> None:
    """Formats a GPU doesn't multiply are widened to bf16: a 4-bit checkpoint on Hopper computes in bf16, fp8 on Ampere too."""
    h100, b300, a100 = (catalog.hardware(n) for n in ("h100", "b300", "a100-80gb"))
    assert [h100.flops(d) for d in ("bf16", "fp8", "mxfp8", "mxfp4", "int4")] == [989e12, 1979e12, 1979e12, 989e12, 989e12]
    assert [b300.flops(d) for d in ("bf16", "fp8", "nvfp4", "int4")] == [2250e12, 4500e12, 13500e12, 2250e12]
    assert a100.flops("fp8") == 312e12


def test_time_of_a_transfer_by_hand() -> None:
    """One 2 MB block of Llama-3.1-8B (16 tokens, bf16) over PCIe Gen5: in one fragment 2,097,152 / 52.4 GB/s = 40 us and 13.5 us before;
    in 64 fragments of 32 KB 63 x 3.5 us = 220.5 us more."""
    pcie5 = catalog.link("pcie5")
    assert pcie5.seconds(2097152) == pytest.approx(10e-6 + 3.5e-6 + 40.02e-6, rel=1e-3)
    assert pcie5.seconds(2097152, 64) - pcie5.seconds(2097152) == pytest.approx(220.5e-6)
    assert pcie5.seconds(1e9, up=False) == pytest.approx(1e9 / 50.7e9, rel=1e-3)


def test_host_memory_of_two_gpus_is_shared() -> None:
    """A GPU of GB200 gets more of a Grace to itself than half, at most 240 GB/s; two get what one GPU of GH200 was measured to get."""
    pair, single = catalog.link("nvlink-c2c"), catalog.link("nvlink-c2c-gh200")
    assert (pair.shared, pair.shared_by) == (single.up, 2)
    assert pair.shared is not None
    assert pair.shared / 2 < pair.up <= 240e9
    assert 2 * pair.down <= single.down
    assert (single.shared, single.shared_by) == (None, 1)
    for name in set(catalog.names("link")) - {"nvlink-c2c"}:
        assert catalog.link(name).shared is None


def test_a_link_says_what_copying_costs() -> None:
    """As a law or as a curve, by direction; what isn't said is the plain law of the link, the share of both directions too."""
    own = catalog.link(
        {
            "bandwidth": "50GB/s",
            "per_fragment": "3us",
            "duplex": 0.9,
            "dma": {"down": {"1KiB": "1GB/s", "4KiB": "2GB/s"}},
            "kernel": {"up": {"bandwidth": "40GB/s"}, "down": {"bandwidth": "30GB/s", "per_fragment": "1us"}},
        }
    )
    assert own.dma == Copying(Law(50e9, 3e-6), Curve((1024.0, 4096.0), (1e9, 2e9)), 0.9)
    assert own.kernel == Copying(Law(40e9), Law(30e9, 1e-6), 0.9)
    assert replace(own, latency=1.0).dma == own.dma
    assert catalog.link({"bandwidth": "50GB/s"}).kernel is None


def test_entries_given_by_their_fields() -> None:
    own = catalog.hardware({"hbm": "96GB", "hbm_bandwidth": "4TB/s", "bf16": "1PFLOPS", "host_link": "nvlink-c2c-gh200"})
    assert (own.hbm, own.name, own.source, own.fp8) == (96e9, "inline", "given", None)
    both = catalog.link({"bandwidth": "400Gbps", "latency": "5us"})
    assert (both.up, both.down, both.bandwidth) == (50e9, 50e9, 50e9)
    assert catalog.inline("model", {"config_of": "glm-5.2", "weights": "fp8"}).architecture == catalog.model("glm-5.2").architecture  # type: ignore[union-attr]
    bare, wrapped = catalog.model(PLAIN), catalog.model({"config": PLAIN, "weights": "fp8"})
    assert bare.architecture == wrapped.architecture
    assert (bare.weights, wrapped.weights) == ("bf16", "fp8")


@pytest.mark.parametrize(
    ("section", "fields", "path", "message"),
    [
        ("hardware", {"hbm": "80"}, "hbm", "'80' has no unit"),
        ("hardware", {"hbm": "80GB", "hbm_bandwith": "3TB/s"}, "hbm_bandwith", "unknown field, did you mean 'hbm_bandwidth'?"),
        (
            "hardware",
            {"hbm": "1GB", "hbm_bandwidth": "1TB/s", "bf16": "1TFLOPS", "host_link": "pcie"},
            "host_link",
            "the catalog has no link 'pcie'",
        ),
        ("link", {"bandwidth": 3}, "bandwidth", "3 has no unit, write it like '55GB/s'"),
        ("link", {**GBS, "shared_by": 2}, "shared", "is missing: what do the links share?"),
        ("link", {**GBS, "shared": "0GB/s"}, "shared", "must be more than 0, got 0.0"),
        ("link", {**GBS, "shared": "9GB/s", "shared_by": 0}, "shared_by", "must be at least 1, got 0"),
        ("link", {**GBS, "duplex": 1.5}, "duplex", "must be above 0 and at most 1, got 1.5"),
        ("link", {**GBS, "dma": "fast"}, "dma", "expected a mapping of up, down, got 'fast'"),
        ("link", {**GBS, "dma": {"duplex": 0.5}}, "dma.duplex", "unknown field"),
        ("link", {**GBS, "dma": {"up": {}}}, "dma.up", "expected bandwidth and per_fragment, or a rate for each size of fragment, got {}"),
        ("link", {**GBS, "dma": {"up": {"bandwith": "1GB/s"}}}, "dma.up.bandwith", "unknown field, did you mean 'bandwidth'?"),
        ("link", {**GBS, "dma": {"up": {"per_fragment": "1us"}}}, "dma.up.bandwidth", "is missing"),
        ("link", {**GBS, "dma": {"up": {"bandwidth": "0GB/s"}}}, "dma.up.bandwidth", "must be more than 0, got '0GB/s'"),
        ("link", {**GBS, "dma": {"up": {"bandwidth": "1GB/s", "per_fragment": "-1us"}}}, "dma.up.per_fragment", "must not be negative"),
        ("link", {**GBS, "dma": {"up": {"4KiB": "1GB/s", "8KiB": "0GB/s"}}}, "dma.up.8KiB", "must be more than 0, got '0GB/s'"),
        ("link", {**GBS, "dma": {"up": {"4KiB": "-1GB/s"}}}, "dma.up.4KiB", "must be more than 0, got '-1GB/s'"),
        ("link", {**GBS, "dma": {"up": {"8KiB": "1GB/s", "4KiB": "2GB/s"}}}, "dma.up.4KiB", "sizes must be more than 0 and increase"),
        ("link", {**GBS, "dma": {"up": {"4KiB": "1GB/s", "4096B": "2GB/s"}}}, "dma.up.4096B", "sizes must be more than 0 and increase"),
        ("link", {**GBS, "dma": {"up": {"0KiB": "1GB/s"}}}, "dma.up.0KiB", "sizes must be more than 0 and increase"),
        ("link", {**GBS, "dma": {"up": {"4us": "1GB/s"}}}, "dma.up.4us", "'4us' is a quantity of seconds, not of bytes"),
        ("link", {**GBS, "dma": {"up": {"4KiB": "1GB"}}}, "dma.up.4KiB", "'1GB' is a quantity of bytes, not of bandwidth"),
        ("link", {**GBS, "kernel": {"up": {"bandwidth": "1GB/s"}}}, "kernel.down", "is missing"),
        ("link", {**GBS, "kernel": {"up": {"1B": "1B/s"}, "down": {"1B": "1B/s"}, "duplex": 0}}, "kernel.duplex", "must be above 0"),
        ("model", {"weights": "fp8", "config": {**PLAIN, "vocab_size": None}}, "config.vocab_size", "is missing"),
        ("model", {**PLAIN, "hidden_size": "64"}, "hidden_size", "expected a whole number from 1 up, got '64'"),
        ("model", {"config": PLAIN, "weights": "fp7"}, "weights", "'fp7' is no type of weights, did you mean"),
        ("model", {"config": PLAIN, "config_of": "kimi-k3"}, "config", "needs one of config"),
        ("model", {"config_of": "kimi"}, "config_of", "the catalog has no model 'kimi' with a config"),
        ("model", {"config": PLAIN, "wieghts": "fp8"}, "wieghts", "unknown field, did you mean 'weights'?"),
    ],
)
def test_mistakes_in_fields_have_a_path_within_the_entry(section: str, fields: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(CatalogError) as raised:
        catalog.inline(section, fields)
    (problem,) = raised.value.problems
    assert problem.path == path
    assert problem.message.startswith(message)


def test_config_json_of_a_user(tmp_path: Path) -> None:
    path = tmp_path / "my-model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**PLAIN, "quantization_config": {"quant_method": "fp8"}}))
    found = catalog.model(str(path))
    assert (found.name, found.weights, found.source) == ("my-model", "fp8", str(path))
    assert found == catalog.model(path)
    for text, message in (
        ("{\n]", f"{path}:2:1: is not JSON: "),
        ("[]", f"{path}: is not a model configuration: not a JSON object"),
        ('{"num_hidden_layers": 2}', f"{path}: hidden_size: is missing"),
    ):
        path.write_text(text)
        with pytest.raises(CatalogError) as raised:
            catalog.model(str(path))
        assert str(raised.value).startswith(message)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CatalogError, match="is not JSON: not UTF-8 text"):
        catalog.model(str(path))
    with pytest.raises(CatalogError, match="none.json: cannot be read: No such file"):
        catalog.model(str(tmp_path / "none.json"))


def test_the_catalog_needs_no_compiler() -> None:
    code = "import sys; from kvsim import catalog; catalog.model('kimi-k3'); assert not {'numba', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
