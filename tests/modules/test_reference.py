"""The reference policy: values by hand, gradients against autograd of the whole distribution, what is refused."""

from collections.abc import Callable
from dataclasses import replace
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
from sparrow.algorithms.distillation import SampledToken, TokenPair
from sparrow.models.adapter import add_adapter
from sparrow.modules import (
    DensePolicy,
    DistillSettings,
    DistillSparse,
    Experience,
    Recipe,
    ReferenceSettings,
    RolloutSettings,
    UpdateSettings,
)
from sparrow.modules.reference import ESTIMATORS, Reference
from sparrow.schedule import BudgetSchedule

SPARSE = BudgetSchedule.constant(0, page_size=4, dense_layers=())

EYE = torch.eye(3)
POLICY, REFERENCE = torch.tensor([0.5, 0.25, 0.25]).log(), torch.tensor([0.25, 0.25, 0.5]).log()
"""Log-probs as hidden states of an identity head; the sampled token is the first one."""

BY_HAND = {
    "k1": 0.6931,  # log 2
    "k2": 0.2402,  # (log 2)^2 / 2
    "k3": 0.1931,  # 1/2 - 1 + log 2
    "k3_straight_through": 0.1931,
    "exact": 0.1733,  # 1/2 log 2 + 1/4 log 1 + 1/4 log 1/2
    "top_k": 0.1308,  # candidate: the last token; 1/4 log 1/2 + 3/4 log 3/2
}


def pair() -> TokenPair:
    return TokenPair(POLICY[:1], REFERENCE[:1], POLICY[None], REFERENCE[None], EYE, EYE, train_head=True)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_values_by_hand(estimator: Any) -> None:
    settings = ReferenceSettings("frozen", estimator, into="reward", top_k=1)
    assert settings.distance(pair()).item() == pytest.approx(BY_HAND[estimator], abs=1e-4)


def parts(lr: float = 0.1, **reference: Any) -> dict[str, Any]:
    return {
        "recipe": Recipe(advantages.grpo, corrections.NoCorrection(), losses.ppo_clip, aggregation.token_mean),
        "optimizer": partial(torch.optim.SGD, lr=lr),
        "rollout": RolloutSettings(),
        "update": UpdateSettings(micro_batch_tokens=60, max_grad_norm=None),
        "reference": ReferenceSettings(**reference),
    }


class Insert(lightning.Callback):
    def __init__(self, experience: Experience) -> None:
        self.experience = experience

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        batch["experience"] = self.experience


def fit(module: DensePolicy, experience: Experience, folder: Path) -> None:
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, callbacks=[Insert(experience)],
    )  # fmt: skip
    trainer.fit(module, DataLoader([{"prompts": [0]}], batch_size=None))  # type: ignore[arg-type]


