"""Formats of a checkpoint's weights, from the `quantization_config` of its config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvsim.catalog.architecture import Weights
from kvsim.catalog.config import WRAPPERS
from kvsim.errors import CatalogError, Problem

_ATTENTION = re.compile(r"attn|attention")
_MODELOPT = {"NVFP4": "nvfp4", "FP8": "fp8", "MXFP8": "mxfp8", "MXFP4": "mxfp4"}


def weights_of_config(config: Mapping[str, Any], file: str = "") -> Weights:
    """The formats `config` states; without quantisation, bf16. Raises `CatalogError` for a method that is not known here.

    Layers that a quantisation leaves out are bf16; they are taken to be all but the routed experts when attention is among them.
    """
    text: Mapping[str, Any] = next((config[w] for w in WRAPPERS if isinstance(config.get(w), Mapping)), {})
    q = text.get("quantization_config") or config.get("quantization_config")
    if not q:
        return Weights("bf16", "bf16")
    method = str(q.get("quant_method", "")).replace("_", "-")
    if method in ("fp8", "fbgemm-fp8"):
        experts = "mxfp4" if {text.get("expert_dtype"), config.get("expert_dtype")} & {"fp4"} else "fp8"
        return Weights("bf16" if _leaves_attention(q) else "fp8", experts)
    if method == "mxfp4":
        return Weights("bf16" if _leaves_attention(q) else "mxfp4", "mxfp4")
    if method in ("awq", "gptq") and q.get("bits") in (4, 8):
        return Weights("int4", "int4") if q["bits"] == 4 else Weights("int8", "int8")
    found = _compressed_tensors(q) if method == "compressed-tensors" else _modelopt(q) if method == "modelopt" else None
    if found is None:
        what = f"formats of this quantisation ({method or 'no quant_method'}) are not known"
        raise CatalogError(Problem(what, "quantization_config", file))
    return found


def _leaves_attention(q: Mapping[str, Any]) -> bool:
    left = q.get("modules_to_not_convert") or q.get("ignore") or q.get("exclude_modules") or []
    return any(_ATTENTION.search(str(name)) and not str(name).endswith("norm") and "index" not in str(name) for name in left)


def _compressed_tensors(q: Mapping[str, Any]) -> Weights | None:
    groups = [g.get("weights") or {} for g in (q.get("config_groups") or {}).values()]
    if len(groups) != 1:
        return None
    bits, kind = groups[0].get("num_bits"), groups[0].get("type")
    dtype = {"8 float": "fp8", "8 int": "int8", "4 int": "int4", "4 float": "nvfp4"}.get(f"{bits} {kind}")
    if dtype == "nvfp4" and str(q.get("format", "")).startswith("mxfp4"):
        dtype = "mxfp4"
    return None if dtype is None else Weights("bf16" if _leaves_attention(q) else dtype, dtype)


def _modelopt(q: Mapping[str, Any]) -> Weights | None:
    layers = q.get("quantized_layers") or {}
    if q.get("quant_algo") != "MIXED_PRECISION" or not layers:
        dtype = _MODELOPT.get(str(q.get("quant_algo")))
        return None if dtype is None else Weights("bf16" if _leaves_attention(q) else dtype, dtype)
    experts = {v.get("quant_algo") for k, v in layers.items() if ".experts" in k}
    others = {v.get("quant_algo") for k, v in layers.items() if ".experts" not in k} or {"bf16"}
    if len(experts) != 1 or len(others) != 1:
        return None
    dense, routed = ({"bf16": "bf16", **_MODELOPT}.get(str(next(iter(x)))) for x in (others, experts))
    return None if dense is None or routed is None else Weights(dense, routed)
