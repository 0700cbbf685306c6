"""Growing plain arrays and arrays of records."""

from __future__ import annotations

from typing import Any

import numpy as np


def grown(array: Any, size: int, fill: int = 0) -> Any:
    """A copy of 1-D `array` (records stay records) with `size` entries, the new ones holding `fill`."""
    out = np.full(size, fill, array.dtype) if array.dtype.names is None else np.zeros(size, array.dtype).view(np.recarray)
    out[: array.size] = array
    return out