def flat(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def logits(model: PreTrainedModel, experience: Experience) -> Tensor:
    """[X, V] logits that predicted the response tokens, by the plain model."""
    shifted_BT = torch.zeros_like(experience.mask_BT)
    shifted_BT[:, :-1] = experience.mask_BT[:, 1:]
    found: Tensor = model(experience.tokens_BT).logits[shifted_BT]
    return found


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """The model away from its first weights, so that the distance is not 0."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.parametrize("estimator", ["k2", "k3", "k3_straight_through", "exact"])
def test_the_step_is_that_of_the_penalty(
    estimator: Any, make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], tmp_path: Path
) -> None:
    # Advantages of 0 leave the penalty alone: one SGD step must be -lr x coefficient x d(mean distance) / d weights.
    experience = roll(make_model(), SPARSE)
    experience = replace(experience, advantages_B=torch.zeros(len(experience)))
    module = DensePolicy(make_model(), SPARSE, **parts(kind="frozen", estimator=estimator, coefficient=0.5))
    moved(module.model)  # type: ignore[arg-type]
    model = moved(make_model())
    policy_XV = logits(model, experience).log_softmax(-1)
    with torch.no_grad():
        target_XV = logits(make_model(), experience).log_softmax(-1)
    token_X1 = experience.tokens_BT[experience.mask_BT][:, None]
    d_X = (policy_XV - target_XV).gather(1, token_X1)[:, 0]
    distance = {
        "k2": (d_X**2 / 2).mean(),
        "k3": ((-d_X).exp() - 1 + d_X).mean(),
        "k3_straight_through": (d_X**2 / 2).mean(),  # its gradient
        "exact": (policy_XV.exp() * (policy_XV - target_XV)).sum(-1).mean(),
    }[estimator]
    distance.backward()
    expected = torch.cat([(p - 0.1 * 0.5 * p.grad).detach().flatten() for p in model.parameters()])  # type: ignore[operator]
    fit(module, experience, tmp_path)
    torch.testing.assert_close(flat(module.model), expected, atol=1e-6, rtol=1e-5)
    value = ((-d_X).exp() - 1 + d_X).mean() if estimator == "k3_straight_through" else distance
    assert module.step_metrics["actor/kl_loss"] == pytest.approx(value.item(), rel=1e-4)


def test_top_k_is_between_0_and_the_exact_distance(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], tmp_path: Path
) -> None:
    experience = roll(make_model(), SPARSE)
    found = {}
    for estimator in ("top_k", "exact"):
        module = DensePolicy(make_model(), SPARSE, **parts(kind="frozen", estimator=estimator, top_k=3))
        moved(module.model)  # type: ignore[arg-type]
        fit(module, experience, tmp_path)
        found[estimator] = module.step_metrics["actor/kl_loss"]
    assert 0 < found["top_k"] < found["exact"]


def test_the_first_step_has_no_distance(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], tmp_path: Path
) -> None:
    module = DensePolicy(make_model(), SPARSE, **parts(kind="frozen", estimator="k3", coefficient=10.0))
    plain = DensePolicy(make_model(), SPARSE, **parts())
    for policy in (module, plain):
        fit(policy, roll(make_model(), SPARSE), tmp_path)
    assert module.step_metrics["actor/kl_loss"] == 0
    assert torch.equal(flat(module.model), flat(plain.model))
    assert "actor/kl_loss" not in plain.step_metrics


def test_the_reference_stays_where_it_was(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], tmp_path: Path
) -> None:
    module = DensePolicy(make_model(), SPARSE, **parts(kind="frozen"))
    names = set(module.state_dict())
    fit(module, roll(make_model(), SPARSE), tmp_path)
    assert module.reference.snapshot is not None
    assert torch.equal(flat(module.reference.snapshot.model), flat(make_model()))
    assert not torch.equal(flat(module.model), flat(make_model()))
    assert set(module.state_dict()) == names == {f"model.{name}" for name in make_model().state_dict()}


def test_rewards_fall_by_the_summed_distance(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience]
) -> None:
    experience = roll(make_model(), SPARSE)
    settings = {"kind": "frozen", "estimator": "k1", "into": "reward", "coefficient": 0.5}
    module = DensePolicy(make_model(), SPARSE, **parts(**settings))
    moved(module.model)  # type: ignore[arg-type]
    penalty_B, mean = module.reward_penalty(experience)
    with torch.no_grad():
        sides = [logits(model, experience).log_softmax(-1) for model in (moved(make_model()), make_model())]
    token_X1 = experience.tokens_BT[experience.mask_BT][:, None]
    d_X = (sides[0] - sides[1]).gather(1, token_X1)[:, 0]
    sums = torch.stack([part.sum() for part in d_X.split(experience.mask_BT.sum(-1).tolist())])
    torch.testing.assert_close(penalty_B, 0.5 * sums, atol=1e-4, rtol=1e-5)
    assert mean == pytest.approx(d_X.mean().item(), rel=1e-4)


def test_adapter_off_measures_the_actor_against_the_dense_policy(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience]
) -> None:
    experience = roll(make_model(), SPARSE)
    module = DistillSparse(
        make_model(),
        SPARSE,
        **parts(kind="adapter_off", estimator="k1", into="reward", coefficient=1.0),
        distill=DistillSettings(enabled=True, rank=2),
        divergence=SampledToken("k3"),
    )
    with torch.no_grad():
        dense_XV = logits(make_model(), experience).log_softmax(-1)
    mask_BT = experience.mask_BT
    dense_X = dense_XV.gather(1, experience.tokens_BT[mask_BT][:, None])[:, 0]
    gap_X = experience.sparse_logprobs_BT[mask_BT] - dense_X
    sums = torch.stack([part.sum() for part in gap_X.split(mask_BT.sum(-1).tolist())])
    torch.testing.assert_close(module.reward_penalty(experience)[0], sums, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "froze"}, r"reference.kind='froze': must be one of none, frozen, adapter_off"),
        ({"estimator": "k4"}, r"reference.estimator='k4': must be one of k1, k2"),
        ({"into": "both"}, r"reference.into='both': must be one of loss, reward"),
        ({"coefficient": -1.0}, r"reference.coefficient=-1.0: must be 0 or more"),
        ({"top_k": 0}, r"reference.top_k=0: must be 1 or more"),
        ({"kind": "frozen", "estimator": "k1"}, r"reference.estimator='k1' with reference.into='loss'"),
        ({"kind": "adapter_off"}, r"reference.kind='adapter_off' with reference.into='loss'"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReferenceSettings(**settings)


def test_adapter_off_needs_an_adapter(make_model: Callable[[], PreTrainedModel]) -> None:
    with pytest.raises(ValueError, match=r"reference.kind='adapter_off': the policy has no adapter"):
        DensePolicy(make_model(), SPARSE, **parts(kind="adapter_off", into="reward"))


def test_the_exact_distance_of_the_actor_needs_its_states(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience]
) -> None:
    settings = ReferenceSettings("adapter_off", "exact", into="reward")
    model = add_adapter(make_model(), rank=2)
    experience = replace(roll(make_model(), SPARSE), sparse_hidden=None)
    with pytest.raises(ValueError, match=r"reference.estimator .* set rollout.alpha=exact"):
        Reference(settings, model).of_actor(model, experience, 1.0)
