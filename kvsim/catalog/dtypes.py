"""Bytes of a number in the formats that weights and KV caches are kept in, block scales included."""

from __future__ import annotations

from kvsim.errors import CatalogError, did_you_mean

# nvfp4: one fp8 scale for 16 numbers; mxfp4, mxfp8: one 8-bit exponent for 32 (OCP Microscaling Formats v1.0); int4: one bf16 scale for 32.
# fp8: its scales (one for a tensor, a channel or 128 x 128 numbers) are too few to count.
BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "mxfp8": 1.0 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
    "int4": 0.5 + 2 / 32,
    "int8": 1.0,
    "fp4": 0.5 + 1 / 16,
}


def dtype_bytes(dtype: str) -> float:
    """Bytes of one number of `dtype`; raises `CatalogError` for a format that is not in `BYTES`."""
    try:
        return BYTES[dtype]
    except KeyError:
        raise CatalogError(f"unknown number format {dtype!r}{did_you_mean(dtype, BYTES)}") from None


def divided(count: int, ranks: int) -> int:
    """How many of `count` things the fullest of `ranks` holds: heads are spread evenly, and repeated where there are too few."""
    return -(-count // ranks)
