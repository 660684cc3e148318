"""The replaceable parts of a step put together: advantage, correction, loss, aggregation."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from sparrow.algorithms import GroupedRewards, Metrics, PolicyInputs, TokenLoss
from sparrow.algorithms.aggregation import Counts, count
from sparrow.algorithms.corrections import Rule
from sparrow.algorithms.losses import ChoosingLoss
from sparrow.algorithms.objective import Denominator, Penalty, counted, policy_objective
from sparrow.distributed import gather_objects, world_size
from sparrow.modules.compatibility import check_recipe
from sparrow.modules.experience import Experience
from sparrow.modules.gradients import global_sum
from sparrow.modules.scoring import Scores
from sparrow.ranges import check_arguments


@dataclass(frozen=True)
class Plan:
    """What must be known of the whole batch, over all ranks, before it is split.

    Attributes:
        counts: denominators.
        denominator: which tokens they count.
        totals: batch sums of a correction that compares a token with the whole batch, or None.
        noise_BT: uniform numbers for parts that choose tokens at random, or None.
        chosen_BT: tokens that a loss picked over the whole batch, or None.
    """

    counts: Counts
    denominator: Denominator = "all"
    totals: Tensor | None = None
    noise_BT: Tensor | None = None
    chosen_BT: Tensor | None = None

    def rows(self, index: list[int], width: int) -> "Plan":
        """The same for the rows of a micro-batch of ``width`` positions."""
        return replace(
            self,
            counts=self.counts.rows(torch.tensor(index)),
            noise_BT=None if self.noise_BT is None else self.noise_BT[index, :width],
            chosen_BT=None if self.chosen_BT is None else self.chosen_BT[index, :width],
        )


@dataclass(frozen=True)
class Recipe:
    """One algorithm.

    Attributes:
        advantage: grouped rewards to one advantage per sample.
        correction: weight and mask of each token for the gap between actor and policy.
        loss: loss of each token.
        aggregation: from token losses to one number.

    Raises:
        ValueError: correction and loss do not go together, the message says why; or a number given to a part is out
            of its range.
    """

    advantage: Callable[[GroupedRewards], Tensor]
    correction: Rule
    loss: Callable[[PolicyInputs], TokenLoss]
    aggregation: Callable[[Tensor, Tensor, Tensor, Counts], Tensor]

    def __post_init__(self) -> None:
        check_recipe(self.correction, self.loss)
        for group in ("advantage", "loss", "aggregation"):
            part = getattr(self, group)
            if isinstance(part, partial):
                check_arguments(group, part.func, part.keywords)

    @property
    def whole_batch(self) -> bool:
        """Whether old log-probs of the whole batch are needed before the first backward."""
        return self.correction.needs_totals or self._chooses

    @property
    def _chooses(self) -> bool:
        return hasattr(self.loss, "choose")

    def plan(self, experience: Experience, old: Scores | None, denominator: Denominator, seed: int) -> Plan:
        """Denominators, batch sums and random choices of a rollout, over all ranks.

        Args:
            experience: this rank's rollout.
            old: scores of all of it, or None where one pass does everything.
            denominator: which tokens a mean divides by.
            seed: of the random choices.

        Raises:
            ValueError: a part needs the scores of the whole rollout and ``old`` is None.
        """
        mask_BT = experience.mask_BT
        plan = Plan(_global_counts(mask_BT, experience.group_B), noise_BT=self._noise(mask_BT, seed))
        if old is None:
            if self.whole_batch or denominator == "kept":
                raise ValueError("the correction of the whole batch needs its scores first: old is None")
            return plan
        inputs = _inputs(experience, old, old, plan)
        if self.correction.needs_totals:
            sums = self.correction.statistics(inputs)
            totals = torch.tensor([global_sum(value, sums.device) for value in sums], dtype=sums.dtype)
            plan = replace(plan, totals=totals)
        if self._chooses:
            plan = replace(plan, chosen_BT=cast(ChoosingLoss, self.loss).choose(inputs))
        keep_BT = self.correction(inputs, plan.totals).keep_BT
        counted_BT = counted(mask_BT, keep_BT, denominator)
        return replace(plan, counts=_global_counts(counted_BT, experience.group_B), denominator=denominator)

    def _noise(self, mask_BT: Tensor, seed: int) -> Tensor | None:
        needs = self.correction.needs | getattr(self.loss, "needs", frozenset())
        if "noise_BT" not in needs:
            return None
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(mask_BT.shape, generator=generator).to(mask_BT.device)

    def loss_of(
        self,
        experience: Experience,
        scores: Scores,
        sampled: Scores,
        plan: Plan,
        entropy_bonus: float,
        penalties: Sequence[Penalty] = (),
    ) -> tuple[Tensor, Metrics]:
        """The micro-batch's share of the loss, and its metrics.

        Args:
            experience: the micro-batch.
            scores: under the current weights, with gradient.
            sampled: under the weights that sampled, without.
            plan: of the whole batch, rows of this micro-batch.
            entropy_bonus: factor of the mean entropy.
            penalties: further terms of each token.
        """
        objective = policy_objective(
            _inputs(experience, scores, sampled, plan),
            loss=self.loss,
            correction=self.correction,
            aggregate=self.aggregation,
            counts=plan.counts,
            denominator=plan.denominator,
            penalties=[Penalty("entropy", -entropy_bonus, scores.entropy_BT), *penalties],
            totals=plan.totals,
        )
        return objective.loss, objective.metrics


def _global_counts(counted_BT: Tensor, group_B: Tensor) -> Counts:
    """Counts over all ranks, on which the rows of one group may lie apart; those by row are of this rank's rows."""
    if world_size() == 1:
        return count(counted_BT, group_B)
    own = list(zip(group_B.tolist(), counted_BT.sum(-1).tolist(), strict=True))
    everyone = [row for rows in gather_objects(own) for row in rows]
    totals: Counter[int] = Counter()
    for group, tokens in everyone:
        totals[group] += tokens
    return Counts(
        tokens=float(totals.total()),
        sequences=float(sum(tokens > 0 for _, tokens in everyone)),
        prompts=float(sum(tokens > 0 for tokens in totals.values())),
        prompt_tokens_B=torch.tensor([totals[group] for group, _ in own], device=counted_BT.device),
    )


def _inputs(experience: Experience, scores: Scores, sampled: Scores, plan: Plan) -> PolicyInputs:
    mask_BT = experience.mask_BT
    return PolicyInputs(
        dense_logprobs_BT=scores.logprobs_BT,
        old_logprobs_BT=sampled.logprobs_BT,
        sparse_logprobs_BT=experience.sparse_logprobs_BT,
        advantages_BT=experience.advantages_B[:, None].expand(mask_BT.shape),
        mask_BT=mask_BT,
        alpha_BT=sampled.alpha_BT,
        entropy_BT=scores.entropy_BT,
        group_B=experience.group_B,
        noise_BT=plan.noise_BT,
        chosen_BT=plan.chosen_BT,
    )
