"""From what a scenario says of a cluster to the engines that make it up: sizes, times and parts, in plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvsim import catalog
from kvsim.cache.offload import BelowTier, Connector, HostTier
from kvsim.cache.offload.direct import DirectConnector
from kvsim.cache.offload.simple import SimpleConnector
from kvsim.cache.store import SharedStore
from kvsim.catalog.copying import Copying
from kvsim.engine.memory import hbm_budget
from kvsim.engine.step_time import Deployment, StepTime
from kvsim.engine.vllm import Chains, Commons, EngineConfig, VllmEngine
from kvsim.errors import ScenarioError
from kvsim.transfer.channel import Ways, make_ways
from kvsim.transfer.cost import Fragments, copied_by, fragments, seconds_per_block

if TYPE_CHECKING:
    from kvsim.workload.workload import Workload

LARGE_BYTES, MIDDLE_BYTES = 160e9, 70 * 2**30
NULL_BLOCK = 1
PREFILL_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Size:
    """So many bytes, tokens or blocks."""

    amount: float
    unit: str

    def blocks(self, block_bytes: float, block_tokens: int) -> int:
        """As blocks of that size."""
        return int(self.amount / {"bytes": block_bytes, "tokens": block_tokens, "blocks": 1}[self.unit])


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The host tier: its size (bytes: of the node), policies, the link of each GPU, how KV lies in memory, how it is copied."""

    size: Size
    offload: Any  # a registered offload preset
    eviction: str
    link: catalog.Link
    layout: str
    copy_by: str
    layerwise: bool


@dataclass(frozen=True, slots=True)
class SsdSpec:
    """The SSD of a node."""

    size: Size
    link: catalog.Link
    drives: int
    gds: bool


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The shared pool of the cluster; `high`, `low`: shares of its capacity at which eviction starts and stops."""

    size: Size
    replicas: int
    lease_s: float
    high: float
    low: float


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine: what it runs on, its scheduler's limits (None: vLLM's defaults for the GPU), its tiers, its step time (registered)."""

    deployment: Deployment
    block_tokens: int
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    long_prefill_token_threshold: int
    utilisation: float
    hbm: Size | None  # None: what the weights leave
    host: HostSpec | None
    ssd: SsdSpec | None
    pool: PoolSpec | None
    nic: catalog.Link | None  # of each GPU
    step_time: Any


@dataclass(frozen=True, slots=True)
class Role:
    """What an engine is for. `caches`: it has the tiers below HBM; `prefix_cache`: HBM keeps what requests leave behind."""

    caches: bool = True
    prefix_cache: bool = True


