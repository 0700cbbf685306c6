"""What an entry of each section is: GPUs, links, models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from kvsim.catalog.architecture import Architecture
from kvsim.catalog.copying import Copying, Law, copying, share
from kvsim.catalog.loader import quantity
from kvsim.errors import CatalogError, Problem


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU and its share of the node. SI units; rates are per direction, flops are dense (without sparsity).

    `hbm` is what the driver reports. `fp8`, `fp4` None: no such unit. `scaleup`: bandwidth of the GPU's links to the others of its
    domain of `scaleup_gpus`. `host_link`, `nic`, `nvme`: names of links. `note` says of fields what a source doesn't: those marked
    `user parameter` are inferred, not measured.
    """

    name: str
    hbm: float = quantity("bytes")
    hbm_bandwidth: float = quantity("bandwidth")
    bf16: float = quantity("flops")
    fp8: float | None = quantity("flops", default=None)
    fp4: float | None = quantity("flops", default=None)
    scaleup: float = quantity("bandwidth", default=0.0)
    scaleup_gpus: int = 8
    host_link: str = "pcie5"
    dram: float | None = quantity("bytes", default=None)
    dram_bandwidth: float | None = quantity("bandwidth", default=None)
    nic: str | None = None
    nvme: str | None = None
    tdp: float | None = quantity("watts", default=None)
    power: float | None = quantity("watts", default=None)  # of the whole system, per GPU
    source: str = ""
    date: str = ""
    note: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for name in ("hbm", "hbm_bandwidth", "bf16", "scaleup_gpus"):
            if not getattr(self, name) > 0:
                raise CatalogError(Problem(f"must be more than 0, got {getattr(self, name)}", name))

    def flops(self, dtype: str) -> float:
        """Rate of products whose weights are kept in `dtype`: formats that the GPU doesn't multiply are widened to bf16 first."""
        if dtype in ("fp4", "nvfp4", "mxfp4") and self.fp4:
            return self.fp4
        if dtype in ("fp8", "mxfp8") and self.fp8:
            return self.fp8
        return self.bf16


@dataclass(frozen=True, slots=True)
class Link:
    """What a large transfer reaches, and what it costs before that: bytes/s `up` (to the GPU; read, receive) and `down` (from it; write,
    send), seconds `latency` a transfer and `per_fragment` a contiguous piece. `duplex`: share of both that is left when both run.

    `bandwidth` stands for both directions; where they are given themselves, it is the slower one. `shared` bytes/s is what `shared_by`
    links may carry in one direction together. This is the law of the copy engine; `dma` may give it a measured curve, by direction, and
    `kernel` is what a copy kernel costs (None: nothing is known of it). Written: `{up: COST, down: COST}`, for COST see
    `kvsim.catalog.copying.cost`.
    """

    name: str
    bandwidth: float = quantity("bandwidth", default=None)
    up: float = quantity("bandwidth", default=None)
    down: float = quantity("bandwidth", default=None)
    latency: float = quantity("seconds", default=0.0)
    per_fragment: float = quantity("seconds", default=0.0)
    duplex: float = 1.0
    shared: float | None = quantity("bandwidth", default=None)
    shared_by: int = 1
    dma: Copying = field(default=cast(Any, None))
    kernel: Copying | None = None
    source: str = ""
    date: str = ""
    note: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        up, down = (self.bandwidth if way is None else way for way in (self.up, self.down))
        if up is None or down is None:
            raise CatalogError(Problem("is missing: give it, or up and down", "bandwidth"))
        for name, value in (("up", up), ("down", down), ("bandwidth", min(up, down))):
            if not value > 0:
                raise CatalogError(Problem(f"must be more than 0, got {value}", name))
            object.__setattr__(self, name, value)
        share(self.duplex, "duplex")
        self._check_sharing()
        plain = Copying(Law(up, self.per_fragment), Law(down, self.per_fragment), self.duplex)
        dma = plain if self.dma is None else copying(self.dma, "dma", known=("up", "down"), default=plain)
        object.__setattr__(self, "dma", dma)
        if self.kernel is not None:
            for way in ("up", "down"):
                if isinstance(self.kernel, Mapping) and way not in self.kernel:
                    raise CatalogError(Problem("is missing", f"kernel.{way}"))
            object.__setattr__(self, "kernel", copying(self.kernel, "kernel", known=("up", "down", "duplex"), default=plain))

    def _check_sharing(self) -> None:
        if self.shared is not None and not self.shared > 0:
            raise CatalogError(Problem(f"must be more than 0, got {self.shared}", "shared"))
        if self.shared_by < 1:
            raise CatalogError(Problem(f"must be at least 1, got {self.shared_by}", "shared_by"))
        if self.shared is None and self.shared_by > 1:
            raise CatalogError(Problem("is missing: what do the links share?", "shared"))

    def seconds(self, n_bytes: float, fragments: int = 1, *, up: bool = True) -> float:
        """Time of one transfer of so many equal fragments (1 or more) by the copy engine, on an idle link."""
        way = self.dma.up if up else self.dma.down
        return self.latency + fragments * way.seconds(n_bytes / fragments)


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint: its shape, and the formats its weights are kept in (`Weights` as text). `checkpoint`: its name on Hugging Face."""

    name: str
    checkpoint: str
    weights: str
    architecture: Architecture
    source: str
    date: str
    note: Mapping[str, str] = field(default_factory=dict, compare=False)
