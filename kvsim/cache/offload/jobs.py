"""Hooks that connectors with transfer jobs share."""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel
from kvsim.transfer.channel import next_done


@kernel
def open_work(e, h):  # type: ignore[no-untyped-def]
    """See `none.open_work`: some job holds a slot."""
    return e.transfers.meta[0] < e.transfers.jobs.shape[0]


@kernel
def next_completion(e, h):  # type: ignore[no-untyped-def]
    """See `none.next_completion`."""
    slot = next_done(e.transfers)
    return e.transfers.jobs[slot].done if slot >= 0 else np.inf
