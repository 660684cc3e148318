"""Sparse against dense rollouts on the trained policy, measured in one run: speed, and the numerical floor."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparrow.data import Prompt
from sparrow.metrics import TailAcceptance
from sparrow.modules import DensePolicy, collect_unjudged, score
from sparrow.modules.passes import dense_pass
from sparrow.rollout import Completion, RolloutEngine
from sparrow.schedule import BudgetSchedule


@dataclass(frozen=True)
class Comparison:
    """What was measured.

    Attributes:
        sparse_tokens_per_s: rollout speed under the run's schedule.
        dense_tokens_per_s: rollout speed with dense attention, same prompts, seeds and engine.
        floor_alpha_p05: p5 of exact alpha of the dense engine against the dense trainer: 1 but for rounding.
        floor_weight_error_max: largest distance of a correction weight from 1, dense against dense.
    """

    sparse_tokens_per_s: float
    dense_tokens_per_s: float
    floor_alpha_p05: float
    floor_weight_error_max: float

    @property
    def speedup(self) -> float:
        """Sparse over dense."""
        return self.sparse_tokens_per_s / self.dense_tokens_per_s


def compare(
    module: DensePolicy, prompts: Sequence[Prompt], eos_token_ids: Sequence[int], seed: int, repeats: int = 2
) -> Comparison:
    """Roll the same prompts out sparse and dense, taking turns, and score the dense ones.

    Args:
        module: the policy and its settings.
        prompts: a step's worth of problems.
        eos_token_ids: ids that end a completion.
        seed: of the sampler.
        repeats: measurements of each; medians are reported.
    """
    schedules = {"sparse": module.schedule, "dense": None}
    engines = {name: _engine(module, schedule) for name, schedule in schedules.items()}
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    dense: list[Completion] = []
    for repeat in range(repeats):
        for name, engine in engines.items():
            started = time.perf_counter()
            adapter = module.actor_adapter and name == "sparse"
            completions = _generate(engine, module, prompts, eos_token_ids, seed, step=repeat, adapter=adapter)
            tokens = sum(len(completion.token_ids) for completion in completions)
            speeds[name].append(tokens / (time.perf_counter() - started))
            dense = completions if name == "dense" else dense
    p05, error = _floor(module, prompts, dense)
    return Comparison(statistics.median(speeds["sparse"]), statistics.median(speeds["dense"]), p05, error)


def _engine(module: DensePolicy, schedule: BudgetSchedule | None) -> RolloutEngine:
    settings = module.rollout
    return RolloutEngine(
        module.model,
        schedule,
        page_score=settings.page_score,
        max_batch=settings.max_batch,
        max_cached_tokens=settings.max_cached_tokens,
        draft_tokens=0 if schedule is None else settings.draft_tokens,
    )


def _generate(
    engine: RolloutEngine,
    module: DensePolicy,
    prompts: Sequence[Prompt],
    eos_token_ids: Sequence[int],
    seed: int,
    step: int,
    adapter: bool,
) -> list[Completion]:
    return engine.generate(
        [prompt.token_ids for prompt in prompts],
        n=module.rollout.samples,
        max_new_tokens=module.rollout.max_new_tokens,
        temperature=module.rollout.temperature,
        seed=seed,
        step=step,
        prompt_keys=[prompt.key for prompt in prompts],
        eos_token_ids=tuple(eos_token_ids),
        adapter=adapter,
        record=("hidden",),
    )


@torch.no_grad()
def _floor(module: DensePolicy, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> tuple[float, float]:
    """P5 of alpha and the largest weight error of dense rollouts under the dense pass."""
    experience = collect_unjudged([prompt.token_ids for prompt in prompts], completions)
    with dense_pass(module.model):
        scores = score(module.model, experience, module.rollout.temperature)
    assert scores.alpha_BT is not None
    mask_BT = experience.mask_BT
    tail = TailAcceptance(num_bins=1)
    tail.update(scores.alpha_BT, experience.position_BT, mask_BT)
    gap_X = (scores.logprobs_BT - experience.sparse_logprobs_BT)[mask_BT].double()
    p05 = float(tail.quantile_bins()[0])  # not compute(), which waits for all ranks: only the first measures
    return p05, float((gap_X.exp() - 1).abs().max())
