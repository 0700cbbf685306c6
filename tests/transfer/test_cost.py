"""What moving a block costs: measured curves, laws by hand, layouts by hand, ways of copying, sharing."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim import catalog
from kvsim.catalog.copying import Cost, Curve, Law
from kvsim.errors import CatalogError
from kvsim.transfer.cost import Fragments, Layout, copied_by, fragments, rate, seconds_per_block

KIB = 1024
# GB/s of one transfer of 1000 fragments between an H100 and its host over PCIe Gen5 x16, by KiB of a fragment: read off figures 3 and 4 of
# "Inside vLLM's New KV Offloading Connector" (vLLM blog, 2026-01-08). Its sizes are powers of two: its 2 MB are 16 tokens of Llama-3.1-8B.
SIZES_KIB = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
MEASURED = {
    ("up", "dma"): (1.1, 2.3, 4.2, 7.4, 14.4, 22.7, 31.7, 39.4, 44.3, 47.7, 49.7, 51.2),
    ("down", "dma"): (0.9, 2.2, 4.5, 8.2, 15.3, 21.5, 29.2, 37, 42.4, 46.2, 48.6, 50.7),
    ("up", "kernel"): (12.5, 24.4, 30.6, 35.8, 41.9, 44, 46.1, 46.8, 47.3, 47.6, 47.6, 47.8),
    ("down", "kernel"): (5.3, 22, 30.6, 34.2, 41, 45.4, 46.9, 48, 48.4, 48.7, 48.8, 48.9),
}
POINTS = [(way, path, kib, gb_s) for (way, path), row in MEASURED.items() for kib, gb_s in zip(SIZES_KIB, row, strict=True)]
PAIRED = {"bandwidth": "100GB/s", "shared": "150GB/s", "shared_by": 2, "duplex": 0.8}


def achieved(way: str, path: str, kib: int) -> float:
    """GB/s of 1000 fragments in one transfer, latency included."""
    link, pieces = catalog.link("pcie5"), Fragments(1000, kib * KIB)
    return 1000 * kib * KIB / (link.latency + seconds_per_block(link, pieces, up=way == "up", path=path)) / 1e9


@pytest.mark.parametrize(("way", "path", "kib", "gb_s"), POINTS)
def test_pcie5_reaches_what_was_measured(way: str, path: str, kib: int, gb_s: float) -> None:
    assert achieved(way, path, kib) == pytest.approx(gb_s, rel=0.1)


@pytest.mark.parametrize(("path", "gb_s"), [("dma", 83.4), ("kernel", 68.5)])
def test_pcie5_in_both_directions_at_once(path: str, gb_s: float) -> None:
    """The same source: 2 MB fragments both ways at the same time, the sum of both rates."""
    link, pieces = catalog.link("pcie5"), Fragments(1, 2048 * KIB)
    both = sum(rate(link, pieces, up=up, path=path, both=True) for up in (True, False))
    assert both / 1e9 == pytest.approx(gb_s, rel=0.02)


def test_the_documentation_has_the_same_table() -> None:
    """Rows `| KiB | measured kvsim | ...` of docs/transfer.md, ways in the order of MEASURED."""
    text = (Path(__file__).parents[2] / "docs" / "transfer.md").read_text(encoding="utf-8")
    rows = [re.findall(r"[\d.]+", line.replace(",", "")) for line in text.splitlines() if re.match(r"\| [\d,]+ \|", line)]
    assert [int(row[0]) for row in rows] == list(SIZES_KIB)
    for n, row in enumerate(rows):
        want = [(MEASURED[key][n], round(achieved(*key, SIZES_KIB[n]), 1)) for key in MEASURED]
        assert [float(x) for x in row[1:]] == [x for pair in want for x in pair]


def test_two_parameters_by_hand() -> None:
    """64 fragments of 32 KiB at 2 us + 32,768 / 32.768 GB/s = 1 us each: 192 us; the other direction at half the bandwidth 256 us."""
    link = catalog.link({"up": "32.768GB/s", "down": "16.384GB/s", "per_fragment": "2us", "latency": "10us"})
    pieces = Fragments(64, 32 * KIB)
    assert seconds_per_block(link, pieces, up=True) == pytest.approx(192e-6)
    assert seconds_per_block(link, pieces, up=False) == pytest.approx(256e-6)
    assert link.seconds(64 * 32 * KIB, 64) == pytest.approx(202e-6)
    assert rate(link, pieces, up=True) == pytest.approx(64 * 32 * KIB / 192e-6)


def test_curve_by_hand() -> None:
    """1 KiB at 1 GB/s is 1.024 us and 4 KiB at 1 GB/s 4.096 us: 2 KiB, half way on the logarithm, take their geometric mean, 2.048 us."""
    curve = Curve((1024, 4096), (1e9, 1e9))
    assert [curve.seconds(n) for n in (1, 1024, 2048, 4096, 8192)] == pytest.approx([1.024e-6, 1.024e-6, 2.048e-6, 4.096e-6, 8.192e-6])
    rising = Curve((1024, 4096), (1e9, 2e9))
    assert rising.seconds(2048) == pytest.approx(math.sqrt(1.024e-6 * 2.048e-6))
    assert rising.seconds(40960) == pytest.approx(40960 / 2e9)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Larger fragments take longer, and go at no lower rate."""
    size, seconds = draw(st.floats(512, 65536)), draw(st.floats(1e-7, 1e-5))
    points = [(size, seconds)]
    for factor, part in draw(st.lists(st.tuples(st.floats(1.1, 8), st.floats(0, 1)), max_size=8)):
        size, seconds = size * factor, seconds * factor**part
        points.append((size, seconds))
    return Curve(tuple(p[0] for p in points), tuple(p[0] / p[1] for p in points))


