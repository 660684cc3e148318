"""Several rewards as one: a weighted sum of scores under the first one's label."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.outcome import Outcome


@dataclass(frozen=True)
class Combined(Reward):
    """score = sum of weight x score over the parts; the label is the first part's, the one that counts as accuracy.

    A truncated completion scores 0 in every part that does not score truncated ones itself.

    Attributes:
        rewards: the parts, the main one first.
        weights: one for each.
    """

    rewards: Sequence[Reward]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        if not self.rewards or len(self.rewards) != len(self.weights):
            counts = f"{len(self.rewards)} rewards with {len(self.weights)} weights"
            raise ValueError(f"{counts} are not allowed; allowed: 1 or more rewards, one weight each")
        if not all(math.isfinite(weight) for weight in self.weights):
            raise ValueError(f"weights {list(self.weights)} are not allowed; allowed: finite numbers")

    @property
    def isolated(self) -> bool:
        """True if any part is."""
        return any(reward.isolated for reward in self.rewards)

    @property
    def scores_truncated(self) -> bool:
        """True if any part does."""
        return any(reward.scores_truncated for reward in self.rewards)

    @property
    def asks_for(self) -> tuple[str, ...]:
        """What the main part asks for."""
        return self.rewards[0].asks_for

    def prepare(self, row: RewardRow) -> None:
        """Prepares every part."""
        for reward in self.rewards:
            reward.prepare(row)

    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """The weighted sum; the detail holds every part's score."""
        outcomes = [_part(reward, completion, row, finish_reason) for reward in self.rewards]
        total = sum(weight * outcome.score for weight, outcome in zip(self.weights, outcomes, strict=True))
        detail = ", ".join(
            f"{type(reward).__name__}={outcome.score:g}" for reward, outcome in zip(self.rewards, outcomes, strict=True)
        )
        return Outcome(total, outcomes[0].label, detail)

    def gold_completion(self, row: RewardRow) -> str | None:
        """The main part's; what the other parts make of it is left open."""
        return self.rewards[0].gold_completion(row)

    def answer(self, completion: str, row: RewardRow) -> str | None:
        """The main part's."""
        return self.rewards[0].answer(completion, row)


def _part(reward: Reward, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
    if finish_reason == "length" and not reward.scores_truncated:
        return Outcome(0.0, "truncated")
    return reward(completion, row, finish_reason)
