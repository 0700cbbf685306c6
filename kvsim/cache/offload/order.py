"""The order of requests that vLLM keeps in a set of ids, and so goes through in the order of a hash.

Which request of a step comes first when several end, or several loads arrive, is left to the hash seed in the engine: runs of it differ.
Here `order_seed` 0 takes them in the order of the batch, any other seed in the order of a hash of their numbers.
"""

from __future__ import annotations

from kvsim.jit import kernel


@kernel
def hashed(number, seed):  # type: ignore[no-untyped-def]
    """A 32-bit hash of a request's number."""
    x = ((number + 1) * (2 * seed + 1) * 0x9E3779B1) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x85EBCA6B) & 0xFFFFFFFF
    return x ^ (x >> 13)


@kernel
def scatter(e, rows, count):  # type: ignore[no-untyped-def]
    """Put the first `count` of `rows` into the order that the seed gives them."""
    seed = e.config[0].order_seed
    if seed == 0:
        return
    for i in range(1, count):
        row = rows[i]
        j = i
        while j > 0 and hashed(e.requests[rows[j - 1]].tag, seed) > hashed(e.requests[row].tag, seed):
            rows[j] = rows[j - 1]
            j -= 1
        rows[j] = row
