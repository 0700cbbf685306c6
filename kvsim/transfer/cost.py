"""What moving a block of KV costs: the contiguous fragments it lies in, and the seconds they take on a link.

Law. A transfer of n fragments takes latency + n * t, where t is what a fragment of that size takes (`kvsim.catalog.copying`):
per_fragment + bytes / bandwidth, or a point of a measured curve. Times here are of a link to itself; `rate` tells what sharing and traffic
the other way leave of it. Tensor parallelism divides grouped-query KV by heads: each rank moves its own part over its own link, all at the
same time. Latents and other KV without heads are on every rank, and every rank moves all of it.

Source: vLLM 0.33.0, v1/kv_offload/cpu/gpu_worker.py (ways of copying); vLLM blog of 2026-01-08 (layouts, curves).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from kvsim.catalog.architecture import Architecture
from kvsim.catalog.attention import Compressed, Gqa, Group, Mla
from kvsim.catalog.copying import Copying
from kvsim.catalog.entries import Link
from kvsim.errors import CatalogError, did_you_mean

Layout = Literal["layer-wise", "layer-joint", "cross-layer"]
Path = Literal["auto", "dma", "kernel"]
KERNEL_BELOW_BYTES = 28 * 1024


@dataclass(frozen=True, slots=True)
class Fragments:
    """The contiguous pieces that a block lies in on one rank: how many, and the bytes of each (their mean, where they differ)."""

    count: int
    bytes: float


def fragments(architecture: Architecture, layout: str, block_tokens: int, kv_dtype: str, tp: int) -> Fragments:
    """Fragments of a block of `block_tokens` tokens on one rank of `tp`; count * bytes are the rank's bytes of the block.

    `layer-wise`: a layer's keys, its values and the keys of its index are apart (a latent is one piece). `layer-joint`: a layer is one
    piece. `cross-layer`: a block is. Layers that keep nothing by token (windows, linear attention) have none. Raises `ValueError` for
    another layout, `CatalogError` for a model without KV by token.
    """
    if layout not in get_args(Layout):
        raise ValueError(f"{layout!r} is no layout of KV{did_you_mean(layout, get_args(Layout))}")
    kept = [group for group in architecture.attention if group.kv_bytes(kv_dtype, tp) > 0]
    if not kept:
        raise CatalogError(f"{architecture.model_type}: no layer keeps KV by token, so there are no blocks to move")
    count = 1 if layout == "cross-layer" else sum(_tensors(g) if layout == "layer-wise" else g.layers for g in kept)
    return Fragments(count, architecture.kv_bytes_per_token(kv_dtype, tp) * block_tokens / count)


def _tensors(group: Group) -> int:
    """In how many tensors the layers of `group` keep a token."""
    if isinstance(group, Gqa):
        return group.layers * (3 if group.index_dim else 2)
    if isinstance(group, Mla):
        return group.layers + group.index_layers
    return group.layers * (2 if isinstance(group, Compressed) and group.top_k else 1)


def copied_by(link: Link, pieces: Fragments, *, up: bool, path: str = "auto") -> Copying:
    """The way that fragments go. `dma`: the copy engine; `kernel`: a copy kernel; `auto`: what vLLM does.

    vLLM copies from the GPU by the copy engine, and to it by a kernel where fragments are below 28 KiB and a job has at least 16 of them.
    Here a block is decided upon, not a job: its job is taken to have the 16. Where it has fewer, the kernel's time is too short by what
    15 fragments cost the copy engine more, some 50 us. Raises `CatalogError` where `kernel` is asked for and the link has none.
    """
    if path not in get_args(Path):
        raise ValueError(f"{path!r} is no way of copying{did_you_mean(path, get_args(Path))}")
    if path == "kernel" and link.kernel is None:
        raise CatalogError(f"the link {link.name} doesn't say what a copy kernel costs: give it `kernel`, or copy by dma")
    if link.kernel is not None and (path == "kernel" or (path == "auto" and up and pieces.bytes < KERNEL_BELOW_BYTES)):
        return link.kernel
    return link.dma


def seconds_per_block(link: Link, pieces: Fragments, *, up: bool, path: str = "auto") -> float:
    """Seconds a block of these fragments takes on a link of its own, without the latency of its transfer. `up`: to the GPU."""
    way = copied_by(link, pieces, up=up, path=path)
    return pieces.count * (way.up if up else way.down).seconds(pieces.bytes)


def rate(link: Link, pieces: Fragments, *, up: bool, path: str = "auto", active: int = 1, both: bool = False) -> float:
    """Bytes/s that a long transfer of such blocks reaches on each of `active` links that move in this direction together:

        min(alone, shared / active) * (duplex if both)

    `both`: this link's other direction is busy too. `duplex` is that of the way of copying. Raises `ValueError` for more links than share.
    """
    if not 1 <= active <= link.shared_by:
        raise ValueError(f"the link {link.name} is shared by {link.shared_by}, {active} cannot be active")
    alone = pieces.count * pieces.bytes / seconds_per_block(link, pieces, up=up, path=path)
    share = alone if link.shared is None else min(alone, link.shared / active)
    return share * (copied_by(link, pieces, up=up, path=path).duplex if both else 1.0)
