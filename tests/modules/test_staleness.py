"""An actor refreshed every few steps: whose log-probs are whose, and what a checkpoint keeps."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from sparrow.algorithms import advantages, aggregation, corrections, losses
from sparrow.algorithms.distillation import SampledToken
from sparrow.modules import (
    DensePolicy,
    DistillSettings,
    DistillSparse,
    Experience,
    Recipe,
    RolloutSettings,
    Scores,
    UpdateSettings,
    collect,
    score,
)
from sparrow.modules.passes import dense_pass
from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule
from tests.modules.conftest import PROMPTS

SPARSE = BudgetSchedule.constant(0, page_size=4, dense_layers=())


def parts(refresh_every: int, lr: float = 0.05) -> dict[str, Any]:
    return {
        "recipe": Recipe(advantages.grpo, corrections.TokenTIS(), losses.ppo_clip, aggregation.token_mean),
        "optimizer": partial(torch.optim.SGD, lr=lr),
        "rollout": RolloutSettings(refresh_every=refresh_every),
        "update": UpdateSettings(),
    }


class Roll(lightning.Callback):
    """Samples each step with the module's actor, and keeps what the step saw."""

    def __init__(self) -> None:
        self.experiences: list[Experience] = []
        self.scores: list[Scores] = []
        self.metrics: list[dict[str, float]] = []
        self.weights: list[Tensor] = []

    def on_train_batch_start(self, trainer: Any, pl_module: DensePolicy, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        pl_module.refresh_actor()
        self.weights.append(flat(pl_module.actor))
        engine = RolloutEngine(pl_module.actor, pl_module.schedule, max_batch=8)
        completions = engine.generate(
            PROMPTS, n=4, max_new_tokens=20, seed=3, step=trainer.global_step, eos_token_ids=(12,), record=("hidden",)
        )
        group_B = torch.tensor([completion.prompt_index for completion in completions])
        rows = [PROMPTS[completion.prompt_index] for completion in completions]
        batch["experience"] = collect(rows, completions, [0.0] * 8, torch.linspace(-1.5, 1.5, 8), group_B)
        self.experiences.append(batch["experience"])

    def on_train_batch_end(self, trainer: Any, pl_module: DensePolicy, *rest: Any) -> None:  # type: ignore[override]
        assert pl_module.scores is not None
        self.scores.append(pl_module.scores)
        self.metrics.append(dict(pl_module.step_metrics))


def flat(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().clone().flatten() for parameter in model.parameters()])


def fit(module: DensePolicy, folder: Path, steps: int, resume: Path | None = None) -> tuple[Roll, lightning.Trainer]:
    roll = Roll()
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=steps, max_epochs=-1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, callbacks=[roll],
    )  # fmt: skip
    batches = DataLoader([{"prompts": [0]} for _ in range(10)], batch_size=None)  # type: ignore[arg-type]
    trainer.fit(module, batches, ckpt_path=resume, weights_only=False)
    return roll, trainer


def test_the_actor_moves_only_when_it_is_refreshed(make_model: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    roll, _ = fit(DensePolicy(make_model(), SPARSE, **parts(2)), tmp_path, 4)
    assert torch.equal(roll.weights[0], flat(make_model()))
    assert torch.equal(roll.weights[0], roll.weights[1])
    assert torch.equal(roll.weights[2], roll.weights[3])
    assert not torch.equal(roll.weights[1], roll.weights[2])


def test_old_and_alpha_are_those_of_the_weights_that_sampled(
    make_model: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    roll, _ = fit(DensePolicy(make_model(), SPARSE, **parts(2)), tmp_path, 2)
    first = make_model()
    with torch.no_grad(), dense_pass(first):
        expected = score(first, roll.experiences[1], 1.0)
    assert roll.scores[1].alpha_BT is not None
    assert expected.alpha_BT is not None
    torch.testing.assert_close(roll.scores[1].logprobs_BT, expected.logprobs_BT, atol=1e-5, rtol=0)
    torch.testing.assert_close(roll.scores[1].alpha_BT, expected.alpha_BT, atol=1e-5, rtol=0)
    assert roll.metrics[0]["actor/ppo_kl"] == 0.0, "a fresh actor is on-policy"
    assert abs(roll.metrics[1]["actor/ppo_kl"]) > 1e-4, "the drift since then is in the ratio"


def test_a_stale_dense_actor_needs_no_correction(make_model: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    # Staleness is not mismatch: dense against dense under the same weights, every w is 1 and every alpha too.
    roll, _ = fit(DensePolicy(make_model(), BudgetSchedule.dense(), **parts(3)), tmp_path, 3)
    for experience, scores in zip(roll.experiences, roll.scores, strict=True):
        gap_X = (scores.logprobs_BT - experience.sparse_logprobs_BT)[experience.mask_BT]
        assert gap_X.abs().max() < 1e-4
        assert scores.alpha_BT is not None
        assert scores.alpha_BT[experience.mask_BT].min() > 0.999
    assert abs(roll.metrics[2]["actor/ppo_kl"]) > 1e-4


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")  # the batches here are all alike
def test_a_run_resumed_between_two_refreshes_is_the_same(
    make_model: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    straight = DensePolicy(make_model(), SPARSE, **parts(3))
    fit(straight, tmp_path, 5)
    _, trainer = fit(DensePolicy(make_model(), SPARSE, **parts(3)), tmp_path, 2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    resumed = DensePolicy(make_model(), SPARSE, **parts(3))
    roll, _ = fit(resumed, tmp_path, 5, tmp_path / "two.ckpt")
    assert torch.equal(roll.weights[0], flat(make_model()))
    assert torch.equal(flat(resumed.model), flat(straight.model))


def test_a_checkpoint_without_an_actor_is_refused(make_model: Callable[[], PreTrainedModel]) -> None:
    module = DensePolicy(make_model(), SPARSE, **parts(3))
    with pytest.raises(KeyError, match=r"rollout.refresh_every=3: the checkpoint holds no weights of an actor"):
        module.on_load_checkpoint({})


def test_an_adapter_needs_a_fresh_actor(make_model: Callable[[], PreTrainedModel]) -> None:
    with pytest.raises(ValueError, match=r"rollout.refresh_every=2 with distill.enabled=true"):
        DistillSparse(
            make_model(), SPARSE, **parts(2), distill=DistillSettings(enabled=True), divergence=SampledToken("k3")
        )