laws = st.builds(Law, st.floats(1e8, 1e12), st.floats(0, 1e-4))
sizes = st.tuples(st.floats(1, 1e8), st.floats(1, 1e8)).map(sorted)


@given(st.one_of(laws, curves()), sizes)
def test_a_larger_fragment_takes_longer_and_costs_no_more_a_byte(cost: Cost, pair: list[float]) -> None:
    small, large = pair
    assert cost.seconds(small) <= cost.seconds(large) * (1 + 1e-9)
    assert cost.seconds(large) / large <= cost.seconds(small) / small * (1 + 1e-9)


@given(st.sampled_from(catalog.names("link")), st.booleans(), st.sampled_from(["dma", "kernel"]), sizes, st.integers(1, 1000))
def test_every_link_moves_larger_fragments_no_slower(name: str, up: bool, path: str, pair: list[float], n: int) -> None:
    """The same bytes in fewer, larger fragments never take longer, and more fragments always do."""
    link = catalog.link(name)
    if path == "kernel" and link.kernel is None:
        return
    small, large = (rate(link, Fragments(n, size), up=up, path=path) for size in pair)
    assert small <= large * (1 + 1e-9)
    seconds = [seconds_per_block(link, Fragments(count, pair[0]), up=up, path=path) for count in (n, n + 1)]
    assert 0 < seconds[0] < seconds[1]


@pytest.mark.parametrize(
    ("model", "block_tokens", "tp", "want"),
    [
        # 8 heads of 128 in bf16, 32 layers: keys of 16 tokens in a layer are 16 x 8 x 128 x 2 = 32 KiB, a block 2 MiB.
        ("llama-3.1-8b", 16, 1, [(64, 32 * KIB), (32, 64 * KIB), (1, 2048 * KIB)]),
        # 80 layers, 8 heads of 128: two heads on a rank of 4 (the blog's table has 8 KB and 1.25 MB), one on a rank of 8 and of 16.
        ("llama-3.1-70b", 16, 4, [(160, 8 * KIB), (80, 16 * KIB), (1, 1280 * KIB)]),
        ("llama-3.1-70b", 16, 8, [(160, 4 * KIB), (80, 8 * KIB), (1, 640 * KIB)]),
        ("llama-3.1-70b", 16, 16, [(160, 4 * KIB), (80, 8 * KIB), (1, 640 * KIB)]),
        # The blog's table: 16 KB and 2 MB.
        ("qwen3-32b", 16, 2, [(128, 16 * KIB), (64, 32 * KIB), (1, 2048 * KIB)]),
        # 61 layers of one latent: 64 x (512 + 64) x 2 = 72 KiB, whatever the ranks.
        ("deepseek-v3", 64, 1, [(61, 72 * KIB), (61, 72 * KIB), (1, 4392 * KIB)]),
        ("deepseek-v3", 64, 8, [(61, 72 * KIB), (61, 72 * KIB), (1, 4392 * KIB)]),
        # 18 of 36 layers have windows and keep nothing for good; 8 heads of 64: 16 KiB.
        ("gpt-oss-120b", 16, 1, [(36, 16 * KIB), (18, 32 * KIB), (1, 576 * KIB)]),
        # 24 of 93 layers have latents, the others linear attention.
        ("kimi-k3", 64, 8, [(24, 72 * KIB), (24, 72 * KIB), (1, 1728 * KIB)]),
    ],
)
def test_layouts_by_hand(model: str, block_tokens: int, tp: int, want: list[tuple[int, float]]) -> None:
    shape = catalog.model(model).architecture
    found = [fragments(shape, layout, block_tokens, "bf16", tp) for layout in get_args(Layout)]
    assert found == [Fragments(*pair) for pair in want]


def test_the_keys_of_an_index_are_apart() -> None:
    """DeepSeek-V3.2 has one in each of 61 layers, GLM-5.2 in 21 of 78."""
    counts = [
        fragments(catalog.model(m).architecture, "layer-wise", 64, "fp8", 8).count for m in ("deepseek-v3.2", "glm-5.2", "minimax-m2.5")
    ]
    assert counts == [61 + 61, 78 + 21, 2 * 62]


