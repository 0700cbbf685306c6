"""Trace formats: one file each, a class with `sniff` and `read`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from kvsim.registry import Registry
from kvsim.workload.source import Record
from kvsim.workload.workload import Workload


class TraceFormat(Protocol):
    """What a registered trace format offers."""

    @staticmethod
    def sniff(lines: Sequence[bytes]) -> bool:
        """Whether the first lines of a trace look like this format."""

    @staticmethod
    def read(records: Iterable[Record], name: str) -> Workload:
        """The whole trace. Raises `TraceError` with file and line for the first record that is not of this format."""


FORMATS = Registry("trace format", "kvsim.workload.formats")