@dataclass(frozen=True, slots=True)
class Built:
    """An engine spec worked out: bytes of a block on one GPU and of all its distinct parts, blocks of each tier, and parts to make engines.

    `host_blocks` count in each engine, `ssd_blocks` in each node, `pool_blocks` in the cluster.
    """

    spec: EngineSpec
    max_num_seqs: int
    max_num_batched_tokens: int
    block_bytes: float
    distinct_bytes: float
    hbm_blocks: int
    host_blocks: int
    ssd_blocks: int
    pool_blocks: int
    memory: str
    step_time: StepTime
    prefills: dict[tuple[int, int], float] = field(default_factory=dict, compare=False)  # what `prefill_s` has worked out so far

    def scale(self, workload: Workload) -> float:
        """Engine blocks to a cache unit of the workload."""
        return workload.block_tokens / self.spec.block_tokens

    def commons(self, workload: Workload, nodes: int) -> Commons:
        """What all engines share."""
        scale, ids, spec = self.scale(workload), workload.unique_ids, self.spec
        ssds, pool = [], None
        if spec.ssd is not None:
            for _ in range(nodes):
                ways = _ways(spec.ssd.link, 1, *(self.distinct_bytes * scale / (spec.ssd.drives * rate) for rate in _rates(spec.ssd.link)))
                ssds.append(SharedStore(ids, int(self.ssd_blocks / scale), ways=ways))
        if spec.pool is not None:
            p = spec.pool
            blocks = int(self.pool_blocks / scale)
            pool = SharedStore(ids, blocks, high=p.high, low=p.low, lease_s=p.lease_s, copies=p.replicas)
        nics = make_ways(nodes) if spec.nic is None else _ways(spec.nic, nodes, *self._seconds(spec.nic, scale, "auto"))
        return Commons(ids, nics, ssds, pool)

    def maker(self, workload: Workload, commons: Commons, roles: list[Role], *, logged: bool, traced: bool) -> Callable[[int], VllmEngine]:
        """Makes engine number w: rank w % dp of node w // dp, in the role of its node."""
        dp, sharing = self.spec.deployment.dp, dict[int, Any]()

        def make(worker: int) -> VllmEngine:
            node = worker // dp
            return self._engine(workload, commons, roles[node], node, self._memory_mates(worker, sharing), logged=logged, traced=traced)

        return make

    def groups(self, workers: int) -> NDArray[np.int64]:
        """[workers, 2] From which to before which engine they step together: the ranks of a node that share the experts of a mixture."""
        d = self.spec.deployment
        size = d.dp if d.model.architecture.is_moe else 1
        first = np.arange(workers) // size * size
        return np.stack([first, first + size], axis=1)

    def prefill_s(self, new: int, cached: int) -> float:
        """Seconds a prompt of `new` tokens behind `cached` ones takes an engine that does nothing else (to PREFILL_TOKENS tokens)."""
        asked = -(-new // PREFILL_TOKENS) * PREFILL_TOKENS, cached // PREFILL_TOKENS * PREFILL_TOKENS
        if asked not in self.prefills:
            seconds, total = 0.0, sum(asked)
            for at in range(asked[1], total, self.max_num_batched_tokens):
                seconds += self.step_time.step([(at, min(self.max_num_batched_tokens, total - at), total, total)])
            self.prefills[asked] = seconds
        return self.prefills[asked]

    def _engine(
        self, workload: Workload, commons: Commons, role: Role, node: int, mates: tuple[Any, int], *, logged: bool, traced: bool
    ) -> VllmEngine:
        scale, host = self.scale(workload), self.spec.host
        ff = self.spec.deployment.model.architecture.feed_forward
        return VllmEngine(
            EngineConfig(
                block_tokens=workload.block_tokens,
                hbm_blocks=int(self.hbm_blocks / scale) + NULL_BLOCK,
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                long_prefill_token_threshold=self.spec.long_prefill_token_threshold,
                prefix_cache=role.prefix_cache,
                layerwise=ff.dense_layers + ff.moe_layers if host is not None and host.layerwise else 0,
                node=node,
                logged=logged,
                traced=traced,
            ),
            Chains(workload.run_offset, workload.run_start, workload.run_length, workload.unique_ids),
            self.step_time,
            self._connector(scale, commons, role, node, mates),
            ids=workload.unique_ids,
            longest_chain=int(workload.chain_blocks.max(initial=0)),
            commons=commons,
        )

    def _connector(self, scale: float, commons: Commons, role: Role, node: int, mates: tuple[Any, int]) -> Connector:
        """The same kind for every role, as all engines run in one kernel; in a role without caches its tiers have no size."""
        spec, below = self.spec, None
        if spec.ssd is not None or spec.pool is not None:
            ssd = commons.ssds[node] if role.caches and commons.ssds else None
            below = BelowTier(ssd, commons.pool if role.caches else None, node, gds=spec.ssd is not None and spec.ssd.gds)
        host = spec.host
        if host is None or self.host_blocks == 0:
            # A host tier of no size, rather than none: kernels that are compiled once serve runs with DRAM and without.
            return DirectConnector(below) if below is not None else SimpleConnector(HostTier(SimpleConnector.null_blocks), lazy=False)
        down, up = self._seconds(host.link, scale, host.copy_by)
        tier = HostTier(
            (int(self.host_blocks / scale) if role.caches else 0) + host.offload.null_blocks,
            host.eviction,
            host.link.latency,
            down,
            up,
            self._pieces_by(host.link, host.copy_by).duplex,
            below=below,
        )
        if host.link.shared is not None:
            # What the GPUs of one engine and their like ask of the memory behind their links, over what it gives.
            asked = min(spec.deployment.tp, host.link.shared_by) * self.block_bytes * scale / host.link.shared
            tier = replace(tier, sharing=mates[0], member=mates[1], per_shared=(asked / down, asked / up))
        connector: Connector = host.offload.connector(tier)
        return connector

    def _memory_mates(self, worker: int, known: dict[int, Any]) -> tuple[Any, int]:
        """(until when each engine that shares the host memory of `worker` moves, its own place among them)."""
        host, d = self.spec.host, self.spec.deployment
        mates = max((host.link.shared_by if host is not None else 1) // d.tp, 1)
        rank, node = worker % d.dp, worker // d.dp
        first = node * d.dp + rank // mates * mates
        if first not in known:
            known[first] = np.zeros((mates if mates > 1 else 0, 2))
        return known[first], rank % mates

    def _pieces_by(self, link: catalog.Link, copy_by: str) -> Copying:
        """The way in which blocks are copied to the GPU."""
        return copied_by(link, self._pieces, up=True, path=copy_by)

    @property
    def _pieces(self) -> Fragments:
        d, layout = self.spec.deployment, self.spec.host.layout if self.spec.host is not None else "cross-layer"
        return fragments(d.model.architecture, layout, self.spec.block_tokens, d.kv_dtype, d.tp)

    def _seconds(self, link: catalog.Link, scale: float, copy_by: str) -> tuple[float, float]:
        """Seconds a cache unit takes on the links of an engine's GPUs side by side, down and up."""
        down, up = (scale * seconds_per_block(link, self._pieces, up=up, path=copy_by) for up in (False, True))
        return down, up


def _rates(link: catalog.Link) -> tuple[float, float]:
    return link.down, link.up


def _ways(link: catalog.Link, pairs: int, down_s: float, up_s: float) -> Ways:
    return make_ways(pairs, link.latency, down_s, up_s, link.duplex)


def block_bytes(d: Deployment, block_tokens: int) -> tuple[float, float]:
    """Bytes of a block of KV: on one rank, and of all that differ between the ranks of an engine (latents are the same on all of them)."""
    rank = d.model.architecture.kv_bytes_per_token(d.kv_dtype, d.tp) * block_tokens
    return rank, rank * (1 if d.model.architecture.replicated else d.tp)


def work_out(spec: EngineSpec) -> Built:
    """Capacities and times of `spec`. Raises `KvsimError` where the model doesn't fit the GPUs."""
    d = spec.deployment
    seqs, batched = vllm_limits(d.hardware)
    seqs, batched = spec.max_num_seqs or seqs, spec.max_num_batched_tokens or batched
    rank_bytes, distinct = block_bytes(d, spec.block_tokens)
    if spec.hbm is None:
        budget = hbm_budget(
            d.model,
            d.hardware,
            tp=d.tp,
            dp=d.dp,
            ep=d.ep,
            weight_dtype=d.weight_dtype,
            kv_dtype=d.kv_dtype,
            utilisation=spec.utilisation,
            max_num_seqs=seqs,
            max_num_batched_tokens=batched,
        )
        hbm_blocks, memory = int(budget.pool / rank_bytes), budget.describe()
    else:
        hbm_blocks, memory = spec.hbm.blocks(rank_bytes, spec.block_tokens), "given"
    if hbm_blocks < 1:
        raise ScenarioError("cluster.tiers.hbm.capacity: holds not even one block")
    host_blocks = 0
    if spec.host is not None:
        # Bytes are the node's: each rank keeps its own copy of what it holds, unless the connector keeps one for ranks that hold the same.
        copies = 1 if d.model.architecture.replicated and getattr(spec.host.offload, "one_copy", False) else d.tp
        each = replace(spec.host.size, amount=spec.host.size.amount / d.dp) if spec.host.size.unit == "bytes" else spec.host.size
        host_blocks = each.blocks(rank_bytes * copies, spec.block_tokens)
    ssd_blocks, pool_blocks = (
        0 if tier is None else tier.size.blocks(distinct * copies, spec.block_tokens)
        for tier, copies in ((spec.ssd, 1), (spec.pool, spec.pool.replicas if spec.pool else 1))
    )
    step_time = spec.step_time.build(d)
    return Built(spec, seqs, batched, rank_bytes, distinct, hbm_blocks, host_blocks, ssd_blocks, pool_blocks, memory, step_time)


def vllm_limits(hardware: catalog.Hardware) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) that vLLM's API server takes by itself on a GPU (vLLM 0.33.0, `engine/arg_utils.py`)."""
    if hardware.hbm >= LARGE_BYTES:
        return 1024, 16384
    if hardware.hbm >= MIDDLE_BYTES and not hardware.name.startswith("a100"):
        return 1024, 8192
    return 256, 2048


def deployment(model: Any, hardware: Any, *, tp: int, dp: int, ep: int, weight_dtype: str, kv_dtype: str) -> Deployment:
    """What an engine runs on; `auto` types are the model's own for weights, and bf16 for KV."""
    found = catalog.model(model)
    return Deployment(
        found,
        catalog.hardware(hardware),
        tp,
        ep,
        found.weights if weight_dtype == "auto" else weight_dtype,
        "bf16" if kv_dtype == "auto" else kv_dtype,
        dp,
    )
