"""The policy that is trained: dense attention, scored and updated on what the sparse actor sampled.

One batch is one RL step: the rollout callback has put an :class:`Experience` into it. With one mini-batch and one
epoch, old and current log-probs are the same numbers and one pass gives everything; otherwise the whole batch is
scored once, without gradient, before the first optimizer step.
"""

from collections.abc import Callable, Iterable
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sparrow.algorithms import Metrics, add_metrics
from sparrow.modules.experience import Experience
from sparrow.modules.gradients import all_reduce_gradients, clip_gradients, without_reducer
from sparrow.modules.microbatches import microbatches, minibatches
from sparrow.modules.non_finite import check_finite
from sparrow.modules.passes import dense_pass
from sparrow.modules.recipe import Plan, Recipe
from sparrow.modules.scoring import Scores, merge, score
from sparrow.modules.settings import RolloutSettings, UpdateSettings, rate_factor
from sparrow.schedule import BudgetSchedule


class DensePolicy(lightning.LightningModule):
    """Trains a causal LM on sparse rollouts.

    Args:
        model: a transformers causal LM of a supported family.
        schedule: the page budget of the actor.
        recipe: advantage, correction, loss and aggregation.
        optimizer: builds the optimizer from parameters.
        rollout: how the actor samples.
        update: how a rollout becomes optimizer steps.
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
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model.train()
        self.schedule = schedule
        self.recipe = recipe
        self.make_optimizer = optimizer
        self.rollout = rollout
        self.update = update
        self.scores: Scores | None = None
        self.step_metrics: dict[str, float] = {}
        self.step_started = 0.0

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """One optimizer over the policy's parameters; its learning rate rises and falls by RL steps."""
        optimizer = self.make_optimizer([p for p in self.model.parameters() if p.requires_grad])
        warmup, cooldown = self.update.warmup_steps, self.update.cooldown_steps
        steps = self.trainer.max_steps
        scheduler = LambdaLR(optimizer, lambda step: rate_factor(step, warmup, cooldown, steps))
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Update the policy from one rollout; leaves ``scores`` and ``step_metrics`` for callbacks."""
        experience: Experience = batch["experience"]
        optimizer: Any = self.optimizers()
        self.step_metrics["actor/lr"] = optimizer.param_groups[0]["lr"]
        with dense_pass(self.model), without_reducer(self.trainer.strategy):
            self._update(experience, optimizer)
        scheduler: Any = self.lr_schedulers()
        scheduler.step()

    def _update(self, experience: Experience, optimizer: Any) -> None:
        mask_BT = experience.mask_BT
        one_pass = self.update.single and self.update.denominator == "all" and not self.recipe.whole_batch
        old = None if one_pass else self._score_all(experience)
        plan = self.recipe.plan(experience, old, self.update.denominator, self.trainer.global_step)
        steps = [
            rows
            for epoch in range(self.update.epochs)
            for rows in minibatches(len(experience), self.update.minibatches, self.trainer.global_step + epoch)
        ]
        metrics: list[Metrics] = []
        seen: list[tuple[list[int], Scores]] = []
        for index, rows in enumerate(steps):
            for part, scores, part_metrics in self._backward(experience, rows, old, plan):
                seen.append((part, scores))
                metrics.append(part_metrics)
            self._step(optimizer, experience, counted=index == len(steps) - 1)
        self.scores = old if old is not None else merge(seen, mask_BT.shape)
        self.step_metrics |= {name: mean.value for name, mean in add_metrics(metrics).items()}

    def _score_all(self, experience: Experience) -> Scores:
        """Score the whole rollout without gradient, under the weights that sampled it."""
        parts = []
        with torch.no_grad():
            for rows in self._micro(experience, range(len(experience))):
                parts.append((rows, score(self.model, experience.select(rows), self.rollout.temperature)))
        return merge(parts, experience.tokens_BT.shape)

    def _backward(
        self, experience: Experience, rows: list[int], old: Scores | None, plan: Plan
    ) -> Iterable[tuple[list[int], Scores, Metrics]]:
        """Forward and backward over one mini-batch; yields each micro-batch with its scores and metrics."""
        for part in self._micro(experience, rows):
            micro = experience.select(part)
            scores = score(self.model, micro, self.rollout.temperature, agreement=old is None)
            width = micro.tokens_BT.shape[1]
            sampled = scores.detach() if old is None else old.select(part, width)
            loss, metrics = self.recipe.loss_of(
                micro, scores, sampled, plan.rows(part, width), self.update.entropy_bonus
            )
            self.manual_backward(loss)
            yield part, scores.detach(), metrics

    def _step(self, optimizer: Any, experience: Experience, *, counted: bool) -> None:
        """One optimizer step; only the last of a batch is counted, so that the trainer's step is the RL step."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        all_reduce_gradients(parameters)
        norm = clip_gradients(parameters, self.update.max_grad_norm)
        self.step_metrics["actor/grad_norm"] = norm
        if not check_finite(norm, experience, self.update.on_non_finite, self.trainer):
            optimizer.zero_grad(set_to_none=True)  # a step without gradients leaves the weights as they are
        (optimizer if counted else optimizer.optimizer).step()
        optimizer.zero_grad(set_to_none=True)

    def _micro(self, experience: Experience, rows: Iterable[int]) -> list[list[int]]:
        return microbatches(experience.length_B.tolist(), list(rows), self.update.micro_batch_tokens)
