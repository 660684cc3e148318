"""What studies of the tail share: sequences that the sparse actor samples itself, and alpha of their tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparrow.data import Prompt
from sparrow.modules import Experience, collect_unjudged, score
from sparrow.modules.passes import dense_pass
from sparrow.rollout import RolloutEngine, RolloutStats
from sparrow.schedule import BudgetSchedule


@torch.no_grad()
def sampled_alpha(
    model: torch.nn.Module,
    schedule: BudgetSchedule,
    prompts: Sequence[Prompt],
    eos_token_ids: Sequence[int],
    *,
    samples: int,
    max_new_tokens: int,
    seed: int,
) -> tuple[Experience, Tensor, RolloutStats]:
    """Sample under ``schedule`` at temperature 1 and score by the dense pass.

    Args:
        model: the policy, loaded as a run loads it.
        schedule: the budget.
        prompts: problems.
        eos_token_ids: ids that end a trace.
        samples: traces per prompt.
        max_new_tokens: longest trace.
        seed: of the sampler.

    Returns:
        The traces, exact alpha [B, T], and the engine's counters.
    """
    engine = RolloutEngine(model, schedule, max_batch=64)
    completions = engine.generate(
        [prompt.token_ids for prompt in prompts],
        n=samples,
        max_new_tokens=max_new_tokens,
        seed=seed,
        prompt_keys=[prompt.key for prompt in prompts],
        eos_token_ids=tuple(eos_token_ids),
        record=("hidden",),
    )
    experience = collect_unjudged([prompt.token_ids for prompt in prompts], completions)
    with dense_pass(model):
        alpha_BT = score(model, experience, 1.0).alpha_BT
    assert alpha_BT is not None
    assert engine.last_stats is not None
    return experience, alpha_BT, engine.last_stats
