"""The heart of a step: sample with the sparse actor, judge, compare within groups, hand the result to the module.

Generation happens here, before the training step, over the very weights that are trained (or those that the module
holds for its actor, `rollout.refresh_every`); the module only learns from what lies in the batch.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import lightning
import torch

from sparrow.algorithms import GroupedRewards
from sparrow.algorithms.advantages.remax import needs_baseline
from sparrow.callbacks.baseline import FAILED, Unjudged, advantages_of_all_ranks
from sparrow.callbacks.groups import Group, extra_prompts, keys_of_all_ranks
from sparrow.callbacks.progress import rollout_progress
from sparrow.callbacks.rollout_metrics import Tally, cache_metrics, filter_metrics, group_metrics
from sparrow.data import Prompt, PromptDataModule
from sparrow.distributed import failing_together, gather_objects, gathered, own_rank
from sparrow.evaluation.reading import Decoder, read_samples
from sparrow.modules import DensePolicy, Experience, RolloutSettings, collect
from sparrow.rewards import Outcome, Scorer
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
        self.tally = Tally()

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Build the engine over the actor's weights, so that what does not fit the model is told at once."""
        assert isinstance(pl_module, DensePolicy)
        self.engine = _engine(pl_module)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Build it anew over the weights where they now are: on their device, or spread over ranks."""
        assert isinstance(pl_module, DensePolicy)
        self.engine = None  # it holds on to weights that were whole
        with gathered(pl_module.actor):
            self.engine = _engine(pl_module)

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Sample, judge, compute advantages, and put the experience into ``batch``.

        Raises:
            RankFailed: another rank's rollout or reward has failed.
        """
        assert isinstance(pl_module, DensePolicy)
        pl_module.step_started = time.perf_counter()
        self.tally = Tally()
        pl_module.refresh_actor()
        taken = keys_of_all_ranks(batch["prompts"]) if pl_module.rollout.filter_groups else set()
        with gathered(pl_module.actor), failing_together():
            groups, filtered = self._groups(trainer, pl_module, batch["prompts"], taken)
        experience, penalised = self._experience(pl_module, groups)
        batch["experience"] = experience
        batch["outcomes"] = [outcome for group in groups for outcome in group.judged]
        pl_module.step_metrics = {
            **self.tally.metrics(),
            **group_metrics(groups, experience.advantages_B),
            **cache_metrics(self.tally.stats, pl_module.schedule),
            **filtered,
            **penalised,
            "off_policy/staleness": float(pl_module.staleness),
        }

    def judge(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion]
    ) -> tuple[list[Outcome], list[Outcome]]:
        """Outcomes of completions as the verifier gives them, and with the reward's shaping by length.

        Only the completion's own text is read.
        """
        started = time.perf_counter()
        judged = self.scorer.judge(read_samples(prompts, completions, self.tokenizer))
        outcomes = list(judged)
        for shape in self.scorer.shaping:
            outcomes = [shape(o, len(c.token_ids)) for o, c in zip(outcomes, completions, strict=True)]
        self.tally.reward_s += time.perf_counter() - started
        return judged, outcomes

    def _groups(
        self, trainer: lightning.Trainer, module: DensePolicy, prompts: Sequence[Prompt], taken: set[int]
    ) -> tuple[list[Group], dict[str, float]]:
        """The groups that train, and what dynamic sampling did; ``taken`` are the step's prompts over all ranks.

        Ranks sample differently often here, so nothing in it may be a collective.

        With ``rollout.filter_groups`` groups of equal scores are left out and further prompts are sampled for them,
        ``rollout.max_tries`` times in all. A step that found no group with differing scores keeps its first ones,
        whose advantages are 0.
        """
        settings = module.rollout
        seen = first = self._sample_groups(trainer, module, prompts)
        if not settings.filter_groups:
            return first, {}
        data = trainer.datamodule  # type: ignore[attr-defined]  # set by fit(datamodule=...), missing in the stubs
        assert isinstance(data, PromptDataModule)
        further = extra_prompts(
            data.train_prompts,
            taken,
            seed=self.seed,
            step=trainer.global_step,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
        )
        kept = [group for group in first if group.mixed(self.unjudged)]
        tries = 1
        while len(kept) < len(prompts) and tries < settings.max_tries:
            more = list(islice(further, len(prompts) - len(kept)))
            if not more:
                break  # the whole set was tried
            tried = self._sample_groups(trainer, module, more)
            seen = [*seen, *tried]
            kept += [group for group in tried if group.mixed(self.unjudged)]
            tries += 1
        return kept or first, filter_metrics(seen, len(kept), tries)

    def _sample_groups(self, trainer: lightning.Trainer, module: DensePolicy, prompts: Sequence[Prompt]) -> list[Group]:
        """Sample and judge a group for each prompt, and keep its best samples where more were drawn."""
        settings = module.rollout
        samples = settings.samples * settings.oversample
        completions = self._generate(trainer, module, prompts, samples, settings.temperature, module.record)
        judged, outcomes = self.judge(prompts, completions)
        self.tally.sampled(outcomes)
        baselines: Sequence[Outcome | None] = [None] * len(prompts)
        if needs_baseline(module.recipe.advantage):
            baselines = self.judge(prompts, self._generate(trainer, module, prompts, 1, 0.0, ()))[1]
        groups = []
        for index, prompt in enumerate(prompts):
            own = slice(index * samples, (index + 1) * samples)
            group = Group(prompt, completions[own], judged[own], outcomes[own], baselines[index])
            groups.append(group.best(settings.samples))
        return groups

    def _generate(
        self,
        trainer: lightning.Trainer,
        module: DensePolicy,
        prompts: Sequence[Prompt],
        samples: int,
        temperature: float,
        record: Sequence[str],
    ) -> list[Completion]:
        """Completions of the actor, ordered by (prompt, sample); temperature 0 is greedy."""
        assert self.engine is not None
        settings: RolloutSettings = module.rollout
        if self.engine.schedule != module.schedule:  # a callback may have moved it
            self.engine.set_schedule(module.schedule)
        started = time.perf_counter()
        with rollout_progress(trainer, len(prompts) * samples) as progress:
            completions = self.engine.generate(
                [prompt.token_ids for prompt in prompts],
                n=samples,
                max_new_tokens=settings.max_new_tokens,
                temperature=temperature,
                seed=self.seed,
                step=trainer.global_step,
                prompt_keys=[prompt.key for prompt in prompts],
                eos_token_ids=self.eos_token_ids,
                adapter=module.actor_adapter,
                record=record,
                progress=progress,
            )
        self.tally.generated(time.perf_counter() - started, self.engine.last_stats)
        return completions

    def _experience(self, module: DensePolicy, groups: Sequence[Group]) -> tuple[Experience, dict[str, float]]:
        """The groups as one batch with advantages, and what a reference took off their rewards."""
        completions = [completion for group in groups for completion in group.completions]
        outcomes = [outcome for group in groups for outcome in group.outcomes]
        prompts = [group.prompt.token_ids for group in groups for _ in group.completions]
        first = sum(gather_objects(len(groups))[: own_rank()])  # ids of groups are those of all ranks together
        group_B = torch.tensor([first + index for index, group in enumerate(groups) for _ in group.completions])
        rewards = [outcome.score for outcome in outcomes]
        experience = collect(prompts, completions, rewards, torch.zeros(len(rewards)), group_B).to(module.device)
        rewards_B = torch.tensor(rewards)
        penalised: dict[str, float] = {}
        if module.reference.settings.in_reward:
            rewards_B, penalised = self._penalised(module, experience, rewards_B)
        length_B = torch.tensor([len(completion.token_ids) for completion in completions])
        baselines = [group.baseline for group in groups for _ in group.completions]
        grouped = GroupedRewards(rewards_B, group_B, length_B, _scores(baselines))
        told = [
            baseline if baseline is not None and baseline.label in FAILED else outcome
            for outcome, baseline in zip(outcomes, baselines, strict=True)
        ]  # without a judged baseline the sample's advantage is as unknown as without its own judgement
        advantages_B = advantages_of_all_ranks(module.recipe.advantage, grouped, told, self.unjudged)
        device = module.device
        return replace(experience, rewards_B=rewards_B.to(device), advantages_B=advantages_B.to(device)), penalised

    def _penalised(
        self, module: DensePolicy, experience: Experience, rewards_B: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, float]]:
        started = time.perf_counter()
        penalty_B, distance = module.reward_penalty(experience)
        rewards_B = rewards_B - penalty_B.cpu()
        metrics = {f"critic/rewards/{stat}": float(getattr(rewards_B, stat)()) for stat in ("mean", "max", "min")}
        return rewards_B, {
            "actor/reward_kl_penalty": distance,
            "timing_s/ref": time.perf_counter() - started,
            **metrics,
        }


def _engine(module: DensePolicy) -> RolloutEngine:
    """The engine of a run; what it says of its own arguments is said of the keys of ``rollout``."""
    try:
        return _engine_of(module)
    except ValueError as error:
        argument, equals, rest = str(error).partition("=")
        key = {"topk": "top_k_recorded"}.get(argument, argument)
        if not hasattr(module.rollout, key):
            raise
        raise ValueError(f"rollout.{key}{equals}{rest}") from error


def _engine_of(module: DensePolicy) -> RolloutEngine:
    settings = module.rollout
    return RolloutEngine(
        module.actor,
        module.schedule,
        page_score=settings.page_score,
        max_batch=settings.max_batch,
        max_cached_tokens=settings.max_cached_tokens,
        draft_tokens=settings.draft_tokens,
        keep_pool=settings.keep_pool,
        poll_every=settings.poll_every,
        graphs=settings.graphs,
        topk=settings.top_k_recorded if settings.alpha == "bounds" else 0,
    )


def _scores(outcomes: Sequence[Outcome | None]) -> torch.Tensor | None:
    known = [outcome.score for outcome in outcomes if outcome is not None]
    return torch.tensor(known) if known else None
