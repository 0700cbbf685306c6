"""What arrives: traces and synthetic loads as columns of requests."""

from kvsim.workload.workload import Workload

__all__ = ["Workload"]
