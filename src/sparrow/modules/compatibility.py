"""What does not go together, refused with the reason before anything runs.

A combination is refused where a part that was chosen would do nothing, or do a thing twice; an unusual one that does
what its parts say is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sparrow.algorithms import losses
from sparrow.algorithms.advantages.groups import least_samples
from sparrow.algorithms.corrections import Bypass, Chain, NoCorrection, Rule
from sparrow.modules.reference import ReferenceSettings
from sparrow.modules.settings import RolloutSettings

if TYPE_CHECKING:
    from sparrow.modules.recipe import Recipe

ALWAYS_THERE = frozenset({"noise_BT", "entropy_BT", "group_B"})
"""Optional fields of `PolicyInputs` that every step fills; alpha_BT comes with rollout.alpha=exact."""


def check_recipe(correction: Rule, loss: Callable[..., Any]) -> None:
    """Check a correction against a loss.

    Raises:
        ValueError: bypass with a loss that has no ratio.
    """
    if _bypasses(correction) and _plain(loss) is losses.reinforce:
        raise ValueError(
            "correction=bypass with loss=reinforce: bypass leaves the gap between actor and policy to the ratio of the "
            "loss, and reinforce has none, so nothing would correct it; take an importance weight such as token-tis, "
            "or none"
        )


def check_together(recipe: Recipe, rollout: RolloutSettings, reference: ReferenceSettings) -> None:
    """Check what a recipe needs against what a step gives.

    Raises:
        ValueError: a correction or a loss reads what is not measured, groups are too small for what compares their
            samples, or the supervised stage has parts of a rollout.
    """
    measured = ALWAYS_THERE | ({"alpha_BT"} if rollout.alpha == "exact" else set())
    for key, part in (("correction", recipe.correction), ("loss", recipe.loss)):
        missing = sorted(getattr(_plain(part), "needs", frozenset()) - measured)
        if missing:
            hint = "set rollout.alpha=exact" if missing == ["alpha_BT"] else "no step measures it; allowed: scale 1"
            raise ValueError(f"{key} {type(part).__name__} reads {', '.join(missing)}: {hint}")
    if rollout.source == "traces":
        _check_supervised(recipe, rollout, reference)
    else:
        _check_groups(recipe, rollout)


def _check_groups(recipe: Recipe, rollout: RolloutSettings) -> None:
    """Advantages that are zero whatever was sampled would train nothing, and say so nowhere."""
    least = least_samples(recipe.advantage)
    if rollout.samples < least:
        raise ValueError(
            f"rollout.samples={rollout.samples} with advantage={_name(recipe.advantage)}: it compares the samples of a "
            f"prompt, and of fewer than {least} every advantage is 0; must be {least} or more"
        )
    if rollout.filter_groups and rollout.samples < 2:
        raise ValueError(
            f"rollout.samples={rollout.samples} with rollout.filter_groups=true: no score of a group of one differs "
            "from another, so every group would be left out; must be 2 or more"
        )


def _check_supervised(recipe: Recipe, rollout: RolloutSettings, reference: ReferenceSettings) -> None:
    asked = "rollout.source=traces (experiment=warmup) trains on given completions"
    if _plain(recipe.loss) is not losses.reinforce:
        raise ValueError(
            f"{asked}: loss={_name(recipe.loss)} compares with an actor, and none sampled; allowed: reinforce"
        )
    if not isinstance(recipe.correction, NoCorrection):
        raise ValueError(f"{asked}: correction={_name(recipe.correction)} has no actor to correct for; allowed: none")
    for key, value, allowed in (("temperature", rollout.temperature, 1.0), ("alpha", rollout.alpha, "off")):
        if value != allowed:
            raise ValueError(f"{asked}: rollout.{key}={value}; allowed: {allowed}")
    if reference.in_reward:
        raise ValueError(f"{asked}: reference.into=reward, and there are no rewards; allowed: loss")


def _bypasses(correction: Rule) -> bool:
    if isinstance(correction, Chain):
        return any(_bypasses(rule) for rule in correction.rules)
    return isinstance(correction, Bypass)


def _plain(part: Any) -> Any:
    return part.func if isinstance(part, partial) else part


def _name(part: Any) -> str:
    plain = _plain(part)
    return str(getattr(plain, "__name__", type(plain).__name__))
