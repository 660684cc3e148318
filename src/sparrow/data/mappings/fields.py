"""Reading one field of a raw row, with errors that name it."""

import math
from collections.abc import Mapping
from typing import Any

Raw = Mapping[str, Any]


def text_of(raw: Raw, name: str) -> str:
    """A field that must be text with something in it, as it is.

    Raises:
        KeyError: if there is no such field.
        ValueError: if it is anything else; names it.
    """
    value = raw[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"field {name} is {str(value)[:80]!r}; allowed: text that is not empty")
    return value


def answer_of(raw: Raw, name: str) -> str:
    """A field that must be an answer: text, or a finite number; whole floats, as AMC has them, become integers.

    Raises:
        KeyError: if there is no such field.
        ValueError: if it is anything else; names it.
    """
    value = raw[name]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"field {name} is {str(value)[:80]!r}; allowed: an answer, text or a number")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"field {name} is {value}; allowed: a finite number")
        value = int(value) if value.is_integer() else value
    text = str(value).strip()
    if not text:
        raise ValueError(f"field {name} is {raw[name]!r}; allowed: an answer that is not empty")
    return text


def kept(raw: Raw, names: tuple[str, ...]) -> dict[str, Any]:
    """Columns to carry along, where the row has them."""
    return {name: raw[name] for name in names if name in raw}
