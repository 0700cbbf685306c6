"""Nothing below the host tier: what the native connector asks of the tiers beneath (see `tiering.py` for those that exist)."""

from __future__ import annotations

from kvsim.jit import kernel

NOT_BELOW, LIFT, DIRECT = range(3)


@kernel
def where(e, h, key):  # type: ignore[no-untyped-def]
    """Whether `key`, absent from the host, can be had from below: NOT_BELOW; LIFT, through the host; DIRECT, straight into HBM."""
    return NOT_BELOW


@kernel
def lift(e, h, r, lo, hi):  # type: ignore[no-untyped-def]
    """Bring up what the host misses of blocks lo..hi of r's chain; up to where they are in the host or on their way there."""
    return hi


@kernel
def fetch(e, h, r, lo, hi):  # type: ignore[no-untyped-def]
    """Load those of blocks lo..hi of r's chain that the host misses straight into HBM; how many they are."""
    return 0


@kernel
def came_from(e, h, r, lo, hi):  # type: ignore[no-untyped-def]
    """(SSD, pool): blocks among lo..hi of r's chain that this request had brought up."""
    return 0, 0


@kernel
def cascade(e, h, slot):  # type: ignore[no-untyped-def]
    """The store job `slot` has ended: hand on what it stored."""


@kernel
def begin(e, h):  # type: ignore[no-untyped-def]
    """The step starts: submit what was planned."""


@kernel
def complete(e, h, slot):  # type: ignore[no-untyped-def]
    """The job `slot` of a tier below has ended."""
