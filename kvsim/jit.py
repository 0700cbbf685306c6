"""The only importer of numba: compiled kernels, their cache folder, and the linking of kernels with interchangeable parts.

Cache. numba's own cache looks at the time stamp of one file and so returns stale results after an edit in another. Here the cache
folder is named by a digest of every kernel source, the Python and the numba version: an edit anywhere means a new folder.

Bundles. A kernel that takes a tuple of forty arrays takes a second to compile and 20 us to call. `bundle` turns a NamedTuple of arrays,
other bundles inside it included, into one pointer to a table of addresses and sizes: `e.pool.blocks[3].ref` reads the same in a kernel.

Linking. A kernel such as a scheduler's step loop calls `connector_lookup(...)` or `step_seconds(...)` without knowing which one.
Functions passed as arguments never come from numba's cache, so the choice is made in Python, before compiling: `link(run, parts)`
makes a copy of `run` (and of the kernels it calls, as far as they need it) in which the named globals are the chosen functions.
Each combination has its own name, and so its own cache entry. With the JIT off (NUMBA_DISABLE_JIT=1) the same copies run as Python.
"""

from __future__ import annotations

import dis
import hashlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.core.typing.typeof import typeof_impl
from numba.extending import NativeValue, models, register_model, unbox
from numba.np.arrayobj import populate_array

from kvsim.paths import cache_root

JIT_DISABLED: bool = bool(numba.config.DISABLE_JIT)


@cache
def _kernel_folder() -> str:
    digest = hashlib.sha256(f"{sys.version}|{numba.__version__}|{numba.config.BOUNDSCHECK}".encode())
    package = Path(__file__).parent
    for path in sorted(package.rglob("*.py")):
        source = path.read_bytes()
        if path.name == "jit.py" or b"kvsim.jit" in source:
            digest.update(str(path.relative_to(package)).encode() + b"\0" + source)
    return str(cache_root() / f"kernels-{digest.hexdigest()[:16]}")


def kernel(function: Callable[..., Any]) -> Any:
    """Compile `function` in nopython mode, cached on disk; no fastmath, so that results are the same on every machine."""
    if JIT_DISABLED:
        return function
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _kernel_folder()
    try:
        return numba.njit(cache=True, error_model="numpy")(function)
    finally:
        numba.config.CACHE_DIR = before


class BundleType(types.Type):
    """Type of a bundle in a kernel: the names of its fields and their types (arrays or bundles)."""

    def __init__(self, fields: tuple[tuple[str, Any], ...]) -> None:
        self.fields = fields
        super().__init__(name=f"Bundle({fields})")

    def slot(self, name: str) -> tuple[int, Any]:
        """(first word in the table, type) of a field; an array takes an address and its shape, a bundle an address."""
        word = 0
        for known, kind in self.fields:
            if known == name:
                return word, kind
            word += 1 + getattr(kind, "ndim", 0)
        raise AttributeError(name)


class Bundle:
    """A NamedTuple of C-contiguous arrays and bundles, as kernels take it. Keeps the arrays alive; holds for as long as they don't move."""

    __slots__ = ("address", "fields", "kind", "table")
    kind: BundleType

    def __init__(self, fields: Any) -> None:
        words: list[int] = []
        self.fields = [Bundle(value) if isinstance(value, tuple) else value for value in fields]
        for value in self.fields:
            words += [value.address] if isinstance(value, Bundle) else [value.__array_interface__["data"][0], *value.shape]
        self.table = np.array(words, np.int64)
        self.address: int = self.table.__array_interface__["data"][0]
        self.kind = _bundle_type(fields._fields, tuple(v.kind if isinstance(v, Bundle) else (v.dtype, v.ndim) for v in self.fields))
        if not all(isinstance(v, Bundle) or v.flags.c_contiguous for v in self.fields):
            raise ValueError(f"bundle of {', '.join(fields._fields)}: every array must be contiguous")


@cache
def _bundle_type(names: tuple[str, ...], kinds: tuple[Any, ...]) -> BundleType:
    arrays = [k if isinstance(k, BundleType) else types.Array(numba.from_dtype(k[0]), k[1], "C") for k in kinds]
    return BundleType(tuple(zip(names, arrays, strict=True)))


def bundle(fields: Any) -> Any:
    """`fields`, a NamedTuple of arrays and NamedTuples, as an argument for kernels (with the JIT off: as it is)."""
    return fields if JIT_DISABLED else Bundle(fields)


@typeof_impl.register(Bundle)
def _typeof_bundle(value: Bundle, _: Any) -> BundleType:
    return value.kind


