"""The simulated cluster of one point: engines under one clock, routers, clients and faults around them, and what they report."""

from kvsim.cluster.cluster import Cluster, Plan

__all__ = ["Cluster", "Plan"]
