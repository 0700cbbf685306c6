"""Session hash: a session stays on one worker, whatever the load."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.router import ROUTER, Arrival, Router, Setting, Workers
from kvsim.router.ring import Ring


class SessionHashRouter(Router):
    """The first worker on the ring that is up."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    def choose(self, arrival: Arrival, workers: Workers) -> int:
        """See `Router`."""
        return next(worker for worker in self._ring.walk(arrival.session) if workers.alive[worker])


@ROUTER.register("session-hash", source="vllm-router 0.1.14, consistent_hash on X-Session-ID; sglang-router 0.3.2, consistent_hashing")
@dataclass(frozen=True, slots=True)
class SessionHash:
    """Consistent hashing of the session's name: all its requests on one worker, no balancing.

    `virtual_nodes`: points of a worker on the ring; the more, the more even the shares.
    """

    virtual_nodes: int = 160

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise ValueError(f"virtual_nodes must be at least 1, not {self.virtual_nodes}")

    def build(self, setting: Setting) -> Router:
        """The router of one run."""
        return SessionHashRouter(Ring(setting.workers, self.virtual_nodes))
