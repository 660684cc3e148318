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
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sparrow.algorithms import Metrics, add_metrics
from sparrow.algorithms.objective import Penalty
from sparrow.distributed import Sharded, is_sharded, max_over_ranks, resharded, shard
from sparrow.models.adapter import base_model
from sparrow.models.architecture import from_config
from sparrow.models.attention import SparsePass
from sparrow.models.loading import recompute_layers
from sparrow.modules.compatibility import check_together
from sparrow.modules.experience import Experience
from sparrow.modules.gradients import all_reduce_gradients, clip_gradients, without_reducer
from sparrow.modules.microbatches import microbatches
from sparrow.modules.non_finite import check_finite
from sparrow.modules.passes import dense_pass, head_weight, hidden_states, idle_pass, predicting
from sparrow.modules.recipe import Plan, Recipe
from sparrow.modules.reference import Reference, ReferenceSettings, Side
from sparrow.modules.scoring import Scores, merge, scatter, score_states
from sparrow.modules.settings import RolloutSettings, UpdateSettings, rate_factor
from sparrow.modules.sharing import Sharing, bring_home, send_out, share_out
from sparrow.modules.snapshot import Snapshot, check_shapes
from sparrow.modules.stopwatch import Stopwatch
from sparrow.schedule import BudgetSchedule

HELD = "sparrow/actor"
"""Name of the actor's held weights in a checkpoint."""


