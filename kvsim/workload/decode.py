"""Strict JSON decoding of records, with the place and a nearest known key in every error."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec

from kvsim.errors import TraceError, did_you_mean
from kvsim.workload.source import Record

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Positive = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
Time = Annotated[float, msgspec.Meta(ge=0)]
Name = str | int

_AT = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)
_BYTE = re.compile(r" \(byte (\d+)\)$")
_TYPE = re.compile(r"`(\w+(?: \| \w+)*)`")
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "object": "an object",
    "array": "a list",
    "bool": "true or false",
}


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Base of every record type: unknown keys are errors."""


def decode(decoder: msgspec.json.Decoder[T], record: Record, known: frozenset[str]) -> T:
    """The record as the decoder's type. Raises `TraceError` with file, line and path; `known` are the keys to suggest from."""
    try:
        return decoder.decode(record.data)
    except msgspec.ValidationError as error:
        message, path = str(error), ""
        if at := _AT.search(message):
            message, path = message[: at.start()], at[1]
        raise record.place.error(_in_words(message, known), path) from None
    except msgspec.DecodeError as error:
        raise malformed(record, str(error)) from None
    except RecursionError:
        raise record.place.error("nested too deeply") from None


def malformed(record: Record, message: str) -> TraceError:
    """The error for a record that is no JSON; `message` is msgspec's, whose byte gives the line where the record has several."""
    place = record.place
    end = len(record.data.rstrip()) if message == "Input data was truncated" else 0
    if byte := _BYTE.search(message):
        message, end = message[: byte.start()], int(byte[1])
    before = record.data[:end]
    message = {"Input data was truncated": "JSON is malformed: it ends too early"}.get(message, message)
    return place._replace(line=place.line + before.count(b"\n")).error(message, col=end - before.rfind(b"\n"))


def top_keys(record: bytes) -> frozenset[str]:
    """The keys of a record that is a JSON object, none for anything else: what formats sniff."""
    try:
        return frozenset(msgspec.json.decode(record, type=dict[str, msgspec.Raw]))
    except msgspec.DecodeError:
        return frozenset()


def keys_of(*structs: type[msgspec.Struct]) -> frozenset[str]:
    """Every key the record types know."""
    names = {field.encode_name for struct in structs for field in msgspec.structs.fields(struct)}
    return frozenset(names | {str(s.__struct_config__.tag_field) for s in structs if s.__struct_config__.tag_field})


def _in_words(message: str, known: frozenset[str]) -> str:
    if unknown := _UNKNOWN.match(message):
        return f"unknown key {unknown[1]!r}{did_you_mean(unknown[1], known)}"
    if missing := _MISSING.match(message):
        return f"the key {missing[1]!r} is missing"
    message = _TYPE.sub(lambda names: " or ".join(_WORDS.get(name, name) for name in names[1].split(" | ")), message)
    return message.replace("Expected", "expected").replace("Invalid", "invalid")
