"""A whole audit: dense against dense, sparse against dense, corrections, and the verdict."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from sparrow.algorithms import GroupedRewards
from sparrow.algorithms.advantages import grpo
from sparrow.algorithms.corrections import Rule
from sparrow.auditing.corrections import Effect, effect_of, gradients_kept, policy_inputs
from sparrow.auditing.measurement import READINGS, Measured, lay_out, measure, sample
from sparrow.auditing.results import (
    Audit,
    Reading,
    disagreement_fit,
    length_correlations,
    read_tail,
    share_below_tau,
    weight_health,
)
from sparrow.auditing.settings import AuditSettings
from sparrow.auditing.tokens import lowest_tokens
from sparrow.auditing.verdict import judge, threshold_for
from sparrow.data import Prompt
from sparrow.evaluation.prompt_tail import PromptTail
from sparrow.evaluation.reading import Decoder, read_samples
from sparrow.modules.passes import head_weight
from sparrow.rewards import Scorer
from sparrow.rollout import Completion, RolloutEngine
from sparrow.schedule import BudgetSchedule


class Auditor:
    """Audits one actor against its policy; nothing is trained.

    Args:
        model: the policy.
        tokenizer: reads responses.
        eos_token_ids: ids that end a response.
        schedule: of the actor.
        settings: the numbers.
        page_score: how pages are ranked.
        seed: of sampling.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Decoder,
        eos_token_ids: Sequence[int],
        schedule: BudgetSchedule,
        settings: AuditSettings,
        *,
        page_score: str,
        seed: int,
    ) -> None:
        self.model, self.tokenizer, self.eos = model, tokenizer, tuple(eos_token_ids)
        self.schedule, self.settings, self.page_score, self.seed = schedule, settings, page_score, seed
        self.seconds: dict[str, float] = {}

    def run(
        self, prompts: Sequence[Prompt], scorer: Scorer | None, rules: Mapping[str, Rule]
    ) -> tuple[Audit, Measured]:
        """Audit on some prompts.

        Args:
            prompts: ``prompts`` x ``batches`` of the settings.
            scorer: judges responses; None: nothing is judged.
            rules: corrections to compare, by name.
        """
        settings = self.settings
        with self._stage("dense"):
            dense = measure(self.model, lay_out(prompts, self._sample(prompts, None)[0], settings), settings)
        with self._stage("sparse"):
            completions, kv_fraction = self._sample(prompts, self.schedule)
            experience = lay_out(prompts, completions, settings)
            sparse = measure(self.model, experience, settings)
        rewards_B, correct_B = self._judge(prompts, completions, experience.group_B, scorer)
        with self._stage("corrections"):
            effects, advantages = self._effects(sparse, rewards_B, correct_B, rules)
        floors, readings = self._readings(dense), self._readings(sparse)
        threshold = threshold_for(self.schedule, settings.tau, settings.estimator)
        floor = floors[threshold.estimator].worst
        verdict = judge(
            threshold,
            readings[threshold.estimator].worst,
            math.inf if floor is None else floor[1].value,
            settings.collapse_below,
        )
        audit = Audit(
            threshold=threshold,
            verdict=verdict,
            floors=floors,
            readings=readings,
            floor_weight_error=dense.weight_error_max,
            below_tau=share_below_tau(self._tail(sparse, threshold.estimator), threshold.tau, settings),
            with_length=length_correlations(sparse, settings),
            beta=disagreement_fit(sparse),
            health=weight_health(sparse),
            effects=effects,
            lowest=lowest_tokens(sparse, self.tokenizer, settings.lowest, settings.context_tokens),
            advantages=advantages,
            correct=math.nan if correct_B is None else float(correct_B.double().mean()),
            kv_fraction=kv_fraction,
            seconds=self.seconds,
        )
        return audit, sparse

    def _sample(self, prompts: Sequence[Prompt], schedule: BudgetSchedule | None) -> tuple[list[Completion], float]:
        settings = self.settings
        engine = RolloutEngine(
            self.model,
            schedule,
            page_score=self.page_score,
            max_batch=settings.max_batch,
            topk=min(settings.top_k_recorded, head_weight(self.model).shape[0]),
        )
        return sample(engine, prompts, settings, self.seed, self.eos)

    def _judge(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], group_B: Tensor, scorer: Scorer | None
    ) -> tuple[Tensor, Tensor | None]:
        if scorer is None:
            return torch.zeros(len(completions)), None
        placed = [
            replace(completion, prompt_index=group)
            for completion, group in zip(completions, group_B.tolist(), strict=True)
        ]
        with self._stage("judging"), scorer:
            outcomes = scorer.score(read_samples(prompts, placed, self.tokenizer))
        labels = torch.tensor([outcome.label == "correct" for outcome in outcomes])
        return torch.tensor([outcome.score for outcome in outcomes], dtype=torch.float32), labels

    def _effects(
        self, measured: Measured, rewards_B: Tensor, correct_B: Tensor | None, rules: Mapping[str, Rule]
    ) -> tuple[dict[str, Effect], str]:
        settings, experience = self.settings, measured.experience
        advantages_B, name = grpo(GroupedRewards(rewards_B, experience.group_B)), "group-relative rewards"
        if not bool(advantages_B.any()):
            advantages_B, name = torch.ones_like(advantages_B), "1 for every token: no group has differing rewards"
        inputs = policy_inputs(measured, advantages_B, self.seed)
        effects = {rule_name: effect_of(rule, inputs, correct_B) for rule_name, rule in rules.items()}
        if settings.gradient_tokens:
            kept = gradients_kept(
                self.model,
                measured,
                inputs,
                rules,
                tokens=settings.gradient_tokens,
                temperature=settings.temperature,
            )
            effects = {key: replace(effect, gradient_kept=kept[key]) for key, effect in effects.items()}
        return effects, name

    def _tail(self, measured: Measured, estimator: str) -> PromptTail:
        schedule, longest = self.schedule, int(measured.experience.length_B.max())
        # A constant budget has one bin, which would hide the length.
        bins = schedule.num_bins if schedule.num_bins > 1 else longest // schedule.bin_tokens + 1
        return measured.tail(estimator, schedule.page_size, schedule.bin_tokens, bins)

    def _readings(self, measured: Measured) -> dict[str, Reading]:
        return {name: read_tail(self._tail(measured, name), self.settings) for name in READINGS}

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
