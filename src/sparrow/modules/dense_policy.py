"""The policy that is trained: dense attention, scored and updated on what the sparse actor sampled.

One batch is one RL step: the rollout callback has put an :class:`Experience` into it. With one mini-batch and one
epoch, old and current log-probs are the same numbers and one pass gives everything; otherwise the whole batch is
scored once, without gradient, before the first optimizer step.
"""

from collections.abc import Callable, Iterable
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler, OptimizerLRSchedulerConfig
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
from sparrow.modules.stopwatch import Stopwatch
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

    Attributes:
        scores: of the last step's rollout, under the weights that sampled it.
        step_metrics: numbers of the step, filled by whoever measures one.
        results: numbers measured at the end of a run, for its summary.
    """

    actor_adapter = False
    """Whether the actor samples with an adapter."""

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
        self.results: dict[str, float] = {}
        self.stopwatch = Stopwatch()

    @property
    def record(self) -> tuple[str, ...]:
        """What the engine must record while it samples."""
        return self.rollout.record

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """One optimizer over the policy's parameters; its learning rate rises and falls by RL steps."""
        return self._scheduled(self.make_optimizer([p for p in self.model.parameters() if p.requires_grad]))

    def _scheduled(self, optimizer: Optimizer) -> OptimizerLRSchedulerConfig:
        warmup, cooldown = self.update.warmup_steps, self.update.cooldown_steps
        steps = self.trainer.max_steps
        scheduler = LambdaLR(optimizer, lambda step: rate_factor(step, warmup, cooldown, steps))
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Update the policy from one rollout; leaves ``scores`` and ``step_metrics`` for callbacks."""
        experience: Experience = batch["experience"]
        found: Any = self.optimizers()
        optimizer = found[0] if isinstance(found, list) else found
        self.step_metrics["actor/lr"] = optimizer.param_groups[0]["lr"]
        self.stopwatch = Stopwatch()
        with dense_pass(self.model), without_reducer(self.trainer.strategy):
            self._update(experience, optimizer)
        schedulers: Any = self.lr_schedulers()
        for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
            scheduler.step()
        self.step_metrics |= {f"timing_s/{name}": seconds for name, seconds in self.stopwatch.seconds.items()}

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
            with self.stopwatch.part("dense_pass", self.device):
                for part, scores, part_metrics in self._backward(experience, rows, old, plan):
                    seen.append((part, scores))
                    metrics.append(part_metrics)
            if index == 0:  # without old scores there is one step only, and it has seen the whole rollout
                self.scores = old if old is not None else merge(seen, mask_BT.shape)
                self._before_first_step(experience, self.scores)
            self._prepare(optimizer, experience, "actor")
            (optimizer if index == len(steps) - 1 else optimizer.optimizer).step()
            optimizer.zero_grad(set_to_none=True)
        self._after_last_step(experience)
        self.step_metrics |= {name: mean.value for name, mean in add_metrics(metrics).items()}

    def _before_first_step(self, experience: Experience, scores: Scores) -> None:
        """For what must see the weights that sampled; ``scores`` are of the whole rollout under them."""

    def _after_last_step(self, experience: Experience) -> None:
        """For what comes after the policy's own steps."""

    def _score_all(self, experience: Experience) -> Scores:
        """Score the whole rollout without gradient, under the weights that sampled it."""
        parts = []
        with torch.no_grad(), self.stopwatch.part("old_logprobs", self.device):
            for rows in self._micro(experience, range(len(experience))):
                parts.append((rows, self._score(rows, experience.select(rows), sampled=True)))
        return merge(parts, experience.tokens_BT.shape)

    def _score(self, rows: list[int], micro: Experience, *, sampled: bool) -> Scores:
        """Score the rows of a micro-batch by the dense pass; ``sampled``: first, under the weights that sampled."""
        return score(self.model, micro, self.rollout.temperature, agreement=sampled)

    def _backward(
        self, experience: Experience, rows: list[int], old: Scores | None, plan: Plan
    ) -> Iterable[tuple[list[int], Scores, Metrics]]:
        """Forward and backward over one mini-batch; yields each micro-batch with its scores and metrics."""
        for part in self._micro(experience, rows):
            micro = experience.select(part)
            scores = self._score(part, micro, sampled=old is None)
            width = micro.tokens_BT.shape[1]
            sampled = scores.detach() if old is None else old.select(part, width)
            loss, metrics = self.recipe.loss_of(
                micro, scores, sampled, plan.rows(part, width), self.update.entropy_bonus
            )
            self.manual_backward(loss)
            yield part, scores.detach(), metrics

    def _prepare(self, optimizer: Any, experience: Experience, name: str) -> None:
        """Sum the gradients of one optimizer over ranks, clip and check them.

        Only the last step of a batch is then taken through Lightning, which counts it, so that the trainer's step is
        the RL step; the others go to the optimizer itself.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        all_reduce_gradients(parameters)
        norm = clip_gradients(parameters, self.update.max_grad_norm)
        self.step_metrics[f"{name}/grad_norm"] = norm
        if not check_finite(norm, experience, self.update.on_non_finite, self.trainer):
            optimizer.zero_grad(set_to_none=True)  # a step without gradients leaves the weights as they are

    def _micro(self, experience: Experience, rows: Iterable[int]) -> list[list[int]]:
        return microbatches(experience.length_B.tolist(), list(rows), self.update.micro_batch_tokens)
