"""The linear model, by hand and to the last bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.step_time import STEP_TIME
from kvsim.engine.step_time.linear import Linear

seconds = st.floats(0, 1)
requests = st.tuples(st.integers(0, 5000), st.integers(1, 2000), st.integers(1, 5000), st.integers(1, 9000))


def test_by_hand() -> None:
    """Two decodes of 101 and 51 tokens and a chunk of 7: 1 + 7 x 0.5 + 2 x 0.25 + 152 x 0.125."""
    linear = STEP_TIME["linear"](1.0, 0.5, 0.25, 0.125).build()
    assert linear.step([(100, 1, 90, 101), (50, 1, 50, 51), (3, 7, 20, 20)]) == 1 + 7 * 0.5 + 2 * 0.25 + 152 * 0.125
    assert linear.step([]) == 1.0


def test_the_last_token_of_a_prompt_is_prefill() -> None:
    linear = Linear(1.0, 0.5, 0.25, 0.125).build()
    assert linear.step([(19, 1, 20, 20)]) == 1 + 0.5
    assert linear.step([(20, 1, 20, 21)]) == 1 + 0.25 + 21 * 0.125
    assert linear.step([(25, 2, 20, 27)]) == 1 + 2 * 0.5


@given(seconds, seconds, seconds, seconds, st.lists(requests, max_size=20))
def test_sums_from_left_to_right(
    base: float, prefill: float, decode: float, context: float, batch: list[tuple[int, int, int, int]]
) -> None:
    p = d = c = 0.0
    for computed, new, prompt, total in batch:
        if computed >= prompt and new == 1:
            d, c = d + 1, c + total
        else:
            p += new
    built = Linear(base, prefill, decode, context).build()
    assert built.step(batch) == base + prefill * p + decode * d + context * c
    assert built.accumulators == 3
    assert built.params.dtype == np.float64
