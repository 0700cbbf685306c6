"""Clients, one kind a file: who sends requests, and when.

A client lives in simpy's time. It sends through a `Server` at the present time and is told of every end at the time it happened; it says
when the measured window opens and when the run is over. It never sees the cluster, and the cluster never asks what comes next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Turn:
    """A request as a client sends it.

    `number` is its own in the run; `row` its row in the workload; `instance` numbers the replays of sessions (a session replayed twice is
    two), `lane` who sends. Every block id of its chain is shifted by `id_offset`. It asks for `output` tokens. `at_s` is when it is due, to
    the last bit (an end + a delay): the environment's time, a sum of waits, may differ from it by rounding.
    """

    number: int
    row: int
    instance: int
    lane: int
    id_offset: int
    output: int
    at_s: float


class Server(Protocol):
    """Where requests are served."""

    def send(self, turn: Turn) -> None:
        """`turn` arrives now. Its end is told by `Client.ended`, at the time it ends; never from within this call."""

    def open_window(self) -> None:
        """The measured window opens now; called once at most (never: it opens at time 0)."""

    def stop(self) -> None:
        """The run ends now; what is in flight stays unfinished."""


class Client(Protocol):
    """Who sends. Made with the simpy environment and the server."""

    def start(self) -> None:
        """Set everything going; called once, at time 0, before the environment runs."""

    def ended(self, number: int, at_s: float) -> None:
        """Turn `number` had its last token, or was refused, now (`at_s`)."""

    @property
    def sessions_ended(self) -> int:
        """Session instances whose last request ended: the progress of a run without a time limit."""
