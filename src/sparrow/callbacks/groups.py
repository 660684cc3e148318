"""The prompts of a step with what was sampled for them, and which of it trains.

Three choices are made here, all before any advantage: the best of each group (sample more, keep the best), groups that
teach something (dynamic sampling), and the prompts that are drawn in the place of those that do not.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from sparrow.algorithms import GroupedRewards
from sparrow.algorithms.advantages import mixed_groups
from sparrow.callbacks.baseline import FAILED, Unjudged
from sparrow.data import Prompt
from sparrow.rewards import Outcome
from sparrow.rollout import Completion


@dataclass(frozen=True)
class Group:
    """One prompt and its samples.

    Attributes:
        prompt: the problem.
        completions: what the actor wrote.
        judged: outcome of each, as the verifier gave it.
        outcomes: the same with the reward's shaping by length; their scores are the rewards.
        baseline: outcome of the greedy answer, where the advantage needs it.
    """

    prompt: Prompt
    completions: Sequence[Completion]
    judged: Sequence[Outcome]
    outcomes: Sequence[Outcome]
    baseline: Outcome | None = None

    def best(self, count: int) -> "Group":
        """The ``count`` samples with the highest reward, in the order they were drawn; of equals the earlier ones."""
        rank = sorted(range(len(self.outcomes)), key=lambda index: (-self.outcomes[index].score, index))
        chosen = sorted(rank[:count])
        return replace(
            self,
            completions=[self.completions[index] for index in chosen],
            judged=[self.judged[index] for index in chosen],
            outcomes=[self.outcomes[index] for index in chosen],
        )

    def mixed(self, unjudged: Unjudged) -> bool:
        """Whether the verifier's scores differ: shaping by length is not looked at, or every group would be mixed.

        Args:
            unjudged: with "left_out", samples on which the verifier failed are not looked at either.
        """
        scores = [o.score for o in self.judged if unjudged == "baseline" or o.label not in FAILED]
        if not scores:
            return False
        grouped = GroupedRewards(torch.tensor(scores), torch.zeros(len(scores), dtype=torch.long))
        return bool(mixed_groups(grouped)[0])


def extra_prompts(
    prompts: Sequence[Prompt], taken: Collection[int], *, seed: int, step: int, rank: int = 0, world_size: int = 1
) -> Iterator[Prompt]:
    """Further prompts of an RL step, in the order they are to be tried.

    The order is a permutation of the whole set that follows from (seed, step) alone, less what the step already holds:
    nothing has to be remembered, so a resumed run draws what an uninterrupted one does. Rank r takes every
    ``world_size``-th of it, so that ranks never try the same prompt, however many each one needs. The loader's own
    order is not touched: a prompt tried here comes again at its place in the epoch.

    Args:
        prompts: the training set, equal on every rank.
        taken: keys of the step's own prompts, over all ranks.
        seed: of the run.
        step: RL step.
        rank: this process.
        world_size: number of processes.
    """
    digest = hashlib.blake2b(f"extra prompts/{seed}/{step}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    order = torch.randperm(len(prompts), generator=generator).tolist()
    rest = [index for index in order if prompts[index].key not in taken]
    return (prompts[index] for index in rest[rank::world_size])


def keys_of_all_ranks(prompts: Sequence[Prompt]) -> set[int]:
    """Keys of the step's prompts over all ranks; every rank must call it."""
    own = [prompt.key for prompt in prompts]
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return set(own)
    gathered: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, own)
    return {key for keys in gathered for key in keys}
