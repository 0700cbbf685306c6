"""Kernels that walk chains: a chain is the concatenation of id ranges [start, start + length), its runs."""

from __future__ import annotations

import numpy as np

from kvsim.jit import kernel

OK, WRONG_LENGTH, EMPTY_RUN, UNMERGED_RUN, ID_OUT_OF_RANGE, TWO_PREFIXES = range(6)


@kernel
def append_ids(run_start, run_length, first, used, start, length):  # type: ignore[no-untyped-def]
    """Add the range [start, start + length) to the chain whose runs begin at `first`; returns the runs used."""
    if length <= 0:
        return used
    if used > first and run_start[used - 1] + run_length[used - 1] == start:
        run_length[used - 1] += length
        return used
    run_start[used] = start
    run_length[used] = length
    return used + 1


@kernel
def append_slice(  # type: ignore[no-untyped-def]
    source_start, source_length, run, end, low, high, origin, run_start, run_length, first, used
):
    """Add the ids at positions [low, high) of the chain of runs [run, end), each plus `origin`; returns the runs used."""
    at = 0
    while run < end and at < high:
        a, b = max(low, at), min(high, at + source_length[run])
        used = append_ids(run_start, run_length, first, used, origin + source_start[run] + a - at, b - a)
        at += source_length[run]
        run += 1
    return used


@kernel
def same_prefix(run_start, run_length, a, a_end, b, b_end, blocks):  # type: ignore[no-untyped-def]
    """Whether the chains of runs [a, a_end) and [b, b_end) have the same first `blocks` ids."""
    a_at = b_at = 0
    while blocks > 0:
        if a == a_end or b == b_end or run_start[a] + a_at != run_start[b] + b_at:
            return False
        step = min(min(run_length[a] - a_at, run_length[b] - b_at), blocks)
        blocks -= step
        a_at += step
        b_at += step
        if a_at == run_length[a]:
            a, a_at = a + 1, 0
        if b_at == run_length[b]:
            b, b_at = b + 1, 0
    return True


@kernel
def complete(  # type: ignore[no-untyped-def]
    order, stream, scope_of, listed_offset, listed_start, listed_length, listed, prompt, total, distinct, base,
    run_offset, run_start, run_length,
):  # fmt: skip
    """Write the full chain of every request: the ids listed, then those the next turn shows to be its output, then anonymous ones.

    Row i of the workload is entry order[i] of the `listed_*` arrays; `listed`, `prompt` and `total` [rows] count the ids listed and the
    full blocks of the prompt and of prompt + output. The next turn of the stream re-sends this answer if its prompt begins with this
    one's; only blocks full in both are taken, and a prompt without a full block proves nothing. Scopes follow each other in row order:
    fills `base` [scopes + 1], listed ids of scope s count from base[s], anonymous ones from base[s] + distinct[s]. Returns the runs used.
    """
    used = 0
    scope = -1
    fresh = 0
    rows = order.size
    for row in range(rows):
        if scope_of[row] != scope:
            scope = scope_of[row]
            base[scope] = fresh
            fresh += distinct[scope]
        origin = base[scope]
        begin, end = listed_offset[order[row]], listed_offset[order[row] + 1]
        first = used
        run_offset[row] = used
        for run in range(begin, end):
            used = append_ids(run_start, run_length, first, used, origin + listed_start[run], np.int64(listed_length[run]))
        have = listed[row]
        if 0 < prompt[row] <= have < total[row] and row + 1 < rows and stream[row + 1] == stream[row]:
            then, then_end = listed_offset[order[row + 1]], listed_offset[order[row + 1] + 1]
            until = min(total[row], prompt[row + 1])
            if until > have and same_prefix(listed_start, listed_length, begin, end, then, then_end, have):
                used = append_slice(listed_start, listed_length, then, then_end, have, until, origin, run_start, run_length, first, used)
                have = until
        used = append_ids(run_start, run_length, first, used, fresh, total[row] - have)
        fresh += total[row] - have
    base[base.size - 1] = fresh
    run_offset[rows] = used
    return used


@kernel
def coarsen(run_offset, run_start, run_length, ratio, dense, out_offset, out_start, out_length):  # type: ignore[no-untyped-def]
    """Chains in units of `ratio` blocks: a unit is named by the id of its last block, interned into `dense` [ids, -1 where unseen].

    Called twice: with empty outputs to fill `dense` and count the runs, which is what it returns, then with room to write them.
    """
    used = 0
    count = 0
    write = out_start.size > 0
    for row in range(run_offset.size - 1):
        out_offset[row] = used
        expected = -1
        at = 0
        for run in range(run_offset[row], run_offset[row + 1]):
            step = ratio - 1 - at % ratio
            while step < run_length[run]:
                old = run_start[run] + step
                if dense[old] < 0:
                    dense[old] = count
                    count += 1
                if dense[old] == expected:
                    if write:
                        out_length[used - 1] += 1
                else:
                    if write:
                        out_start[used] = dense[old]
                        out_length[used] = 1
                    used += 1
                expected = dense[old] + 1
                step += ratio
            at += run_length[run]
    out_offset[run_offset.size - 1] = used
    return used


@kernel
def infinite_hits(order, run_offset, run_start, run_length, prompt_blocks, tail_id, with_outputs, seen, hits):  # type: ignore[no-untyped-def]
    """Leading prompt blocks (a partial last one included) that earlier requests in `order` held; fills `hits` [rows], `seen` [ids]."""
    for row in order:
        left = prompt_blocks[row]
        hit = 0
        whole = True
        for run in range(run_offset[row], run_offset[row + 1]):
            for block in range(run_start[run], run_start[run] + run_length[run]):
                if left > 0:
                    if whole and seen[block]:
                        hit += 1
                    else:
                        whole = False
                        seen[block] = True
                    left -= 1
                elif with_outputs:
                    seen[block] = True
        if tail_id[row] >= 0:
            if whole and seen[tail_id[row]]:
                hit += 1
            seen[tail_id[row]] = True
        hits[row] = hit


@kernel
def check_chains(run_offset, run_start, run_length, total, low, high, parents):  # type: ignore[no-untyped-def]
    """Recompute what a chain promises from its ids. Returns (problem, row).

    `total` [rows] full blocks of prompt + output; ids of a row lie in [low, high); `parents` [ids] starts as -2 (unseen).
    """
    for row in range(run_offset.size - 1):
        previous = -1
        blocks = 0
        for run in range(run_offset[row], run_offset[row + 1]):
            start, length = int(run_start[run]), int(run_length[run])
            if length <= 0:
                return EMPTY_RUN, row
            if run > run_offset[row] and start == previous + 1:
                return UNMERGED_RUN, row
            if start < low[row] or start + length > high[row]:
                return ID_OUT_OF_RANGE, row
            for block in range(start, start + length):
                if parents[block] == -2:
                    parents[block] = previous
                elif parents[block] != previous:
                    return TWO_PREFIXES, row
                previous = block
            blocks += length
        if blocks != total[row]:
            return WRONG_LENGTH, row
    return OK, -1
