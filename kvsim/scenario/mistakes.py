"""What pydantic found wrong, in sentences for the person who wrote the scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

MISTAKE, UNKNOWN_KEY = "mistake", "unknown_key"


def show(value: Any) -> str:
    """A value as a person wrote it in YAML, cut short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_SAY: dict[str, Callable[[Mapping[str, Any], str], str]] = {
    "missing": lambda c, v: "is missing",
    "int_type": lambda c, v: f"expected a whole number, got {v}",
    "int_from_float": lambda c, v: f"expected a whole number, got {v}",
    "float_type": lambda c, v: f"expected a number, got {v}",
    "finite_number": lambda c, v: f"expected a finite number, got {v}",
    "bool_type": lambda c, v: f"expected true or false, got {v}",
    "string_type": lambda c, v: f"expected text, got {v}",
    "string_too_short": lambda c, v: "must not be empty",
    "literal_error": lambda c, v: f"expected {c['expected']}, got {v}",
    "greater_than": lambda c, v: f"must be more than {c['gt']}, got {v}",
    "greater_than_equal": lambda c, v: f"must be at least {c['ge']}, got {v}",
    "less_than": lambda c, v: f"must be less than {c['lt']}, got {v}",
    "less_than_equal": lambda c, v: f"must be at most {c['le']}, got {v}",
    "value_error": lambda c, v: str(c["error"]),
    "extra_forbidden": lambda c, v: "unknown key",
    "unexpected_keyword_argument": lambda c, v: "unknown key",
}
_CONTAINER = {
    "model_type": "a mapping",
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
}


def sentence(error: ErrorDetails) -> str:
    """What is wrong, in words; pydantic's own for kinds of mistakes that scenarios don't have."""
    kind = error["type"]
    if kind in _CONTAINER:
        return f"expected {_CONTAINER[kind]}, got {show(error['input'])}"
    say = _SAY.get(kind)
    return say(error.get("ctx", {}), show(error["input"])) if say else error["msg"]


def mistake(message: str, where: tuple[str | int, ...] = (), kind: str = MISTAKE) -> InitErrorDetails:
    """A mistake found by own code, to be raised in a `ValidationError`."""
    return InitErrorDetails(type=PydanticCustomError(kind, "{message}", {"message": message}), loc=where, input=None)


def mistakes_of(error: ValidationError, where: tuple[str | int, ...]) -> list[InitErrorDetails]:
    """The mistakes of `error`, in sentences, to be raised again by a wider validator for the value at `where` in its own."""
    return [
        mistake(sentence(e), where + e["loc"][1:], UNKNOWN_KEY if is_unknown_key(e) else MISTAKE) for e in error.errors(include_url=False)
    ]


def is_unknown_key(error: ErrorDetails) -> bool:
    """Whether the place of the mistake is a key, not its value."""
    return error["type"] in (UNKNOWN_KEY, "extra_forbidden", "unexpected_keyword_argument")