class DensePolicy(lightning.LightningModule):
    """Trains a causal LM on sparse rollouts.

    Args:
        model: a transformers causal LM of a supported family.
        schedule: the page budget of the actor.
        recipe: advantage, correction, loss and aggregation.
        optimizer: builds the optimizer from parameters.
        rollout: how the actor samples.
        update: how a rollout becomes optimizer steps.
        reference: the policy that this one is held to, if any.

    Attributes:
        scores: of the last step's rollout, under the weights that sampled it.
        step_metrics: numbers of the step, filled by whoever measures one.
        results: numbers measured at the end of a run, for its summary.
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
        reference: ReferenceSettings | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        check_together(recipe, rollout, reference or ReferenceSettings())
        self.reference = Reference(reference or ReferenceSettings(), model)
        self.held = Snapshot(model) if rollout.refresh_every > 1 else None
        self.model = model.train()
        if update.recompute:
            recompute_layers(self.model)
        self.sizes = from_config(base_model(model).config)
        self.sharing = Sharing((), (), 0)
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
    def actor_adapter(self) -> bool:
        """Whether the actor samples with an adapter."""
        return False

    @property
    def actor(self) -> nn.Module:
        """The model with the weights that sample: the policy itself, or what was held at the last refresh."""
        return self.model if self.held is None else self.held.model

    @property
    def staleness(self) -> int:
        """RL steps since the actor's weights were refreshed."""
        return self.trainer.global_step % self.rollout.refresh_every

    def refresh_actor(self) -> None:
        """Take over the policy's weights for sampling, where this step is due to."""
        if self.held is not None and self.staleness == 0:
            self.held.copy_from(self.model)

    @property
    def record(self) -> tuple[str, ...]:
        """What the engine must record while it samples."""
        return self.rollout.record

    def configure_model(self) -> None:
        """Spread the weights over ranks where the strategy does so; Lightning may call it more than once."""
        strategy = self.trainer.strategy
        if isinstance(strategy, Sharded):
            shard(self.model, strategy.device_mesh["data_parallel"], strategy.compute_dtype)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """One optimizer over the policy's parameters; its learning rate rises and falls by RL steps."""
        return self._scheduled(self.make_optimizer([p for p in self.model.parameters() if p.requires_grad]))

    def _scheduled(self, optimizer: Optimizer) -> OptimizerLRSchedulerConfig:
        warmup, cooldown = self.update.warmup_steps, self.update.cooldown_steps
        steps = self.trainer.max_steps
        scheduler = LambdaLR(optimizer, lambda step: rate_factor(step, warmup, cooldown, steps))
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_fit_start(self) -> None:
        """Bring what is held beside the policy to its device."""
        for snapshot in (self.reference.snapshot, self.held):
            if snapshot is not None:
                snapshot.to(self.device)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the weights that sample, if they are not the policy's own."""
        if self.held is not None:
            checkpoint[HELD] = self.held.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Sample on with the weights that did.

        Raises:
            KeyError: the checkpoint is of a run whose actor was always fresh.
            ValueError: it is of another model.
        """
        check_shapes(self.state_dict(), checkpoint.get("state_dict", {}))
        if self.held is None:
            return
        if HELD not in checkpoint:
            raise KeyError(
                f"rollout.refresh_every={self.rollout.refresh_every}: the checkpoint holds no weights of an actor: "
                "it was written with refresh_every=1"
            )
        self.held.load_state_dict(checkpoint[HELD])

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Update the policy from one rollout; leaves ``scores`` and ``step_metrics`` for callbacks."""
        experience: Experience = batch["experience"]
        found: Any = self.optimizers()
        optimizer = found[0] if isinstance(found, list) else found
        self.step_metrics["actor/lr"] = optimizer.param_groups[0]["lr"]
        self.stopwatch = Stopwatch()
        self.sharing = share_out(experience, self.sizes, balance=self.update.balance)
        with dense_pass(self.model), without_reducer(self.trainer.strategy):
            self._update(send_out(experience, self.sharing), optimizer)
        assert self.scores is not None
        self.scores = bring_home(self.scores, experience, self.sharing)
        schedulers: Any = self.lr_schedulers()
        for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
            scheduler.step()
        self.step_metrics |= {f"timing_s/{name}": seconds for name, seconds in self.stopwatch.seconds.items()}

    def _update(self, experience: Experience, optimizer: Any) -> None:
        mask_BT = experience.mask_BT
        one_pass = self.update.single and self.update.denominator == "all" and not self.recipe.whole_batch
        one_pass = one_pass and self.staleness == 0
        old = None if one_pass else self._score_all(experience)
        plan = self.recipe.plan(experience, old, self.update.denominator, self.trainer.global_step)
        steps = [
            rows
            for epoch in range(self.update.epochs)
            for rows in self.sharing.steps(self.update.minibatches, self.trainer.global_step + epoch)
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
        with (
            torch.no_grad(),
            self.stopwatch.part("old_logprobs", self.device),
            dense_pass(self.actor),
            resharded(self.actor),
        ):
            for rows in self._micro(experience, range(len(experience)), self.actor):
                if rows:
                    parts.append((rows, self._score(self.actor, rows, experience.select(rows), sampled=True)[0]))
                else:
                    self._idle(self.actor)
        return merge(parts, experience.tokens_BT.shape)

    def _score(self, model: nn.Module, rows: list[int], micro: Experience, *, sampled: bool) -> tuple[Scores, Tensor]:
        """Score the rows of a micro-batch by the dense pass.

        Args:
            model: the policy, or its actor where that is held.
            rows: the micro-batch's places in the rollout.
            micro: the micro-batch.
            sampled: the weights are those that sampled, so that alpha can be measured.

        Returns:
            Scores, and the hidden states [X, E] that they come from.
        """
        hidden_XE = predicting(hidden_states(model, micro.tokens_BT), micro.mask_BT)
        scores = score_states(hidden_XE, head_weight(model), micro, self.rollout.temperature, agreement=sampled)
        return scores, hidden_XE

    def _backward(
        self, experience: Experience, rows: list[int], old: Scores | None, plan: Plan
    ) -> Iterable[tuple[list[int], Scores, Metrics]]:
        """Forward and backward over one mini-batch; yields each micro-batch with its scores and metrics."""
        for part in self._micro(experience, rows, self.model):
            if not part:
                self._idle(self.model)
                continue
            micro = experience.select(part)
            scores, hidden_XE = self._score(self.model, part, micro, sampled=old is None)
            width = micro.tokens_BT.shape[1]
            sampled = scores.detach() if old is None else old.select(part, width)
            loss, metrics = self.recipe.loss_of(
                micro,
                scores,
                sampled,
                plan.rows(part, width),
                self.update.entropy_bonus,
                self._penalties(micro, scores, hidden_XE),
            )
            self.manual_backward(loss)
            yield part, scores.detach(), metrics

    def _penalties(self, micro: Experience, scores: Scores, hidden_XE: Tensor) -> list[Penalty]:
        """The distance to the reference as a term of the loss."""
        settings = self.reference.settings
        if not settings.in_loss:
            return []
        policy = Side(scores.logprobs_BT[micro.mask_BT], hidden_XE, head_weight(self.model))
        distance_BT = scatter(self.reference.of_current(policy, micro, self.rollout.temperature), micro.mask_BT)
        assert distance_BT is not None
        return [Penalty("kl_loss", settings.coefficient, distance_BT)]

    def reward_penalty(self, experience: Experience) -> tuple[Tensor, float]:
        """What the reference takes off the rewards of a rollout that was just sampled.

        Returns:
            [B] the coefficient times the distance summed over each completion, and the mean distance of a token.
        """
        distance_BT = torch.zeros_like(experience.sparse_logprobs_BT)
        with torch.no_grad(), resharded(self.actor):
            for rows in self._micro(experience, range(len(experience)), self.actor):
                if not rows:
                    with dense_pass(self.actor):
                        self._idle(self.actor)
                    continue
                micro = experience.select(rows)
                part_X = self.reference.of_actor(self.actor, micro, self.rollout.temperature)
                part_BT = scatter(part_X, micro.mask_BT)
                assert part_BT is not None
                distance_BT[rows, : part_BT.shape[1]] = part_BT
        mean = float(distance_BT.sum() / experience.mask_BT.sum())
        return self.reference.settings.coefficient * distance_BT.sum(-1), mean

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

    def _micro(self, experience: Experience, rows: Iterable[int], model: nn.Module) -> list[list[int]]:
        """Micro-batches of this rank; for a sharded model filled up with empty ones, equally many on every rank."""
        parts = microbatches(experience.length_B.tolist(), list(rows), self.update.micro_batch_tokens)
        if is_sharded(model):
            parts += [[] for _ in range(max_over_ranks(len(parts), self.device) - len(parts))]
        return parts

    def _idle(self, model: nn.Module, sparse: SparsePass | None = None) -> None:
        """The part of an empty micro-batch in what all ranks do together."""
        nothing = idle_pass(model, self.device, sparse)
        if torch.is_grad_enabled():
            self.manual_backward(nothing)