@register_model(BundleType)
class _BundleModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: BundleType) -> None:
        super().__init__(manager, kind, ir.IntType(64))


@unbox(BundleType)
def _unbox_bundle(kind: BundleType, value: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(value, "address")
    native = c.pyapi.long_as_ulonglong(address)
    c.pyapi.decref(address)
    return NativeValue(native)


@infer_getattr
class _BundleAttributes(AttributeTemplate):  # type: ignore[misc]
    key = BundleType

    def generic_resolve(self, kind: BundleType, name: str) -> Any:
        return dict(kind.fields).get(name)


@lower_getattr_generic(BundleType)
def _lower_bundle_field(context: Any, builder: Any, kind: BundleType, value: Any, name: str) -> Any:
    word, field = kind.slot(name)
    table = builder.inttoptr(value, ir.IntType(64).as_pointer())
    words = [builder.load(builder.gep(table, [ir.IntType(64)(word + i)])) for i in range(1 + getattr(field, "ndim", 0))]
    if isinstance(field, BundleType):
        return words[0]
    array = context.make_array(field)(context, builder)
    itemsize = context.get_abi_sizeof(context.get_data_type(field.dtype))
    strides = [ir.IntType(64)(itemsize)]
    for extent in reversed(words[2:]):
        strides.insert(0, builder.mul(strides[0], extent))
    data = builder.inttoptr(words[0], array.data.type)
    populate_array(array, data=data, shape=words[1:], strides=strides, itemsize=ir.IntType(64)(itemsize), meminfo=None, parent=None)
    return array._getvalue()


_linked: dict[tuple[Any, ...], Any] = {}


def link(root: Any, parts: Mapping[str, Any]) -> Any:
    """A copy of the kernel `root` in which each global named in `parts` is that part, all the way down its calls.

    Only kernels that use a part, themselves or through those they call, are copied; a copy's name tells the parts it uses.
    Raises `LookupError` when a part is named that nothing in `root` uses, or that a module uses without declaring it.
    """
    key = (root, tuple(sorted((name, id(part)) for name, part in parts.items())))
    if key not in _linked:
        _linked[key], used = _relink(root, parts, {})
        if missing := parts.keys() - used:
            raise LookupError(f"{_python(root).__qualname__} uses no {', '.join(sorted(missing))}")
    return _linked[key]


def _python(function: Any) -> FunctionType:
    source: FunctionType = getattr(function, "py_func", function)
    return source


def _is_kernel(value: Any) -> bool:
    if JIT_DISABLED:
        return isinstance(value, FunctionType) and value.__module__.partition(".")[0] not in ("numpy", "math")
    return hasattr(value, "py_func")


def _globals_read(function: FunctionType) -> list[str]:
    return sorted({i.argval for i in dis.get_instructions(function.__code__) if i.opname == "LOAD_GLOBAL"})


def _relink(function: Any, parts: Mapping[str, Any], done: dict[Any, tuple[Any, set[str]]]) -> tuple[Any, set[str]]:
    """(linked copy, names of the parts it uses); the function itself where it uses none."""
    if function in done:
        return done[function]
    source = _python(function)
    changed: dict[str, Any] = {}
    used: set[str] = set()
    for name in _globals_read(source):
        if name in parts:
            changed[name], deeper = _relink(parts[name], parts, done)
            used |= deeper | {name}
        elif _is_kernel(value := source.__globals__.get(name)):
            linked, deeper = _relink(value, parts, done)
            used |= deeper
            if linked is not value:
                changed[name] = linked
    done[function] = function, used
    if used:
        copy = FunctionType(source.__code__, {**source.__globals__, **changed}, source.__name__, source.__defaults__)
        copy.__qualname__ = f"{source.__qualname__}[{_parts_tag(parts, used)}]"
        copy.__module__ = source.__module__
        copy.__doc__ = source.__doc__
        done[function] = kernel(copy), used
    return done[function]


def _parts_tag(parts: Mapping[str, Any], used: set[str]) -> str:
    """Modules of the parts, readable, and a digest of which part stands for which name and, for plug-ins, of their source."""
    sources = {name: _python(parts[name]) for name in used}
    text = "".join(f"{name}={f.__module__}.{f.__qualname__}{_plugin_digest(f.__code__.co_filename)}" for name, f in sorted(sources.items()))
    modules = sorted({f.__module__.rpartition(".")[2] for f in sources.values()})
    return f"{'+'.join(modules)}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@cache
def _plugin_digest(path: str) -> str:
    if Path(path).is_relative_to(Path(__file__).parent):
        return ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
