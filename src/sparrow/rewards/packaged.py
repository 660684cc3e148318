"""The running-sum verifier as a reward: for the packaged tiny policy."""

from dataclasses import dataclass

from sparrow.rewards.base import Reward, RewardRow
from sparrow.rewards.outcome import Outcome
from sparrow.rewards.running_sum import (
    RunningSumMode,
    running_sum_answered,
    running_sum_outcome,
    running_sum_trace,
)


@dataclass(frozen=True)
class RunningSumReward(Reward):
    """Judges traces of the running-sum task.

    Attributes:
        mode: "answer" scores 1 for a right answer; "steps" scores the share of right steps, truncated traces included.
    """

    mode: RunningSumMode = "answer"

    @property
    def scores_truncated(self) -> bool:
        """In mode "steps", the steps written before the cut count."""
        return self.mode == "steps"

    def __call__(self, completion: str, row: RewardRow, finish_reason: str) -> Outcome:
        """See `sparrow.rewards.running_sum.running_sum_outcome`."""
        fields = {"reward_model": {"ground_truth": row.ground_truth}, "extra_info": row.extra_info}
        return running_sum_outcome(completion, fields, finish_reason, mode=self.mode)

    def answer(self, completion: str, row: RewardRow) -> str | None:
        """The two digits at the end."""
        return running_sum_answered(completion)

    def gold_completion(self, row: RewardRow) -> str | None:
        """The whole right trace."""
        return running_sum_trace(row.extra_info["numbers"])
