"""Eviction policies of the host tier against twins written with Python's own containers, driven by the same requests."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.cache.eviction import EVICTION
from kvsim.cache.tier import ABSENT, INSERTED_HERE, KEY, MET_HERE, REUSED_HERE
from kvsim.jit import bundle

KEYS, REQUESTS, CHAIN, CAPACITY = 12, 4, 6, 5
REQUEST = np.dtype([("offset", "<i8"), ("tokens", "<i8")])
META = np.dtype([("capacity", "<i8")])


class E(NamedTuple):
    requests: Any
    ids: Any
    config: Any


class H(NamedTuple):
    keys: Any
    rows: Any
    flags: Any
    meta: Any
    scratch: Any
    policy: Any


class TwinLru:
    """Ranks in a dict; the victim is the idle key of lowest (rank, -position)."""

    def __init__(self) -> None:
        self.rank: dict[int, tuple[int, int]] = {}
        self.request: dict[int, int] = {}
        self.clock = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def mine(self, r: int, k: int) -> tuple[int, int]:
        if r not in self.request:
            self.request[r] = self.tick()
        return self.request[r], -(k + 1)

    def access(self, r: int, k: int, key: int) -> None:
        rank = self.mine(r, k)
        if key in self.rank:
            self.rank[key] = max(self.rank[key], rank)

    def missed(self, key: int) -> None: ...

    def insert(self, r: int, k: int, key: int) -> None:
        self.rank[key] = self.mine(r, k)

    def victims(self, n: int, idle: set[int], spared: set[int]) -> list[int] | None:
        able = sorted((k for k in self.rank if k in idle - spared), key=lambda k: self.rank[k])
        if len(able) < n:
            return None
        for key in able[:n]:
            del self.rank[key]
        return able[:n]

    def finished(self, met: list[tuple[int, bool, bool]]) -> None:
        for key, _, _ in reversed(met):
            if key in self.rank:
                self.rank[key] = (self.tick(), 0)


class TwinArc:
    """The four lists as ordered dicts."""

    def __init__(self) -> None:
        self.t1, self.t2, self.b1, self.b2 = (OrderedDict[int, None]() for _ in range(4))
        self.target = 0.0

    def access(self, r: int, k: int, key: int) -> None: ...

    def missed(self, key: int) -> None:
        if key in self.b1:
            self.target = min(self.target + max(1, len(self.b2) / len(self.b1)), CAPACITY)
            self.b1.move_to_end(key)
        elif key in self.b2:
            self.target = max(self.target - max(1, len(self.b1) / len(self.b2)), 0)
            self.b2.move_to_end(key)

    def insert(self, r: int, k: int, key: int) -> None:
        self.b1.pop(key, None)
        self.b2.pop(key, None)
        self.t1[key] = None

    def victims(self, n: int, idle: set[int], spared: set[int]) -> list[int] | None:
        able = idle - spared
        one, two = [k for k in self.t1 if k in able], [k for k in self.t2 if k in able]
        size, out = len(self.t1), []
        for _ in range(n):
            source = one if (size >= int(self.target) and one) or not two else two
            if not source:
                return None
            size -= source is one
            out.append(source.pop(0))
        for key in out:
            ghost = self.b1 if key in self.t1 else self.b2
            self.t1.pop(key, None)
            self.t2.pop(key, None)
            ghost[key] = None
        for ghost in (self.b1, self.b2):
            while len(ghost) > CAPACITY:
                ghost.popitem(last=False)
        return out

    def finished(self, met: list[tuple[int, bool, bool]]) -> None:
        for key, inserted, reused in reversed(met):
            if reused and (key in self.t1 or key in self.t2):
                self.t1.pop(key, None)
                self.t2.pop(key, None)
                self.t2[key] = None
            elif inserted:
                for queue in (self.t1, self.t2):
                    if key in queue:
                        queue.move_to_end(key)


TWINS = {"lru": TwinLru, "arc": TwinArc}


def test_every_policy_has_a_twin() -> None:
    assert set(EVICTION) == set(TWINS)


@pytest.mark.parametrize("name", sorted(TWINS))
@given(data=st.data())
def test_policy_follows_its_twin(name: str, data: st.DataObject) -> None:
    """Requests over prefix-sharing chains meet, store, end and pin blocks in any order; both must evict the same keys."""
    chains = np.array([[0, 1, 2, 3, 4, 5], [0, 1, 2, 6, 7, 8], [0, 1, 9, 10, 11, 3], [6, 7, 8, 9, 10, 11]], np.int32)
    policy, twin = EVICTION[name](), TWINS[name]()
    requests = np.zeros(REQUESTS, REQUEST).view(np.recarray)
    requests.offset, requests.tokens = np.arange(REQUESTS) * CHAIN, CHAIN
    config = np.ones(1, np.dtype([("block_tokens", "<i8")])).view(np.recarray)
    meta = np.full(1, CAPACITY, META).view(np.recarray)
    keys = np.zeros(KEYS, KEY).view(np.recarray)
    keys.ref = ABSENT
    flags = np.zeros(REQUESTS * CHAIN, np.uint8)
    rows = np.zeros(REQUESTS, np.dtype([("rank", "<i8")])).view(np.recarray)
    host = H(keys, rows, flags, meta, np.zeros(CAPACITY + 1, np.int32), policy.make_state(CAPACITY, KEYS))
    e, h = bundle(E(requests, chains.reshape(-1), config)), bundle(host)
    part = policy.parts
    resident: set[int] = set()
    live = list(range(REQUESTS))
    for stamp in range(1, data.draw(st.integers(1, 25)) + 1):
        if not live:
            break
        r = data.draw(st.sampled_from(live), label="request")
        action = data.draw(st.sampled_from(["offer", "offer", "pin", "unpin", "end"]))
        if action == "offer":
            lo = data.draw(st.integers(0, CHAIN - 1))
            hi = data.draw(st.integers(lo + 1, CHAIN))
            offered = [int(chains[r, k]) for k in range(lo, hi)]
            wanted = [k for k in range(lo, hi) if int(chains[r, k]) not in resident]
            keys.stamp[offered] = stamp
            for k in reversed(wanted):
                part["evict_missed"](e, h, int(chains[r, k]))
                twin.missed(int(chains[r, k]))
            for k in range(lo, hi):
                at = r * CHAIN + k
                if not flags[at] & MET_HERE:
                    flags[at] |= MET_HERE
                    part["evict_access"](e, h, r, k)
                    twin.access(r, k, int(chains[r, k]))
                if int(chains[r, k]) in resident and not flags[at] & INSERTED_HERE:
                    flags[at] |= REUSED_HERE
            short = len(wanted) - (CAPACITY - len(resident))
            if short > 0:
                idle = {k for k in resident if keys.ref[k] == 0}
                before = keys.ref.copy()
                gone = twin.victims(short, idle, set(offered))
                assert part["evict_victims"](e, h, short, stamp) == (gone is not None)
                if gone is None:
                    assert (keys.ref == before).all()
                    continue
                assert {k for k in idle if keys.ref[k] == ABSENT} == set(gone)
                resident -= set(gone)
            for k in wanted:
                part["evict_insert"](e, h, r, k)
                twin.insert(r, k, int(chains[r, k]))
                flags[r * CHAIN + k] |= INSERTED_HERE
                keys.ref[chains[r, k]] = 0
                part["evict_idle"](e, h, int(chains[r, k]))
                resident.add(int(chains[r, k]))
        elif action == "pin" and (idle_now := sorted(k for k in resident if keys.ref[k] == 0)):
            keys.ref[data.draw(st.sampled_from(idle_now))] = 1
        elif action == "unpin" and (pinned := sorted(k for k in resident if keys.ref[k] == 1)):
            key = data.draw(st.sampled_from(pinned))
            keys.ref[key] = 0
            part["evict_idle"](e, h, key)
        elif action == "end":
            live.remove(r)
            part["evict_finished"](e, h, r)
            met = [(int(chains[r, k]), int(flags[r * CHAIN + k])) for k in range(CHAIN)]
            twin.finished([(key, bool(f & INSERTED_HERE), bool(f & REUSED_HERE)) for key, f in met if f & MET_HERE])
        assert {k for k in range(KEYS) if keys.ref[k] != ABSENT} == resident
    assert len(resident) <= CAPACITY
