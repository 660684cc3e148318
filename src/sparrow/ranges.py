"""Allowed ranges of numbers, written into signatures: the annotation of an argument says what its value may be.

A range is metadata of ``typing.Annotated``: a type checker sees the plain type, the configuration is checked against
it by key before anything is built (`sparrow.config.check`), and a dataclass checks its own fields by
:func:`check_fields`. What depends on two arguments (``low`` below ``high``) is left to whoever has both.
"""

import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``; NaN is in no range.

    Attributes:
        low: least number.
        high: greatest number.
        above: ``low`` itself is not allowed.
        unbounded: infinity is allowed too, where it means that there is no bound.
    """

    low: float
    high: float = math.inf
    above: bool = False
    unbounded: bool = False

    def __contains__(self, value: float) -> bool:
        inside = self.low < value if self.above else self.low <= value
        return inside and value <= self.high and (self.unbounded or value < math.inf)

    def __str__(self) -> str:
        """What is allowed, as an error says it."""
        if self.high < math.inf:
            first, last = ("above", "and at most") if self.above else ("from", "to")
            return f"{first} {self.low:g} {last} {self.high:g}"
        text = f"above {self.low:g}" if self.above else f"{self.low:g} or more"
        return f"{text} (inf: no bound)" if self.unbounded else text


Positive = Annotated[float, Range(0, above=True)]
NotNegative = Annotated[float, Range(0)]
Proportion = Annotated[float, Range(0, 1)]
Share = Annotated[float, Range(0, 1, above=True)]
Cap = Annotated[float, Range(0, above=True, unbounded=True)]
Width = Annotated[float, Range(0, unbounded=True)]
Count = Annotated[int, Range(1)]


def check_value(where: str, value: Any, hint: Any) -> None:
    """Check a number against the range in its annotation, if it has one.

    Args:
        where: what the error names.
        value: anything but a number passes: types are somebody else's.
        hint: an annotation, with its metadata.

    Raises:
        ValueError: the number is outside.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    for allowed in _ranges(hint):
        if value not in allowed:
            raise ValueError(f"{where}={value}: must be {allowed}")


def check_fields(settings: "DataclassInstance") -> None:
    """Check every field of a dataclass; called from its ``__post_init__``.

    Raises:
        ValueError: a field is out of its range; the message names it.
    """
    hints = _hints(type(settings))
    for spec in fields(settings):
        check_value(spec.name, getattr(settings, spec.name), hints[spec.name])


def check_arguments(group: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Check arguments that a function will be called with.

    Args:
        group: what the function is; goes before the argument's name.
        function: its annotations say what is allowed.
        arguments: by name.

    Raises:
        ValueError: one is out of its range.
    """
    try:
        hints = _hints(function)
    except (NameError, TypeError):
        return  # it has no annotations, or some of names that are there for type checkers alone
    for key, value in arguments.items():
        check_value(f"{group}.{key}", value, hints.get(key))


def _ranges(hint: Any) -> list[Range]:
    """Ranges anywhere in an annotation: of a number that may be None as well."""
    own = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Range)]
    return own + [found for part in typing.get_args(hint) for found in _ranges(part)]


@cache
def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(target, include_extras=True)
