"""Where the tokens of a prompt came from, and why those that could have hit did not. Taken once, at first scheduling.

Law. For every request hbm + host + cold + evicted + elsewhere + pending + partial + not_stored = prompt tokens. The first missing block
ended the hit, so its reason holds for all blocks from there to the theoretical hit (that of the whole cluster):
- elsewhere: no request here ever had this block, one on another node did;
- pending: an earlier request here has this block too, but has not computed it yet;
- not_stored: it left HBM and the host tier never held it; evicted: it left the last tier that held it;
- cold: never met before; partial: tokens that fill no block, and the block recomputed because a prompt never hits in full.
"""

from __future__ import annotations

from kvsim.cache.tier import CACHED, STORED
from kvsim.jit import kernel


@kernel
def attribute(e, r, hbm, total):  # type: ignore[no-untyped-def]
    """Fill the report of request `r` for a hit of `total` tokens, `hbm` of them in HBM."""
    request, size = e.requests[r], e.config[0].block_tokens
    full = request.prompt // size * size
    hit = min(total, request.prompt - 1)
    request.hbm_tokens = hbm
    request.host_tokens = hit - hbm
    met = max(request.theoretical, hit // size * size)
    request.theoretical = met
    reach = max(min(met, (request.prompt - 1) // size * size), hit)
    missed = reach - hit
    request.cold = full - met
    request.partial = request.prompt - request.cold - reach
    request.evicted = 0
    request.elsewhere = 0
    request.pending = 0
    request.not_stored = 0
    if missed > 0:
        flags = e.seen[e.ids[request.offset + hit // size]]
        if hit // size * size >= request.here:
            request.elsewhere = missed
        elif not flags & CACHED:
            request.pending = missed
        elif e.config[0].host and not flags & STORED:
            request.not_stored = missed
        else:
            request.evicted = missed
