"""Ranges in signatures: what is inside, what an error says, and that every number of an algorithm states its own."""

import dataclasses
import inspect
import math
import typing
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from sparrow.algorithms import advantages, aggregation, corrections, distillation, losses
from sparrow.ranges import Cap, Count, Positive, Proportion, Range, Share, Width, check_arguments, check_fields

FREE = {("ClipCov", "low"), ("ClipCov", "high")}
"""Covariances: any number, the lower one first."""

PARTS = [
    getattr(package, name)
    for package in (advantages, aggregation, corrections, losses)
    for name in package.__all__
    if name not in ("Counts", "Rule", "ChoosingLoss", "mixed_groups", "needs_baseline")
]
PARTS += [distillation.OverVocabulary, distillation.SampledToken, distillation.WorstShare]


@dataclass(frozen=True)
class Settings:
    share: Share = 0.5
    cap: Cap | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def clip(value: float, *, low: Proportion = 0.5, high: Width | None = 1.0, name: str = "") -> float:
    return value


@pytest.mark.parametrize(
    ("allowed", "inside", "outside", "words"),
    [
        (Range(0), (0, 3.5), (-1e-9, math.inf, math.nan), "0 or more"),
        (Range(0, above=True), (1e-9,), (0, -1), "above 0"),
        (Range(0, above=True, unbounded=True), (math.inf,), (0, math.nan), "above 0 (inf: no bound)"),
        (Range(0, 1), (0, 1), (-0.1, 1.1), "from 0 to 1"),
        (Range(0, 1, above=True), (0.1, 1), (0,), "above 0 and at most 1"),
        (Range(1), (1, 7), (0,), "1 or more"),
    ],
)
def test_what_is_in_a_range(allowed: Range, inside: tuple[float, ...], outside: tuple[float, ...], words: str) -> None:
    assert all(value in allowed for value in inside)
    assert not any(value in allowed for value in outside)
    assert str(allowed) == words


def test_a_dataclass_checks_its_fields() -> None:
    assert Settings(1.0, math.inf).cap == math.inf
    with pytest.raises(ValueError, match=r"^share=0: must be above 0 and at most 1$"):
        Settings(0)
    with pytest.raises(ValueError, match=r"^cap=-2.0: must be above 0 \(inf: no bound\)$"):
        Settings(cap=-2.0)


def test_arguments_are_named_with_their_group() -> None:
    check_arguments("loss", clip, {"low": 1.0, "high": None, "name": "any", "unknown": -1})
    with pytest.raises(ValueError, match=r"^loss.low=1.5: must be from 0 to 1$"):
        check_arguments("loss", clip, {"low": 1.5})
    check_arguments("loss", print, {"low": 1.5})  # without annotations nothing is said


def numbers(part: Any) -> list[str]:
    """Settings of a part that are numbers and state no range."""
    hints = typing.get_type_hints(part, include_extras=True)
    settings = dataclasses.is_dataclass(part)
    found = []
    for name, parameter in inspect.signature(part).parameters.items():
        given = settings or parameter.kind is parameter.KEYWORD_ONLY
        plain = hints[name] in (int, float) or set(typing.get_args(hints[name])) & {int, float}
        if given and plain and typing.get_origin(hints[name]) is not Annotated and (part.__name__, name) not in FREE:
            found.append(name)
    return found


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_number_of_an_algorithm_states_its_range(part: Any) -> None:
    own = {"max_length", "buffer"} if part is advantages.overlong_penalty else set()  # checked against each other
    assert set(numbers(part)) == own


def test_a_number_without_a_range_is_found() -> None:
    def loss(inputs: float, *, clip: float = 1.0, cap: float | None = None, top: Count | None = None) -> None:
        pass

    assert numbers(loss) == ["clip", "cap"]
    assert numbers(Settings) == []


def test_positive_is_a_float_to_a_type_checker() -> None:
    assert typing.get_args(Positive)[0] is float
