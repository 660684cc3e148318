"""Every algorithm with every correction, as their configurations give them: they train, or are refused by reason."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from sparrow.algorithms import GroupedRewards, advantages, aggregation, losses
from sparrow.algorithms.corrections import Bypass, Chain, Jackpot, TailMask, TokenMask, TokenTIS
from sparrow.config import build
from sparrow.config_dir import config_dir
from sparrow.modules import (
    DensePolicy,
    Experience,
    Recipe,
    ReferenceSettings,
    RolloutSettings,
    UpdateSettings,
    check_together,
    collect,
)
from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule
from tests.modules.conftest import PROMPTS, small_model

SPARSE = BudgetSchedule.constant(0, page_size=4, dense_layers=())


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (config_dir() / group).glob("*.yaml"))


ALGORITHMS = names("algorithm")
CORRECTIONS = names("correction")
OF_ALGORITHMS = {"cispo", "gmpo", "gspo", "gspo-token", "ppo-clip", "reinforce", "sapo"}
LOSSES = sorted(set(names("loss")) - OF_ALGORITHMS)
"""Losses that no shipped algorithm has; they are tried with the other parts of GRPO."""

ARMS = [*ALGORITHMS, *(f"loss={loss}" for loss in LOSSES)]
REFUSED = {("bypass", "rloo"), ("bypass", "remax")}
PAIRS = [(correction, arm) for correction in CORRECTIONS for arm in ALGORITHMS]
PAIRS += [(correction, f"loss={loss}") for correction in ("none", "token-tis", "bypass") for loss in LOSSES]


@cache
def parts(arm: str) -> dict[str, Any]:
    """Advantage, loss and aggregation of an arm."""
    override = arm if "=" in arm else f"algorithm={arm}"
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("train", overrides=[override, "rollout.max_new_tokens=40"])
    return {key: build(cfg[key]) for key in ("advantage", "loss", "aggregation")}


@cache
def correction_of(name: str) -> Any:
    return build(OmegaConf.load(config_dir() / "correction" / f"{name}.yaml"))  # type: ignore[arg-type]


def recipe_of(correction: str, arm: str) -> Recipe:
    return Recipe(correction=correction_of(correction), **parts(arm))


class Insert(lightning.Callback):
    """Puts the rollout into each batch, and keeps the gradient of the last step."""

    def __init__(self, experience: Experience) -> None:
        self.experience = experience
        self.gradient: Tensor | None = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        batch["experience"] = self.experience

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.gradient = flat([parameter.grad for parameter in pl_module.model.parameters()])


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().clone().flatten() for tensor in tensors])


@pytest.fixture(scope="module")
def base() -> Experience:
    """2 prompts, 4 samples each, of a random model whose actor reads next to nothing."""
    engine = RolloutEngine(small_model(), SPARSE, max_batch=8)
    completions = engine.generate(PROMPTS, n=4, max_new_tokens=16, seed=3, eos_token_ids=(12,), record=("hidden",))
    group_B = torch.tensor([completion.prompt_index for completion in completions])
    rows = [PROMPTS[completion.prompt_index] for completion in completions]
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    return collect(rows, completions, rewards, torch.zeros(8), group_B)


def with_advantages(experience: Experience, recipe: Recipe) -> Experience:
    lengths_B = experience.length_B - experience.prompt_len_B
    grouped = GroupedRewards(experience.rewards_B, experience.group_B, lengths_B, torch.full((8,), 0.5))
    return replace(experience, advantages_B=recipe.advantage(grouped))


def train(
    model: PreTrainedModel, recipe: Recipe, experience: Experience, folder: Path, steps: int = 1, **update: Any
) -> tuple[DensePolicy, Insert]:
    module = DensePolicy(
        model,
        SPARSE,
        recipe=recipe,
        optimizer=partial(torch.optim.SGD, lr=1e-2),
        rollout=RolloutSettings(),
        update=UpdateSettings(max_grad_norm=None, **update),
    )
    insert = Insert(with_advantages(experience, recipe))
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, callbacks=[insert],
    )  # fmt: skip
    trainer.fit(module, DataLoader([{"prompts": [i]} for i in range(steps)], batch_size=None))  # type: ignore[arg-type]
    return module, insert


def marked(pair: tuple[str, str]) -> Any:
    """Pairs of a common correction or a common algorithm run always, the rest of the matrix with the slow tests."""
    correction, arm = pair
    common = correction in ("token-tis", "jackpot") or arm in ("grpo", "gspo")
    return pair if common else pytest.param(*pair, marks=pytest.mark.slow)


@pytest.mark.parametrize(("correction", "arm"), [marked(pair) for pair in PAIRS if pair not in REFUSED])
def test_a_pair_trains_two_steps(
    correction: str, arm: str, base: Experience, make_model: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    # Two mini-batches, so that the second one's ratio is not 1.
    module, _ = train(make_model(), recipe_of(correction, arm), base, tmp_path, steps=2, minibatches=2)
    assert module.trainer.global_step == 2
    metrics = module.step_metrics
    dropped = metrics["rollout_corr/rollout_rs_masked_fraction"]
    assert 0 <= dropped <= 1
    assert math.isfinite(metrics["actor/grad_norm"])
    assert math.isfinite(metrics["rollout_corr/chi2_token"])
    if dropped < 0.9:
        assert math.isfinite(metrics["actor/pg_loss"])
        assert not torch.equal(flat(module.model.parameters()), flat(make_model().parameters()))
    assert bool(torch.isfinite(flat(module.model.parameters())).all())


@pytest.mark.parametrize(("correction", "arm"), sorted(REFUSED))
def test_bypass_needs_a_ratio(correction: str, arm: str) -> None:
    with pytest.raises(ValueError, match=r"correction=bypass with loss=reinforce: .* reinforce has none"):
        recipe_of(correction, arm)


def test_a_second_weight_on_top_of_bypass_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Chain.rules: Bypass and TokenTIS both answer .* corrected twice"):
        Chain([Bypass(), TokenTIS()])
    masked = Chain([Bypass(), TokenMask()])
    Recipe(advantages.grpo, masked, losses.ppo_clip, aggregation.token_mean)
    with pytest.raises(ValueError, match="correction=bypass with loss=reinforce"):
        Recipe(advantages.grpo, masked, partial(losses.reinforce), aggregation.token_mean)


@pytest.mark.parametrize(
    ("rule", "alpha", "message"),
    [
        (TailMask(), "bounds", r"correction TailMask reads alpha_BT: set rollout.alpha=exact"),
        (Jackpot(), "off", r"correction Jackpot reads alpha_BT: set rollout.alpha=exact"),
        (Jackpot(scale=2.0), "exact", r"correction Jackpot reads overlap_BT: no step measures it; allowed: scale 1"),
        (Chain([TokenTIS(), TailMask()]), "off", r"correction Chain reads alpha_BT"),
    ],
)
def test_a_correction_needs_what_it_reads(rule: Any, alpha: Any, message: str) -> None:
    recipe = Recipe(advantages.grpo, rule, losses.ppo_clip, aggregation.token_mean)
    with pytest.raises(ValueError, match=message):
        check_together(recipe, RolloutSettings(alpha=alpha), ReferenceSettings())


@pytest.mark.parametrize(
    ("advantage", "least"),
    [
        ("grpo", 2), ("dr-grpo", 2), ("rloo", 2), ("best-minus-second", 2), ("reinforce-plus-plus-baseline", 2),
        ("pass-at-k", 5), ("reinforce-plus-plus", 1), ("remax", 1),
    ],
)  # fmt: skip
def test_an_advantage_needs_its_samples(advantage: str, least: int) -> None:
    estimator = build(OmegaConf.load(config_dir() / "advantage" / f"{advantage}.yaml"))  # type: ignore[arg-type]
    recipe = Recipe(estimator, TokenTIS(), losses.ppo_clip, aggregation.token_mean)
    check_together(recipe, RolloutSettings(samples=least), ReferenceSettings())
    if least > 1:
        told = rf"rollout.samples={least - 1} with advantage={advantage.replace('-', '_')}: .*; must be {least} or more"
        with pytest.raises(ValueError, match=told):
            check_together(recipe, RolloutSettings(samples=least - 1), ReferenceSettings())


def test_groups_of_one_cannot_be_filtered() -> None:
    recipe = Recipe(advantages.remax, TokenTIS(), losses.reinforce, aggregation.token_mean)
    with pytest.raises(ValueError, match=r"rollout.samples=1 with rollout.filter_groups=true: .*must be 2 or more"):
        check_together(recipe, RolloutSettings(samples=1, filter_groups=True), ReferenceSettings())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"loss": partial(losses.ppo_clip, clip_low=-1)}, r"^loss.clip_low=-1: must be from 0 to 1$"),
        ({"advantage": partial(advantages.grpo, epsilon=-1.0)}, r"^advantage.epsilon=-1.0: must be 0 or more$"),
        (
            {"aggregation": partial(aggregation.token_sum_constant, length=0)},
            r"^aggregation.length=0: must be above 0$",
        ),
    ],
)
def test_numbers_out_of_range_are_refused_with_their_group(parts: dict[str, Any], message: str) -> None:
    own = {"advantage": advantages.grpo, "loss": losses.ppo_clip, "aggregation": aggregation.token_mean}
    with pytest.raises(ValueError, match=message):
        Recipe(correction=TokenTIS(), **{**own, **parts})


CUT = [("token-tis", arm) for arm in ARMS] + [(correction, "grpo") for correction in CORRECTIONS]


@pytest.mark.parametrize(("correction", "arm"), sorted(set(CUT)))
def test_gradients_do_not_depend_on_micro_batches(
    correction: str, arm: str, base: Experience, make_model: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    # 8 sequences at once, 4 x 2 and 1 x 8; the widest has 21 tokens.
    recipe = recipe_of(correction, arm)
    found = [train(make_model(), recipe, base, tmp_path, micro_batch_tokens=n)[1].gradient for n in (1000, 42, 1)]
    assert all(gradient is not None for gradient in found)
    for gradient in found[1:]:
        torch.testing.assert_close(gradient, found[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("arm", ARMS)
def test_the_ratio_of_a_fresh_rollout_is_exactly_one(
    arm: str, base: Experience, make_model: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    module, _ = train(make_model(), recipe_of("token-tis", arm), base, tmp_path)
    assert module.step_metrics["actor/ppo_kl"] == 0.0
    assert module.step_metrics.get("actor/pg_clipfrac", 0.0) == 0.0 or arm == "loss=clip-cov"


def test_the_lists_are_whole() -> None:
    assert {*OF_ALGORITHMS, *LOSSES} == set(names("loss"))
    assert len(ALGORITHMS) >= 11
    assert len(CORRECTIONS) >= 19