@pytest.mark.parametrize("model", catalog.names("model"))
def test_every_layout_moves_the_same_bytes(model: str) -> None:
    shape = catalog.model(model).architecture
    block = 64 * shape.kv_bytes_per_token("fp8", 8)
    counts = []
    for layout in get_args(Layout):
        pieces = fragments(shape, layout, 64, "fp8", 8)
        assert pieces.count * pieces.bytes == pytest.approx(block)
        counts.append(pieces.count)
    assert counts[0] >= counts[1] >= counts[2] == 1


def test_fewer_fragments_are_faster() -> None:
    """Llama-3.1-8B by the copy engine: 64 fragments of 32 KiB at 7.4 GB/s measured, a block of 2 MiB at 47.7 GB/s."""
    link, shape = catalog.link("pcie5"), catalog.model("llama-3.1-8b").architecture
    apart, joint, across = (
        seconds_per_block(link, fragments(shape, layout, 16, "bf16", 1), up=True, path="dma") for layout in get_args(Layout)
    )
    assert apart > joint > across
    assert apart / across == pytest.approx(47.7 / 7.4, rel=0.1)


def test_auto_copies_as_vllm_does() -> None:
    """Small fragments to the GPU by a kernel, all else by the copy engine; a link that knows of no kernel has none."""
    link, plain = catalog.link("pcie5"), catalog.link({"bandwidth": "50GB/s"})
    below, at = Fragments(160, 28 * KIB - 1), Fragments(160, 28 * KIB)
    assert copied_by(link, below, up=True) is link.kernel
    assert copied_by(link, at, up=True) is link.dma
    assert copied_by(link, below, up=False) is link.dma
    assert copied_by(link, below, up=False, path="kernel") is link.kernel
    assert copied_by(plain, below, up=True) is plain.dma
    for up in (True, False):
        ways = {p: seconds_per_block(link, below, up=up, path=p) for p in ("auto", "dma", "kernel")}
        assert ways["auto"] == ways["kernel" if up else "dma"]
        assert ways["kernel"] < ways["dma"]


def test_sharing_by_hand() -> None:
    """100 GB/s each and 150 GB/s for two: one alone gets 100, two 75 each; 80% of that while the other direction runs."""
    link, whole = catalog.link(PAIRED), Fragments(1, 1e9)
    assert rate(link, whole, up=True) == pytest.approx(100e9)
    assert rate(link, whole, up=True, active=2) == pytest.approx(75e9)
    assert rate(link, whole, up=False, active=2, both=True) == pytest.approx(60e9)
    slow = catalog.link({**PAIRED, "per_fragment": "1ms"})
    assert rate(slow, Fragments(1, 1e6), up=True, active=2) == rate(slow, Fragments(1, 1e6), up=True), "too slow to fill the memory"


@given(st.floats(1e9, 1e12), st.floats(1e9, 1e12), st.integers(1, 8))
def test_all_that_share_never_carry_more_than_there_is(bandwidth: float, shared: float, active: int) -> None:
    link = catalog.link({"bandwidth": f"{bandwidth}B/s", "shared": f"{shared}B/s", "shared_by": 8})
    each = rate(link, Fragments(1, 1e6), up=True, active=active)
    assert active * each <= shared * (1 + 1e-9)
    assert each <= bandwidth * (1 + 1e-9)
    assert each == pytest.approx(min(bandwidth, shared / active))


def test_mistakes_are_told() -> None:
    link, pieces = catalog.link("rdma-400g"), Fragments(1, 1e6)
    shape = catalog.model("kimi-k3").architecture
    with pytest.raises(ValueError, match="'layerwise' is no layout of KV, did you mean 'layer-wise'"):
        fragments(shape, "layerwise", 64, "fp8", 8)
    with pytest.raises(ValueError, match="'dmaa' is no way of copying, did you mean 'dma'"):
        seconds_per_block(link, pieces, up=True, path="dmaa")
    with pytest.raises(CatalogError, match="the link rdma-400g doesn't say what a copy kernel costs"):
        seconds_per_block(link, pieces, up=True, path="kernel")
    for active in (0, 2):
        with pytest.raises(ValueError, match=f"is shared by 1, {active} cannot be active"):
            rate(link, pieces, up=True, active=active)
    with pytest.raises(CatalogError, match="qwen2: no layer keeps KV by token"):
        fragments(windows_only(), "cross-layer", 16, "bf16", 1)


def windows_only() -> catalog.Architecture:
    config = {
        "model_type": "qwen2",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "max_position_embeddings": 1024,
        "sliding_window": 128,
        "layer_types": ["sliding_attention"] * 2,
    }
    return catalog.model(config).architecture
