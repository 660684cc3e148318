"""The tail under a fixed budget, on sequences that the sparse actor samples itself: the answer to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparrow.callbacks.tail import page_end
from sparrow.data import Prompt
from sparrow.metrics import TailAcceptance
from sparrow.modules import collect
from sparrow.modules.passes import dense_pass
from sparrow.modules.scoring import score
from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule
from sparrow.tail.evidence import Evidence, count_below


@dataclass(frozen=True)
class Reading:
    """One length bin under one budget: p5, tokens, and the share of tokens below a line, by prompt."""

    p5: float
    tokens: int
    evidence: Evidence


@torch.no_grad()
def read(
    model: torch.nn.Module,
    schedule: BudgetSchedule,
    prompts: Sequence[Prompt],
    eos_token_ids: Sequence[int],
    *,
    line: float,
    samples: int,
    max_new_tokens: int,
    seed: int,
) -> list[Reading]:
    """Sample under ``schedule`` and read every bin of it.

    Args:
        model: the policy, loaded as a run loads it.
        schedule: the budget.
        prompts: one trace of each is one cluster of the interval; ``samples`` traces of each.
        eos_token_ids: ids that end a trace.
        line: evidence counts tokens below it.
        samples: traces per prompt.
        max_new_tokens: longest trace.
        seed: of the sampler.
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
    rows = [prompts[completion.prompt_index].token_ids for completion in completions]
    group_B = torch.tensor([completion.prompt_index for completion in completions])
    zeros_B = torch.zeros(len(rows))
    experience = collect(rows, completions, zeros_B.tolist(), zeros_B, group_B)
    with dense_pass(model):
        alpha_BT = score(model, experience, 1.0).alpha_BT
    assert alpha_BT is not None
    where = page_end(experience.position_BT, schedule.page_size), experience.decoded_BT
    bins = {"bin_tokens": schedule.bin_tokens, "num_bins": schedule.num_bins}
    tail = TailAcceptance(**bins)
    tail.update(alpha_BT, *where)
    moments = count_below(alpha_BT, *where, group_B, line=line, **bins)
    return [
        Reading(p5, count, Evidence(*row))
        for p5, count, row in zip(
            tail.quantile_bins().tolist(), tail.count_bins().tolist(), moments.tolist(), strict=True
        )
    ]
