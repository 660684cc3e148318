"""The heart of a step: sample with the sparse actor, judge, compare within groups, hand the result to the module.

Generation happens here, before the training step, over the very weights that are trained; the module only learns
from what lies in the batch.
"""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import lightning
import torch
from torch import Tensor

from sparrow.algorithms import GroupedRewards
from sparrow.callbacks.baseline import Unjudged, group_advantages
from sparrow.callbacks.progress import rollout_progress
from sparrow.data import Prompt
from sparrow.evaluation.reading import Decoder, read_samples
from sparrow.modules import DensePolicy, RolloutSettings, collect
from sparrow.rewards import LABELS, Outcome, Scorer
from sparrow.rollout import Completion, RolloutEngine


class Rollout(lightning.Callback):
    """Writes an :class:`Experience` into each training batch.

    Args:
        tokenizer: turns completions into the text that is judged.
        scorer: judges completions.
        seed: of the run; a token's draw depends on (seed, step, prompt, sample, position) alone.
        eos_token_ids: every id that ends a completion.
        unjudged: whether samples on which the verifier failed count in their group's baseline, see
            `sparrow.callbacks.baseline`.
    """

    def __init__(
        self,
        tokenizer: Decoder,
        scorer: Scorer,
        seed: int,
        eos_token_ids: Sequence[int],
        unjudged: Unjudged = "baseline",
    ) -> None:
        self.unjudged: Unjudged = unjudged
        self.tokenizer = tokenizer
        self.scorer = scorer
        self.seed = seed
        self.eos_token_ids = tuple(eos_token_ids)
        self.engine: RolloutEngine | None = None

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Build the engine over the module's weights."""
        assert isinstance(pl_module, DensePolicy)
        settings = pl_module.rollout
        self.engine = RolloutEngine(
            pl_module.model,
            pl_module.schedule,
            page_score=settings.page_score,
            max_batch=settings.max_batch,
            max_cached_tokens=settings.max_cached_tokens,
            topk=settings.top_k_recorded if settings.alpha == "bounds" else 0,
        )

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Sample, judge, compute advantages, and put the experience into ``batch``."""
        assert isinstance(pl_module, DensePolicy)
        pl_module.step_started = started = time.perf_counter()
        completions = self._sample(trainer, pl_module, batch["prompts"])
        sampled = time.perf_counter()
        outcomes = self.judge(batch["prompts"], completions)
        judged = time.perf_counter()
        rewards = [outcome.score for outcome in outcomes]
        group_B = torch.tensor([completion.prompt_index for completion in completions])
        length_B = torch.tensor([len(completion.token_ids) for completion in completions])
        grouped = GroupedRewards(torch.tensor(rewards), group_B, length_B)
        advantages_B = group_advantages(pl_module.recipe.advantage, grouped, outcomes, self.unjudged)
        prompts = [batch["prompts"][completion.prompt_index].token_ids for completion in completions]
        experience = collect(prompts, completions, rewards, advantages_B, group_B)
        batch["experience"] = experience.to(pl_module.device)
        tokens = sum(len(completion.token_ids) for completion in completions)
        pl_module.step_metrics = {
            "timing_s/gen": sampled - started,
            "timing_s/reward": judged - sampled,
            "perf/rollout_tokens_per_s": tokens / (sampled - started),
            **self._reward_metrics(outcomes, advantages_B),
            **self._length_metrics(completions),
            **self._cache_metrics(pl_module),
        }

    def judge(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> list[Outcome]:
        """Outcome of every completion; only the completion's own text is read."""
        return self.scorer.score(read_samples(prompts, completions, self.tokenizer))

    def _sample(self, trainer: lightning.Trainer, module: DensePolicy, prompts: Sequence[Prompt]) -> list[Completion]:
        assert self.engine is not None
        settings: RolloutSettings = module.rollout
        if self.engine.schedule != module.schedule:  # a callback may have moved it
            self.engine.set_schedule(module.schedule)
        self.engine.refresh()
        with rollout_progress(trainer, len(prompts) * settings.samples) as progress:
            return self.engine.generate(
                [prompt.token_ids for prompt in prompts],
                n=settings.samples,
                max_new_tokens=settings.max_new_tokens,
                temperature=settings.temperature,
                seed=self.seed,
                step=trainer.global_step,
                prompt_keys=[prompt.key for prompt in prompts],
                eos_token_ids=self.eos_token_ids,
                adapter=module.actor_adapter,
                record=module.record,
                progress=progress,
            )

    def _reward_metrics(self, outcomes: Sequence[Outcome], advantages_B: Tensor) -> dict[str, float]:
        scores = torch.tensor([outcome.score for outcome in outcomes])
        counts = Counter(outcome.label for outcome in outcomes)
        metrics = {f"rewards/outcome/{label}": counts[label] / len(outcomes) for label in LABELS}
        for name, values in (("score", scores), ("advantages", advantages_B)):
            metrics |= {f"critic/{name}/{stat}": float(getattr(values, stat)()) for stat in ("mean", "max", "min")}
        return metrics

    def _length_metrics(self, completions: Sequence[Completion]) -> dict[str, float]:
        lengths = torch.tensor([float(len(completion.token_ids)) for completion in completions])
        clipped = sum(completion.finish_reason == "length" for completion in completions)
        metrics = {f"response_length/{stat}": float(getattr(lengths, stat)()) for stat in ("mean", "max", "min")}
        return metrics | {"response_length/clip_ratio": clipped / len(completions)}

    def _cache_metrics(self, module: DensePolicy) -> dict[str, float]:
        assert self.engine is not None
        statistics = self.engine.last_stats
        assert statistics is not None
        pages = {
            f"schedule/pages/bin_{index}": float(count)
            for index, count in enumerate(module.schedule.table)
            if not module.schedule.is_dense
        }
        return {
            "schedule/kv_fraction": statistics.kv_fraction,
            "schedule/kv_fraction_sparse_layers": statistics.kv_fraction_sparse_layers,
            **pages,
        }
