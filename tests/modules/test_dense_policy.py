"""One RL step: invariance to how it is cut, step counting, and what is never stepped on."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from sparrow.algorithms import advantages, aggregation, corrections, losses
from sparrow.modules import DensePolicy, Experience, NonFiniteUpdate, Recipe, RolloutSettings, UpdateSettings
from sparrow.schedule import BudgetSchedule

SPARSE = BudgetSchedule.constant(0, page_size=4, dense_layers=())


def recipe() -> Recipe:
    return Recipe(advantages.grpo, corrections.TokenTIS(), losses.ppo_clip, aggregation.token_mean)


def policy(model: PreTrainedModel, lr: float = 1e-2, **update: Any) -> DensePolicy:
    return DensePolicy(
        model,
        SPARSE,
        recipe=recipe(),
        optimizer=partial(torch.optim.SGD, lr=lr),
        rollout=RolloutSettings(),
        update=UpdateSettings(**update),
    )


class Insert(lightning.Callback):
    """Puts a fixed experience into each batch, as the rollout callback does."""

    def __init__(self, experience: Experience) -> None:
        self.experience = experience

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        batch["experience"] = self.experience


def fit(module: DensePolicy, experience: Experience, folder: Path, steps: int = 1) -> lightning.Trainer:
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[Insert(experience)],
    )
    batches = DataLoader([{"prompts": [index]} for index in range(steps)], batch_size=None)  # type: ignore[arg-type]
    trainer.fit(module, batches)
    return trainer


def weights(module: DensePolicy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.model.parameters()])


@pytest.mark.parametrize("tokens", [1, 50, 100])
def test_the_step_does_not_depend_on_micro_batches(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], tmp_path: Path, tokens: int
) -> None:
    experience = roll(make_model(), SPARSE)
    whole, cut = policy(make_model()), policy(make_model(), micro_batch_tokens=tokens)
    fit(whole, experience, tmp_path)
    fit(cut, experience, tmp_path)
    torch.testing.assert_close(weights(cut), weights(whole), atol=1e-6, rtol=0)
    assert not torch.equal(weights(whole), weights(policy(make_model())))


@pytest.mark.parametrize(("minibatches", "epochs"), [(1, 1), (2, 1), (2, 3)])
def test_one_counted_step_per_rollout(
    make_model: Callable[[], PreTrainedModel],
    roll: Callable[..., Experience],
    tmp_path: Path,
    minibatches: int,
    epochs: int,
) -> None:
    experience = roll(make_model(), SPARSE)
    module = policy(make_model(), minibatches=minibatches, epochs=epochs)
    assert fit(module, experience, tmp_path, steps=3).global_step == 3


def test_old_logprobs_stay_those_that_sampled(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], tmp_path: Path
) -> None:
    # With a learning rate that moves the policy, the second epoch's ratio differs from 1 and the first one's does not.
    experience = roll(make_model(), SPARSE)
    module = policy(make_model(), lr=0.0, epochs=2)
    fit(module, experience, tmp_path)
    assert module.step_metrics["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-7)
    moved = policy(make_model(), lr=0.5, epochs=2)
    fit(moved, experience, tmp_path)
    assert abs(moved.step_metrics["actor/ppo_kl"]) > 1e-4


def test_learning_rate_zero_changes_nothing(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], tmp_path: Path
) -> None:
    experience = roll(make_model(), SPARSE)
    module = policy(make_model(), lr=0.0)
    before = weights(module)
    fit(module, experience, tmp_path, steps=2)
    assert torch.equal(weights(module), before)


def test_warmup_rises_linearly(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], tmp_path: Path
) -> None:
    experience = roll(make_model(), SPARSE)
    module = policy(make_model(), lr=0.4, warmup_steps=4)
    rates = []
    for steps in (1, 2, 5):
        fit(module, experience, tmp_path, steps=steps)
        rates.append(module.step_metrics["actor/lr"])
    assert rates == pytest.approx([0.1, 0.2, 0.4])


def poisoned(experience: Experience) -> Experience:
    advantages_B = experience.advantages_B.clone()
    advantages_B[0] = torch.nan
    return Experience(**{**vars(experience), "advantages_B": advantages_B})


def test_a_non_finite_step_stops_and_saves_the_batch(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], tmp_path: Path
) -> None:
    experience = poisoned(roll(make_model(), SPARSE))
    module = policy(make_model())
    before = weights(module)
    with pytest.raises(NonFiniteUpdate, match=r"RL step 0: gradient norm is nan; weights are untouched"):
        fit(module, experience, tmp_path)
    assert torch.equal(weights(module), before)
    saved = torch.load(tmp_path / "non_finite_step_0_rank_0.pt", weights_only=True)
    assert torch.equal(saved["tokens_BT"], experience.tokens_BT)


def test_a_non_finite_step_can_be_skipped(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], tmp_path: Path
) -> None:
    experience = poisoned(roll(make_model(), SPARSE))
    module = policy(make_model(), on_non_finite="skip")
    before = weights(module)
    with pytest.warns(UserWarning, match="the step is skipped, weights are untouched"):
        trainer = fit(module, experience, tmp_path)
    assert torch.equal(weights(module), before)
    assert trainer.global_step == 1


def test_kept_denominator_needs_no_second_configuration(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], tmp_path: Path
) -> None:
    # Token TIS keeps every token, so both denominators must give the same step.
    experience = roll(make_model(), SPARSE)
    all_tokens, kept = policy(make_model()), policy(make_model(), denominator="kept")
    fit(all_tokens, experience, tmp_path)
    fit(kept, experience, tmp_path)
    torch.testing.assert_close(weights(kept), weights(all_tokens), atol=1e-7, rtol=0)
