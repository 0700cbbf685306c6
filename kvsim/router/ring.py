"""A consistent-hash ring: a worker owns many points, a session goes to the owner of the first point clockwise from its own.

Sessions of a worker that is gone go to the owners of the points behind its points, and come back with it; no other session moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np


def place(text: str) -> int:
    """Where `text` falls on the ring: 64 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Ring:
    """The points of `workers` workers, `virtual_nodes` each."""

    def __init__(self, workers: int, virtual_nodes: int) -> None:
        points = np.array([place(f"{worker}/{node}") for worker in range(workers) for node in range(virtual_nodes)], np.uint64)
        order = np.argsort(points, kind="stable")
        self._points = points[order]
        self._owners: list[int] = (order // virtual_nodes).tolist()
        self._workers = workers

    def walk(self, session: str) -> Iterator[int]:
        """All workers, each once, in the order in which they are met clockwise from where `session` falls."""
        at = int(np.searchsorted(self._points, np.uint64(place(session))))
        met: set[int] = set()
        for i in range(at, at + len(self._owners)):
            worker = self._owners[i % len(self._owners)]
            if worker not in met:
                met.add(worker)
                yield worker
                if len(met) == self._workers:
                    return
