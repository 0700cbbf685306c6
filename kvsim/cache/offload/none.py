"""No tier below HBM."""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel


@kernel
def joined(e, h, r):  # type: ignore[no-untyped-def]
    """Request `r` arrived; its row and arena segment may have had another owner."""


@kernel
def match(e, h, r, hits):  # type: ignore[no-untyped-def]
    """Tokens to load beyond `hits` local blocks; -1: ask again in the next pass."""
    return 0


@kernel
def allocated(e, h, r, hits, tokens, first):  # type: ignore[no-untyped-def]
    """Request `r` got its blocks; `tokens` of them are to be loaded behind `hits` local blocks. `first`: it counts as its hit."""


@kernel
def plan(e, h):  # type: ignore[no-untyped-def]
    """The pass is over: decide what to store."""


@kernel
def begin(e, h):  # type: ignore[no-untyped-def]
    """The step starts: submit transfers; a flush moves the clock."""


@kernel
def end(e, h):  # type: ignore[no-untyped-def]
    """The step is over, its time has passed."""


@kernel
def ended(e, h, r):  # type: ignore[no-untyped-def]
    """Request `r` ended; its blocks are freed after this. True: its arena segment is needed no more."""
    return True


@kernel
def complete(e, h):  # type: ignore[no-untyped-def]
    """Take in the transfers that are done by now."""


@kernel
def open_work(e, h):  # type: ignore[no-untyped-def]
    """Whether transfers are under way or about to start."""
    return False


@kernel
def next_completion(e, h):  # type: ignore[no-untyped-def]
    """When the next transfer ends, infinity if none is submitted."""
    return np.inf


@kernel
def room(e, h):  # type: ignore[no-untyped-def]
    """Whether the connector's arrays hold whatever one more pass can add."""
    return True


@kernel
def log_room(e, h):  # type: ignore[no-untyped-def]
    """Whether the tier's log of keys that come and go holds one more pass."""
    return True
