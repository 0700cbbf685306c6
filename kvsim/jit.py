"""The only importer of numba: compiled kernels, their cache folder, and the linking of kernels with interchangeable parts.

Cache. numba's own cache looks at the time stamp of one file and so returns stale results after an edit in another. Here the cache
folder is named by a digest of every kernel source, the Python and the numba version: an edit anywhere means a new folder.

Bundles. A kernel that takes a tuple of forty arrays takes a second to compile and 20 us to call. `bundle` turns a NamedTuple of arrays,
other bundles inside it included, into one pointer to a table of addresses and sizes: `e.pool.blocks[3].ref` reads the same in a kernel.
`bundles` makes several of one kind an argument too: `es[i]` is a bundle, `len(es)` their number.

Linking. A kernel such as a scheduler's step loop calls `connector_lookup(...)` or `step_seconds(...)` without knowing which one.
Functions passed as arguments never come from numba's cache, so the choice is made in Python, before compiling: `link(run, parts)`
makes a copy of `run` (and of the kernels it calls, as far as they need it) in which the named globals are the chosen functions.
Each combination has its own name, and so its own cache entry. With the JIT off (NUMBA_DISABLE_JIT=1) the same copies run as Python.
"""

from __future__ import annotations

import dis
import hashlib
import operator
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
from numba.extending import NativeValue, intrinsic, models, overload, register_model, unbox
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
        # Short, as numba mangles the types of arguments into every symbol: spelled out this one has ten thousand letters.
        super().__init__(name=f"Bundle({hashlib.sha256(str(fields).encode()).hexdigest()[:16]})")

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

    __slots__ = ("_numba_type_", "address", "fields", "table")
    _numba_type_: BundleType  # where numba's dispatcher looks for the type of an argument

    def __init__(self, fields: Any) -> None:
        words: list[int] = []
        self.fields = [Bundle(value) if isinstance(value, tuple) else value for value in fields]
        for value in self.fields:
            words += [value.address] if isinstance(value, Bundle) else [value.__array_interface__["data"][0], *value.shape]
        self.table = np.array(words, np.int64)
        self.address: int = self.table.__array_interface__["data"][0]
        self._numba_type_ = _bundle_type(
            fields._fields, tuple(v._numba_type_ if isinstance(v, Bundle) else (v.dtype, v.ndim) for v in self.fields)
        )
        if not all(isinstance(v, Bundle) or v.flags.c_contiguous for v in self.fields):
            raise ValueError(f"bundle of {', '.join(fields._fields)}: every array must be contiguous")


@cache
def _bundle_type(names: tuple[str, ...], kinds: tuple[Any, ...]) -> BundleType:
    arrays = [k if isinstance(k, BundleType) else types.Array(_item_type(k[0]), k[1], "C") for k in kinds]
    return BundleType(tuple(zip(names, arrays, strict=True)))


def _item_type(dtype: Any) -> Any:
    item = numba.from_dtype(dtype)
    if isinstance(item, types.Record):
        item.name = f"Record({hashlib.sha256(item.name.encode()).hexdigest()[:16]})"
    return item


def bundle(fields: Any) -> Any:
    """`fields`, a NamedTuple of arrays and NamedTuples, as an argument for kernels (with the JIT off: as it is)."""
    return fields if JIT_DISABLED else Bundle(fields)


class BundlesType(types.Type):
    """Type of a row of bundles of one kind."""

    def __init__(self, kind: BundleType) -> None:
        self.kind = kind
        super().__init__(name=f"Bundles({kind.name})")


class Bundles:
    """Bundles of one kind, as kernels take them."""

    __slots__ = ("_numba_type_", "address", "parts", "table")
    _numba_type_: BundlesType

    def __init__(self, parts: list[Bundle]) -> None:
        self.parts = parts
        self._numba_type_ = BundlesType(parts[0]._numba_type_)
        if any(part._numba_type_ != parts[0]._numba_type_ for part in parts):
            raise ValueError("bundles: not all of one kind")
        self.table = np.array([len(parts), *(part.address for part in parts)], np.int64)
        self.address: int = self.table.__array_interface__["data"][0]


def bundles(parts: list[Any]) -> Any:
    """What `bundle` made several times of one kind, as one argument (with the JIT off: the list)."""
    return parts if JIT_DISABLED else Bundles(parts)


@register_model(BundleType)
@register_model(BundlesType)
class _BundleModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, ir.IntType(64))


@unbox(BundleType)
@unbox(BundlesType)
def _unbox_bundle(kind: types.Type, value: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(value, "address")
    native = c.pyapi.long_as_ulonglong(address)
    c.pyapi.decref(address)
    return NativeValue(native)


@overload(operator.getitem)
def _bundles_item(row, i):  # type: ignore[no-untyped-def]
    return (lambda row, i: _bundle_at(row, i)) if isinstance(row, BundlesType) else None  # noqa: PLW0108  (an overload is a function)


@overload(len)
def _bundles_length(row):  # type: ignore[no-untyped-def]
    return (lambda row: _word_at(row, 0)) if isinstance(row, BundlesType) else None


@intrinsic
def _bundle_at(context: Any, row: BundlesType, i: Any) -> Any:
    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(table, [builder.add(context.cast(builder, args[1], i, types.int64), ir.IntType(64)(1))]))

    return row.kind(row, i), lower


@intrinsic
def _word_at(context: Any, row: BundlesType, i: Any) -> Any:
    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(table, [context.cast(builder, args[1], i, types.int64)]))

    return types.int64(row, i), lower


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
