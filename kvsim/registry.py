"""Registries: a name, the class behind it, and what is needed to list, document and conformance-test it.

A registry is made once (`EVICTION = Registry("eviction policy", "kvsim.cache.eviction")`), filled by `@EVICTION.register("lru")` in
one file a policy, and by the entry points `kvsim.<group>` of other packages. Modules of the package are imported on first use.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TypeVar

from kvsim.errors import UnknownNameError, did_you_mean

T = TypeVar("T", bound=type)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is registered: `summary` is the first line of the docstring, `source` a paper or project and version."""

    name: str
    value: type
    summary: str
    source: str


@dataclass(slots=True)
class Registry:
    """Names of one kind of part. `package` holds its modules; all are imported when the first name is looked up."""

    kind: str
    package: str
    _entries: dict[str, Entry] = field(default_factory=dict)
    _loaded: bool = False

    def register(self, name: str, *, source: str = "") -> Callable[[T], T]:
        """Class decorator. Registering a name twice is an error: policies never replace each other silently."""

        def add(value: T) -> T:
            known = self._entries.get(name)
            if known is not None and known.value.__qualname__ != value.__qualname__:
                raise ValueError(f"{self.kind} {name!r} is already registered by {known.value.__module__}.{known.value.__qualname__}")
            doc = (value.__doc__ or "").strip().splitlines()
            if not doc:
                raise ValueError(f"{self.kind} {name!r} has no docstring")
            self._entries[name] = Entry(name, value, doc[0], source)
            return value

        return add

    def __getitem__(self, name: str) -> type:
        return self.entry(name).value

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries

    def entry(self, name: str) -> Entry:
        """The entry under `name`; raises `UnknownNameError` with the nearest known name."""
        self._load()
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownNameError(f"unknown {self.kind} {name!r}{did_you_mean(name, self._entries)}") from None

    def describe(self) -> list[Entry]:
        """All entries, by name."""
        return [self.entry(name) for name in self]

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        for point in entry_points(group=self.package):
            point.load()
