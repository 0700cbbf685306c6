"""What the user asked for: frozen models of the scenario's vocabulary, read from YAML with every mistake at its place."""

from kvsim.scenario.loading import load
from kvsim.scenario.packaged import locate
from kvsim.scenario.scenario import Scenario

__all__ = ["Scenario", "load", "locate"]
