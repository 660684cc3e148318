"""docs/algorithms.md lists every public part with its defaults as in the signature."""

import dataclasses
import doctest
import inspect
import re
from pathlib import Path

import pytest

from sparrow.algorithms import advantages, aggregation, corrections, divergences, losses
from sparrow.modules import ReferenceSettings, RolloutSettings
from sparrow.modules.reference import ESTIMATORS, KINDS

FILE = Path(__file__).parents[2] / "docs" / "algorithms.md"
PAGE = FILE.read_text(encoding="utf-8")
NO_SETTINGS = {"Counts", "ChoosingLoss", "Rule"}  # a record and two base classes: named, not configured
PARTS = [
    pytest.param(getattr(package, name), id=name)
    for package in (advantages, losses, corrections, divergences, aggregation)
    for name in package.__all__
]


def call(part):
    """`ppo_clip(clip_low=0.2, ...)`: settings only, the tensors left out."""
    settings = []
    for name, parameter in inspect.signature(part).parameters.items():
        setting = parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty
        if name == "missing" or not (dataclasses.is_dataclass(part) or setting) or name == "group_B":
            continue
        required = parameter.default is parameter.empty
        settings.append(name if required else f"{name}={parameter.default!r}")
    return f"{part.__name__}({', '.join(settings)})"


@pytest.mark.parametrize("part", PARTS)
def test_part_is_listed_with_its_defaults(part):
    text = part.__name__ if part.__name__ in NO_SETTINGS else call(part)
    assert f"`{text}`" in PAGE


@pytest.mark.parametrize("part", PARTS)
def test_part_has_a_worked_number(part):
    worked = PAGE.split("## Worked numbers")[1].split("## The same name elsewhere")[0]
    assert part.__name__.removesuffix("_top_k") in worked or part.__name__ in NO_SETTINGS


def test_worked_numbers_are_true():
    result = doctest.testfile(str(FILE), module_relative=False)
    assert result.attempted > 40
    assert result.failed == 0


def test_the_call_is_spelled_as_in_the_page():
    assert call(losses.ppo_clip) == "ppo_clip(clip_low=0.2, clip_high=0.28, dual_clip=3.0)"
    assert call(corrections.TokenReject) == "TokenReject(high, measure='k3')"
    assert call(aggregation.token_sum_constant) == "token_sum_constant(length)"


def test_keys_of_the_step_are_those_of_the_settings():
    reference, rollout = ReferenceSettings(), RolloutSettings()
    shown = re.findall(r"`reference\.(\w+)=([\d.]+)`", PAGE)
    assert dict(shown).keys() == {"top_k", "coefficient"}
    assert all(float(value) == getattr(reference, key) for key, value in shown)
    assert all(f"`{name}`" in PAGE for name in ESTIMATORS)
    assert all(f"`{name.replace('_', '-')}`" in PAGE or f"`reference={name}`" in PAGE for name in KINDS)
    assert rollout.max_tries == int(re.search(r"`max_tries=(\d+)`", PAGE)[1])
    assert (rollout.oversample, rollout.filter_groups, rollout.refresh_every) == (1, False, 1), "off by default"
    assert set(re.findall(r"`rollout\.(\w+)", PAGE)) <= vars(rollout).keys()
