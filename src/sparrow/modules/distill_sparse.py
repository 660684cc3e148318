"""DistillSparse: a LoRA on the sparse actor, trained beside the policy from what a step computes anyway.

One base model. The dense pass, adapter off, trains the base as in `DensePolicy` and leaves its hidden states and
log-probs behind. The sparse pass repeats the rollout's attention over the same tokens, adapter on and base frozen, and
trains the adapter alone towards

    L = policy loss of the sparse actor + weight * divergence to the dense policy.

Both passes see the weights that sampled, and only then do the two optimizers step. The policy's own last step is the
counted one.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from sparrow.algorithms import Mean, Metrics, PolicyInputs, TokenLoss, add_metrics
from sparrow.algorithms.corrections import NoCorrection
from sparrow.algorithms.distillation import Distillation
from sparrow.algorithms.objective import Penalty
from sparrow.kernels import get_page_score
from sparrow.models.adapter import adapter_parameters, add_adapter, base_parameters
from sparrow.models.attention import SparsePass
from sparrow.modules.dense_policy import DensePolicy
from sparrow.modules.distill_settings import DistillSettings
from sparrow.modules.distill_target import DenseTarget, sparse_states, worst_share_threshold
from sparrow.modules.experience import Experience
from sparrow.modules.passes import head_weight, hidden_states, predicting, sparse_pass, whole_head
from sparrow.modules.recipe import Plan, Recipe
from sparrow.modules.reference import ReferenceSettings
from sparrow.modules.scoring import Scores, scatter, score_states
from sparrow.modules.settings import RolloutSettings, UpdateSettings
from sparrow.schedule import BudgetSchedule, derive_schedule


class DistillSparse(DensePolicy):
    """Trains a causal LM on sparse rollouts, and a LoRA that keeps its sparse actor close to it.

    Args:
        model: a transformers causal LM of a supported family; gets the adapter.
        schedule: the page budget of the actor; that of the sparse pass too, unless ``distill.schedule`` names another.
        recipe: advantage, correction, loss and aggregation; the sparse pass takes it without the correction, since its
            old log-probs are the recorded ones.
        optimizer: builds an optimizer from parameters; once for the base, once for the adapter.
        rollout: how the actor samples.
        update: how a rollout becomes optimizer steps.
        distill: the adapter and its loss.
        divergence: the divergence of the actor from the dense policy.
        reference: the policy that the dense one is held to, if any.

    Raises:
        ValueError: the divergence looks at the worst share of tokens and ``rollout.alpha`` is not ``exact`` or the
            adapter has a schedule of its own, that schedule is wrong, or the actor is not refreshed at every step.
    """

    def __init__(
        self,
        model: nn.Module,
        schedule: BudgetSchedule,
        *,
        recipe: Recipe,
        optimizer: Callable[[Iterable[Parameter]], Optimizer],
        rollout: RolloutSettings,
        update: UpdateSettings,
        distill: DistillSettings,
        divergence: Distillation,
        reference: ReferenceSettings | None = None,
    ) -> None:
        if divergence.share is not None and rollout.alpha != "exact":
            raise ValueError(
                f"rollout.alpha={rollout.alpha!r}: divergence.share={divergence.share} needs alpha of every token, so "
                "it must be exact"
            )
        if divergence.share is not None and distill.schedule is not None:
            raise ValueError(
                f"divergence.share={divergence.share} with distill.schedule={distill.schedule!r}: the worst share is "
                "found by alpha of the rollout, which was sampled under another schedule; distill.schedule must be null"
            )
        if rollout.refresh_every > 1:
            raise ValueError(
                f"rollout.refresh_every={rollout.refresh_every} with distill.enabled=true: the adapter learns from the "
                "dense pass under the weights that sampled, so the actor must be fresh; allowed: 1"
            )
        if rollout.draft_tokens:
            raise ValueError(
                f"rollout.draft_tokens={rollout.draft_tokens} with distill.enabled=true: the adapter learns from what "
                "the sparse actor sampled, and drafts leave only dense samples; must be 0"
            )
        if rollout.source != "actor":
            raise ValueError(
                f"rollout.source={rollout.source!r} with distill.enabled=true: there is no actor whose adapter could "
                "be trained; allowed: actor"
            )
        wrapped = add_adapter(model, rank=distill.rank, alpha=distill.alpha, targets=distill.targets)
        super().__init__(
            wrapped,
            schedule,
            recipe=recipe,
            optimizer=optimizer,
            rollout=rollout,
            update=update,
            reference=reference,
        )
        self.distill = distill
        self.divergence = divergence
        self.own_schedule = None
        if distill.schedule is not None:
            self.own_schedule = derive_schedule(schedule, distill.schedule, "distill.schedule")
        self.page_score = get_page_score(rollout.page_score)
        loss = recipe.loss if distill.policy_loss else no_policy_loss
        self.sparse_recipe = replace(recipe, correction=NoCorrection(), loss=loss)
        self.target = DenseTarget()
        self.distilling = False

    @property
    def trained_schedule(self) -> BudgetSchedule:
        """The schedule of the sparse pass: the rollout's, or the one that the adapter is trained for."""
        return self.schedule if self.own_schedule is None else self.own_schedule

    @property
    def actor_adapter(self) -> bool:
        """Whether the actor samples with the adapter: where it reads the pages that the adapter is trained for."""
        return self.trained_schedule.reads_as(self.schedule)

    @property
    def record(self) -> tuple[str, ...]:
        """What the engine must record while it samples."""
        return (*super().record, "page_sets") if self.distill.replay else super().record

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The base's optimizer, and the adapter's with its own learning rate; both follow the same warm-up."""
        base = self.make_optimizer(base_parameters(self.model))
        lora = self.make_optimizer(adapter_parameters(self.model))
        for group in lora.param_groups:
            group["lr"] *= self.distill.lr_factor
        return [self._scheduled(base), self._scheduled(lora)]

    def _update(self, experience: Experience, optimizer: Any) -> None:
        self.distilling = self.trainer.global_step % self.distill.every == 0
        self.target = DenseTarget()
        super()._update(experience, optimizer)
        self.target = DenseTarget()
        if self.distilling:
            seconds = self.stopwatch.seconds
            dense_seconds = seconds["dense_pass"] + seconds.get("old_logprobs", 0.0)
            self.step_metrics["distill/cost_ratio"] = seconds["sparse_pass"] / dense_seconds

    def _score(self, model: nn.Module, rows: list[int], micro: Experience, *, sampled: bool) -> tuple[Scores, Tensor]:
        hidden_XE = predicting(hidden_states(model, micro.tokens_BT), micro.mask_BT)
        head_VE = head_weight(model)
        if sampled and self.distilling and self.divergence.needs_hidden:
            self.target.keep(rows, hidden_XE, micro.mask_BT)
        return score_states(hidden_XE, head_VE, micro, self.rollout.temperature, agreement=sampled), hidden_XE

    def _before_first_step(self, experience: Experience, scores: Scores) -> None:
        if not self.distilling:
            return
        if self.distill.base == "sampled":
            self._distill(experience, scores)
        elif self.divergence.needs_hidden:  # the base is about to move, and a tied head with it
            self.target.head_VE = whole_head(self.model)

    def _after_last_step(self, experience: Experience) -> None:
        if not self.distilling:
            return
        assert self.scores is not None
        if self.distill.base == "updated":
            self._distill(experience, self.scores)
        optimizers: Any = self.optimizers()
        optimizers[1].optimizer.step()
        optimizers[1].zero_grad(set_to_none=True)

    def _distill(self, experience: Experience, dense: Scores) -> None:
        """Forward and backward of the sparse pass into the adapter, up to clipped gradients."""
        optimizers: Any = self.optimizers()
        self.step_metrics["distill/lr"] = optimizers[1].param_groups[0]["lr"]
        with self.stopwatch.part("sparse_pass", self.device):
            metrics, gap = self.distill_backward(experience, dense)
        self._prepare(optimizers[1], experience, "distill")
        self.step_metrics |= {name: mean.value for name, mean in metrics.items()}
        self.step_metrics["distill/logprob_gap_max"] = gap

    def distill_backward(self, experience: Experience, dense: Scores) -> tuple[Metrics, float]:
        """Add the adapter's gradients of a whole rollout; the base gets none.

        Args:
            experience: the rollout.
            dense: its scores by the dense pass under the weights that sampled.

        Returns:
            Metrics under ``distill/``, and the largest distance of a sampled token's log-prob from the recorded one.
        """
        recorded = Scores(experience.sparse_logprobs_BT, dense.entropy_BT)
        plan = self.sparse_recipe.plan(experience, recorded, "all", self.trainer.global_step)
        share = self.divergence.share
        threshold = None if share is None else worst_share_threshold(dense.alpha_BT, experience.decoded_BT, share)
        parts: list[Metrics] = []
        gap = 0.0
        with sparse_pass(self.model, with_adapter=True, train=adapter_parameters(self.model)):
            for rows in self._micro(experience, range(len(experience)), self.model):
                if not rows:
                    one_B = experience.length_B.new_ones(1)
                    self._idle(self.model, SparsePass(self.trained_schedule, self.page_score, one_B, 2 * one_B))
                    continue
                micro = experience.select(rows)
                width = micro.tokens_BT.shape[1]
                old, target = recorded.select(rows, width), dense.select(rows, width)
                loss, metrics, worst = self._sparse_loss(rows, micro, old, target, plan.rows(rows, width), threshold)
                self.manual_backward(loss)
                parts.append(metrics)
                gap = max(gap, worst)
        return add_metrics(parts), gap

    def _sparse_loss(
        self, rows: list[int], micro: Experience, old: Scores, dense: Scores, plan: Plan, threshold: float | None
    ) -> tuple[Tensor, Metrics, float]:
        mask_BT = micro.mask_BT
        states_XE = sparse_states(self.model, micro, self.trained_schedule, self.page_score, replay=self.distill.replay)
        head_VE = head_weight(self.model)
        scores = score_states(states_XE, head_VE, micro, self.rollout.temperature, agreement=False)
        pair = self.target.pair(rows, scores.logprobs_BT[mask_BT], dense.logprobs_BT[mask_BT], states_XE, head_VE)
        pair = replace(pair, temperature=self.rollout.temperature, threshold=threshold)
        divergence_BT = scatter(self.divergence(pair), mask_BT)
        assert divergence_BT is not None
        loss, found = self.sparse_recipe.loss_of(
            micro, scores, old, plan, 0.0, [Penalty("divergence", self.distill.weight, divergence_BT)]
        )
        gap_BT = (scores.logprobs_BT.detach() - micro.sparse_logprobs_BT).abs()
        metrics = {
            f"distill/{name.removeprefix('actor/')}": mean
            for name, mean in found.items()
            if name.startswith("actor/") and name != "actor/entropy"
        }
        metrics["distill/logprob_gap_mean"] = Mean.of(gap_BT, mask_BT)
        return loss, metrics, float(gap_BT[mask_BT].max())


def no_policy_loss(inputs: PolicyInputs) -> TokenLoss:
    """No policy loss: the adapter follows the dense policy alone."""
    return TokenLoss(inputs.mask_BT.to(inputs.dense_logprobs_BT.dtype) * 0.0)
