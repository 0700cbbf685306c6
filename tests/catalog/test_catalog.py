"""Names, inline entries, config.json files of users."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvsim import catalog
from kvsim.catalog import Hardware, Link, Model
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
    in 64 fragments of 32 KB 64 x 3.5 us = 224 us more than none."""
    pcie5 = catalog.link("pcie5")
    assert pcie5.seconds(2097152) == pytest.approx(10e-6 + 3.5e-6 + 40.02e-6, rel=1e-3)
    assert pcie5.seconds(2097152, 64) - pcie5.seconds(2097152, 0) == pytest.approx(224e-6)
    assert pcie5.seconds(1e9, up=False) == pytest.approx(1e9 / 50.7e9, rel=1e-3)


@pytest.mark.parametrize(
    ("kib", "gb_s"), [(16, 4.2), (32, 7.4), (64, 14.4), (128, 22.7), (256, 31.7), (512, 39.4), (1024, 44.3), (2048, 47.7), (16384, 51.2)]
)
def test_pcie5_follows_the_measured_curve(kib: int, gb_s: float) -> None:
    """Host to device by the copy engine of an H100, 1000 fragments a transfer (vLLM blog of 2026-01-08, figure 4): within 8%."""
    n = 1000 * kib * 1024
    assert n / catalog.link("pcie5").seconds(n, 1000) / 1e9 == pytest.approx(gb_s, rel=0.08)


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
