"""What a rollout logs: time and speed, rewards, lengths, the share of the cache that was read, what was left out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparrow.callbacks.groups import Group
from sparrow.rewards import LABELS, Outcome
from sparrow.rollout import RolloutStats
from sparrow.schedule import BudgetSchedule


@dataclass
class Tally:
    """Adds up over the calls that a step makes to engine and verifier.

    Attributes:
        gen_s: seconds of sampling.
        reward_s: seconds of judging.
        stats: counters of each call of the engine.
        scores: rewards of everything that was sampled, before a sample or a group was left out.
    """

    gen_s: float = 0.0
    reward_s: float = 0.0
    stats: list[RolloutStats] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def generated(self, seconds: float, stats: RolloutStats | None) -> None:
        """Note one call of the engine."""
        assert stats is not None
        self.gen_s += seconds
        self.stats.append(stats)

    def sampled(self, outcomes: Sequence[Outcome]) -> None:
        """Note the rewards of freshly sampled completions."""
        self.scores += [outcome.score for outcome in outcomes]

    def metrics(self) -> dict[str, float]:
        """Time, speed, the mean reward of all samples, what became of drafts, and what captures of graphs took."""
        drafted, accepted, rounds = (sum(getattr(s, k) for s in self.stats) for k in ("drafted", "accepted", "rounds"))
        drafts = {}
        if drafted:
            drafts = {"perf/draft_acceptance": accepted / drafted, "perf/draft_accepted_length": accepted / rounds}
        captured = sum(stats.capture_seconds for stats in self.stats)
        captures = {"timing_s/graph_capture": captured} if captured else {}
        tokens = sum(stats.response_tokens for stats in self.stats)
        return {
            "timing_s/gen": self.gen_s,
            "timing_s/reward": self.reward_s,
            "perf/rollout_tokens_per_s": tokens / self.gen_s,
            "critic/score_sampled/mean": sum(self.scores) / len(self.scores),
            **drafts,
            **captures,
        }


def group_metrics(groups: Sequence[Group], advantages_B: Tensor) -> dict[str, float]:
    """Rewards, outcomes, advantages and lengths of the samples that train."""
    outcomes = [outcome for group in groups for outcome in group.outcomes]
    completions = [completion for group in groups for completion in group.completions]
    counts = Counter(outcome.label for outcome in outcomes)
    metrics = {f"rewards/outcome/{label}": counts[label] / len(outcomes) for label in LABELS}
    lengths_B = torch.tensor([float(len(completion.token_ids)) for completion in completions])
    scores_B = torch.tensor([outcome.score for outcome in outcomes])
    for name, values_B in (
        ("critic/score", scores_B),
        ("critic/advantages", advantages_B),
        ("response_length", lengths_B),
    ):
        metrics |= {f"{name}/{stat}": float(getattr(values_B, stat)()) for stat in ("mean", "max", "min")}
    clipped = sum(completion.finish_reason == "length" for completion in completions)
    return metrics | {"response_length/clip_ratio": clipped / len(completions)}


def cache_metrics(stats: Sequence[RolloutStats], schedule: BudgetSchedule) -> dict[str, float]:
    """Share of the cache that was read, over all calls of the step, and the schedule's pages."""
    pages = {} if schedule.is_dense else {f"schedule/pages/bin_{i}": float(n) for i, n in enumerate(schedule.table)}
    return {
        "schedule/kv_fraction": _share(stats, "tokens_read", "tokens_cached"),
        "schedule/kv_fraction_sparse_layers": _share(stats, "tokens_read_sparse", "tokens_cached_sparse"),
        **pages,
    }


def filter_metrics(seen: Sequence[Group], kept: int, tries: int) -> dict[str, float]:
    """What dynamic sampling did in a step.

    Args:
        seen: every group that was sampled.
        kept: groups with differing scores.
        tries: times that prompts were sampled.
    """
    right = [[outcome.label == "correct" for outcome in group.judged] for group in seen]
    return {
        "training/filter_groups/tries": float(tries),
        "training/filter_groups/sampled": float(len(seen)),
        "training/filter_groups/kept": float(kept),
        "training/filter_groups/solved_all": sum(map(all, right)) / len(seen),
        "training/filter_groups/solved_none": sum(not any(group) for group in right) / len(seen),
    }


def _share(stats: Sequence[RolloutStats], part: str, whole: str) -> float:
    total = sum(getattr(one, whole) for one in stats)
    return sum(getattr(one, part) for one in stats) / total if total else 1.0
