"""A tier addressed by key, with transfers in flight: who holds a key, and what a request did to it.

`ref` of a key: ABSENT, WRITING (being stored, not yet readable), 0 idle, n > 0 read by n loads. Lookups answer Miss, Pending or Hit.
"""

from __future__ import annotations

import numpy as np

ABSENT, WRITING = -2, -1
KEY = np.dtype([("ref", "<i4"), ("stamp", "<i4"), ("loading", "<i4"), ("offers", "<i4")], align=True)
# What a request did with a block of its chain: met it, stored it, found it stored, was counted as missing it, brought it
# up from below, loaded it from there straight into HBM.
MET_HERE, INSERTED_HERE, REUSED_HERE, MISSED_HERE, FROM_SSD, FROM_POOL, STRAIGHT = 1, 2, 4, 8, 16, 32, 64
# What became of a key so far in an engine: met in a prompt or output, cached in HBM at some time, stored below HBM at some time.
MET, CACHED, STORED = 1, 2, 4
