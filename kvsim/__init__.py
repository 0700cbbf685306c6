"""kvsim: a discrete-event simulator of KV-cache tiering for LLM inference clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.metrics.result import Result
    from kvsim.scenario import Scenario, load
    from kvsim.simulation import run

__version__ = "0.1.0"
__all__ = ["Result", "Scenario", "__version__", "load", "run"]

_HOME = {"Result": "kvsim.metrics.result", "Scenario": "kvsim.scenario", "load": "kvsim.scenario", "run": "kvsim.simulation"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import kvsim` itself is light."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
