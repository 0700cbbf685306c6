"""Small clusters in plain values: workloads of a few sessions, a client that replays them, tiers of a few blocks, and the laws of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from kvsim.cache.offload import OFFLOAD, BelowTier, Connector, HostTier
from kvsim.cache.offload.direct import DirectConnector
from kvsim.cache.offload.native import NativeConnector
from kvsim.cache.offload.simple import SimpleConnector
from kvsim.cache.store import SharedStore
from kvsim.cluster import Cluster, Plan
from kvsim.cluster.faults import Fault
from kvsim.engine.step_time.linear import Linear
from kvsim.engine.vllm import Chains, Commons, EngineConfig, VllmEngine
from kvsim.metrics.recorder import HITS, Recorder
from kvsim.rng import stream
from kvsim.router import ROUTER, Router, Setting
from kvsim.transfer.channel import make_ways
from kvsim.workload.builder import Builder
from kvsim.workload.clients import Server, Turn
from kvsim.workload.source import Place
from kvsim.workload.workload import Workload

BLOCK = 16
Session = Sequence[tuple[float, int, int]]  # turns: delay, prompt, output


def workload_of(sessions: Sequence[Session], shared: int = 0) -> Workload:
    """Sessions whose turns each re-send what they can of the last; `shared` leading blocks are the same for all."""
    builder, fresh = Builder("small", "native", BLOCK, "global", listed_outputs=True), shared
    for s, turns in enumerate(sessions):
        root, chain = builder.session(f"s{s}"), list(range(shared))
        for t, (delay, prompt, output) in enumerate(turns):
            blocks = (prompt + output) // BLOCK
            chain += range(fresh, fresh + max(blocks - len(chain), 0))
            fresh = max([fresh, *(block + 1 for block in chain)])
            listed = builder.blocks(json.dumps(chain[:blocks]).encode(), Place("small", s), "ids")
            arrival, after = (delay, math.nan) if t == 0 else (math.nan, delay)
            place = Place("small", s)
            builder.request(root, t, place, input_tokens=prompt, output_tokens=output, listed=listed, arrival=arrival, delay_s=after)
    return builder.finish()


def growing(raw: Sequence[Session]) -> list[Session]:
    """Turns that re-send the ones before: prompts add up."""
    out: list[Session] = []
    for turns in raw:
        said, made = 0, []
        for delay, more, answer in turns:
            made.append((delay, said + more, answer))
            said += more + answer
        out.append(made)
    return out


@dataclass(slots=True)
class Replay:
    """A client: every session begins at its time, a turn comes its delay after the end of the one before. Looks at the cluster at times."""

    env: simpy.Environment
    workload: Workload
    server: Server
    until_s: float | None = None
    looks: Sequence[tuple[float, Callable[[Any], None]]] = ()
    sessions_ended: int = 0

    def start(self) -> None:
        """Set the clocks."""
        w = self.workload
        for row in np.flatnonzero(w.turn == 0).tolist():
            self.env.process(self._send(row, float(w.arrival_s[row])))
        for at_s, look in self.looks:
            self.env.process(self._look(at_s, look))
        if self.until_s is not None:
            self.env.process(self._look(self.until_s, lambda server: server.stop()))

    def ended(self, number: int, at_s: float) -> None:
        """The next turn is due."""
        assert self.env.now == at_s or abs(self.env.now - at_s) < 1e-9 * at_s
        w = self.workload
        if number + 1 < w.requests and w.stream[number + 1] == w.stream[number]:
            self.env.process(self._send(number + 1, at_s + float(w.delay_s[number + 1])))
            return
        self.sessions_ended += 1
        if self.sessions_ended == w.sessions and self.until_s is None:
            self.server.stop()

    def _send(self, row: int, at_s: float) -> Generator[simpy.Event, None, None]:
        yield self.env.timeout(max(at_s - self.env.now, 0.0))
        session = int(self.workload.session[row])
        self.server.send(Turn(row, row, session, session, 0, int(self.workload.output_tokens[row]), at_s))

    def _look(self, at_s: float, look: Callable[[Any], None]) -> Generator[simpy.Event, None, None]:
        yield self.env.timeout(at_s)
        look(self.server)


@dataclass(frozen=True, slots=True)
class Tiers:
    """Which tiers there are below HBM; `host`: an offload policy."""

    host: str | None = None
    eviction: str = "lru"
    ssd: bool = False
    gds: bool = False
    pool: bool = False


TIERS = {
    "none": Tiers(),
    "native-lru": Tiers("vllm-native"),
    "native-arc": Tiers("vllm-native", "arc"),
    "simple-eager": Tiers("vllm-simple-eager"),
    "simple-lazy": Tiers("vllm-simple-lazy"),
    "native+ssd": Tiers("vllm-native", ssd=True),
    "native+gds": Tiers("vllm-native", ssd=True, gds=True),
    "native+pool": Tiers("vllm-native", pool=True),
    "native+ssd+pool": Tiers("vllm-native", ssd=True, pool=True),
    "pool": Tiers(pool=True),
    "gds": Tiers(ssd=True, gds=True),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a small cluster is made of. Blocks: `hbm` and `host` of each engine, `ssd` of a node, `pool` of the cluster. Times in seconds.

    `split` = nodes that prefill, the others decode. `step`: the coefficients of the linear step time. `*_s`: (down, up) a block.
    """

    tiers: Tiers = Tiers()
    nodes: int = 1
    dp: int = 1
    lockstep: bool = False
    split: int | None = None
    decode_prefix_cache: bool = False
    router: str = "round-robin"
    second: str = "round-robin"
    parameters: dict[str, Any] = field(default_factory=dict)
    hbm: int = 60
    decode_hbm: int | None = None
    host: int = 40
    ssd: int = 60
    pool: int = 80
    high: float = 1.0
    low: float = 1.0
    lease_s: float = 0.0
    replicas: int = 1
    layers: int = 0
    max_seqs: int = 8
    max_batched: int = 256
    step: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    latency_s: float = 0.0
    host_s: tuple[float, float] = (0.01, 0.01)
    ssd_s: tuple[float, float] = (0.05, 0.05)
    nic_s: tuple[float, float] = (0.02, 0.02)
    duplex: float = 1.0
    prompt_only: bool = True
    per_shared: tuple[float, float] = (0.0, 0.0)
    faults: tuple[Fault, ...] = ()
    traced: bool = False
    seed: int = 1

    def commons(self, w: Workload) -> Commons:
        """What its engines share."""
        t, ids = self.tiers, w.unique_ids
        ssds = [SharedStore(ids, self.ssd, ways=make_ways(1, self.latency_s, *self.ssd_s)) for _ in range(self.nodes if t.ssd else 0)]
        pool = None
        if t.pool:
            pool = SharedStore(ids, self.pool, high=self.high, low=self.low, lease_s=self.lease_s, copies=self.replicas)
        return Commons(ids, make_ways(self.nodes, self.latency_s, *self.nic_s, self.duplex), ssds, pool)

    def connector(self, commons: Commons, node: int, sharing: NDArray[np.float64] | None = None, member: int = 0) -> Connector:
        """Of an engine of `node`; that of a node which only decodes has tiers of no size."""
        t, caches, below = self.tiers, self.split is None or node < self.split, None
        if t.ssd or t.pool:
            below = BelowTier(commons.ssds[node] if t.ssd and caches else None, commons.pool if caches else None, node, t.gds)
        if t.host is None:
            return DirectConnector(below) if below is not None else SimpleConnector(HostTier(SimpleConnector.null_blocks), lazy=False)
        policy = OFFLOAD[t.host]()
        tier = HostTier(
            (self.host if caches else 0) + policy.null_blocks,
            t.eviction,
            self.latency_s,
            *self.host_s,
            duplex=self.duplex,
            sharing=sharing,
            member=member,
            per_shared=self.per_shared,
            below=below,
        )
        if t.host == "vllm-native":
            return NativeConnector(tier, self.prompt_only, 0)
        connector: Connector = policy.connector(tier)
        return connector

    def maker(self, w: Workload, commons: Commons, *, logged: bool) -> Callable[[int], VllmEngine]:
        """Makes engine number w of the cluster."""
        chains = Chains(w.run_offset, w.run_start, w.run_length, w.unique_ids)
        sharing = [np.zeros((self.dp if self.per_shared[0] else 0, 2)) for _ in range(self.nodes)]

        def make(worker: int) -> VllmEngine:
            node = worker // self.dp
            decodes = self.split is not None and node >= self.split
            return VllmEngine(
                EngineConfig(
                    w.block_tokens,
                    (self.decode_hbm if decodes and self.decode_hbm is not None else self.hbm) + 1,
                    self.max_seqs,
                    self.max_batched,
                    prefix_cache=not decodes or self.decode_prefix_cache,
                    layerwise=self.layers,
                    node=node,
                    logged=logged,
                    traced=self.traced,
                ),
                chains,
                Linear(*self.step).build(),
                self.connector(commons, node, sharing[node], worker % self.dp),
                w.unique_ids,
                int(w.chain_blocks.max(initial=0)),
                commons,
            )

        return make

    def route(self, name: str, role: Any, workers: int, w: Workload, **parameters: Any) -> Router:
        """A router over `workers` engines."""
        per_token, base = self.step[1], self.step[0]
        setting = Setting(
            workers,
            role,
            w.block_tokens,
            self.hbm,
            self.max_batched,
            w.unique_ids,
            stream(self.seed, "router", role),
            lambda new, cached: base + per_token * new,
            self.nic_s[1],
        )
        made: Router = ROUTER[name](**parameters).build(setting)
        return made

    def build(self, w: Workload, until_s: float | None = None, looks: Sequence[tuple[float, Callable[[Any], None]]] = ()) -> Cluster:
        """The cluster and its client, ready to run."""
        workers = self.nodes * self.dp
        prefillers = None if self.split is None else self.split * self.dp
        commons = self.commons(w)
        first = self.route(self.router, "both" if self.split is None else "prefill", prefillers or workers, w, **self.parameters)
        second = None if prefillers is None else self.route(self.second, "decode", workers - prefillers, w)
        at = np.arange(workers)
        lowest, together = (at // self.dp * self.dp, self.dp) if self.lockstep else (at, 1)
        return Cluster(
            Plan(
                engine=self.maker(w, commons, logged=any(r is not None and r.cache is not None for r in (first, second))),
                commons=commons,
                node_of=(at // self.dp).tolist(),
                groups=np.stack([lowest, lowest + together], axis=1),
                prefillers=prefillers,
                router=first,
                second_router=second,
                client=lambda env, server: Replay(env, w, server, until_s, looks),
                faults=self.faults,
                traced=self.traced,
            ),
            w,
        )


Table = dict[str, NDArray[Any]]


def table_of(cluster: Cluster) -> Table:
    """Its requests, after a run; the laws of rows are checked."""
    recorder = Recorder()
    recorder.extend(cluster.columns())
    recorder.check()
    return recorder.table()


def check_all(cluster: Cluster) -> None:
    """Every engine, those that are gone too, every store: their counters recomputed."""
    for engine in (*cluster.engines, *(old for _, old in cluster.retired)):
        engine.check()
    commons = cluster.plan.commons
    for number, ssd in enumerate(commons.ssds):
        ssd.check(f"SSD {number}")
    if commons.pool is not None:
        commons.pool.check("pool")


def run(shape: Shape, w: Workload, until_s: float | None = None) -> tuple[Cluster, Table]:
    """Run and check everything that always holds; the rows come in the order of the workload."""
    times = {t for fault in shape.faults for t in (fault.at_s, fault.until_s) if t is not None}
    cluster = shape.build(w, until_s, [(t + after, check_all) for t in sorted(times) for after in (0.0, 0.001, 0.7)])
    cluster.run()
    check_all(cluster)
    table = table_of(cluster)
    order = np.argsort(table["request"], kind="stable")
    table = {name: column[order] for name, column in table.items()}
    check_laws(cluster, table, w, until_s)
    return cluster, table


def check_laws(cluster: Cluster, t: Table, w: Workload, until_s: float | None) -> None:
    """Each request ended once or is in flight; arrivals are ends + delays to the last bit; no hit of what nobody could have computed."""
    front, rows = cluster.front, t["request"]
    assert len(set(rows.tolist())) == len(rows)
    flying = {request.turn.row for request in front.flying.values()}
    assert not flying & set(rows.tolist())
    assert front.sent == len(rows) + len(flying)
    if until_s is None:
        assert rows.tolist() == list(range(w.requests))
    else:
        # A step that was under way when the run stopped goes to its end.
        assert (t["arrival_s"] <= until_s).all()
    first = w.turn[rows] == 0
    np.testing.assert_array_equal(t["arrival_s"][first], w.arrival_s[rows[first]])
    finish = dict(zip(rows.tolist(), t["finish_s"].tolist(), strict=True))
    for i in np.flatnonzero(~first).tolist():
        row = int(rows[i])
        assert t["arrival_s"][i] == finish[row - 1] + w.delay_s[row]
    served = ~t["rejected"]
    hits = np.sum([t[name] for name in HITS], axis=0)
    assert (hits[served] < t["input_tokens"][served]).all()
    for i in np.flatnonzero(served).tolist():
        earlier = {
            int(key)
            for j in np.flatnonzero((t["arrival_s"] <= t["scheduled_s"][i]) & (rows != rows[i])).tolist()
            for key in w.chain(int(rows[j]))
        } | {int(key) for row in flying for key in w.chain(row)}
        chain = w.chain(int(rows[i])).tolist()
        if int(t["retries"][i]) or int(t["preemptions"][i]):
            earlier |= set(chain)  # its own, from before
        run_ = next((k for k, key in enumerate(chain) if key not in earlier), len(chain))
        assert hits[i] <= run_ * BLOCK, f"request {rows[i]} hits {hits[i]} tokens of {run_ * BLOCK} anybody had"


def same(a: Table, b: Table) -> None:
    """Byte for byte."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), name
