"""What drawing more samples than train gives a starved actor: rewards of the best n of m. Nothing is trained.

    python -m experiments.oversampling.study

Results and plots are written beside this file.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.common import LONGEST, axes, held_out_problems, save, write
from sparrow.evaluation.reading import read_samples
from sparrow.rewards import Scorer
from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule

HERE = Path(__file__).parent
SCHEDULES = {"chosen": [8, 8, 12, 20, 96], "three quarters": [6, 6, 9, 15, 72], "half": [4, 4, 6, 10, 48]}
GROUP = 8
FACTORS = (1, 2, 4)
"""Samples drawn per sample that trains."""


def best(rewards: Sequence[float], factor: int, group: int = GROUP) -> list[list[float]]:
    """Split one prompt's rewards into draws of ``factor * group`` and keep the best ``group`` of each."""
    size = factor * group
    draws = [rewards[start : start + size] for start in range(0, len(rewards) - size + 1, size)]
    return [sorted(draw, reverse=True)[:group] for draw in draws]


def summarise(per_prompt: Sequence[Sequence[float]]) -> dict[str, dict[str, float]]:
    """Mean reward of what trains, and share of groups with differing rewards, by factor."""
    found = {}
    for factor in FACTORS:
        groups = [group for rewards in per_prompt for group in best(rewards, factor)]
        mean = sum(map(sum, groups)) / (GROUP * len(groups))
        mixed = sum(len(set(group)) > 1 for group in groups) / len(groups)
        found[str(factor)] = {"reward": mean, "mixed_groups": mixed, "groups": len(groups)}
    return found


def main() -> None:
    """Sample and judge under every schedule, write ``results.json`` and ``reward.png``."""
    problems, results = held_out_problems(8), {}
    samples = GROUP * max(FACTORS)
    with Scorer() as scorer:
        for name, pages in SCHEDULES.items():
            engine = RolloutEngine(problems.model, BudgetSchedule(pages, page_size=4, bin_tokens=64), max_batch=64)
            completions = engine.generate(
                [prompt.token_ids for prompt in problems.prompts],
                n=samples,
                max_new_tokens=LONGEST,
                seed=0,
                prompt_keys=[prompt.key for prompt in problems.prompts],
                eos_token_ids=problems.eos_token_ids,
            )
            outcomes = scorer.score(read_samples(problems.prompts, completions, problems.tokenizer))
            scores = [outcome.score for outcome in outcomes]
            results[name] = summarise([scores[start : start + samples] for start in range(0, len(scores), samples)])
            print(name, json.dumps(results[name]))
    write(HERE, {"prompts": len(problems.prompts), "samples": samples, "schedules": results})
    plot(results)


def plot(results: dict[str, Any]) -> None:
    """``reward.png``: mean reward and share of mixed groups by factor."""
    figure, (left, right) = axes(2)
    for name, found in results.items():
        left.plot(FACTORS, [found[str(factor)]["reward"] for factor in FACTORS], marker="o")
        right.plot(FACTORS, [found[str(factor)]["mixed_groups"] for factor in FACTORS], marker="o", label=name)
    left.set(xlabel="samples drawn per sample that trains", ylabel="mean reward of what trains", xticks=FACTORS)
    right.set(xlabel="samples drawn per sample that trains", ylabel="share of groups that teach", xticks=FACTORS)
    save(figure, HERE / "reward.png")


if __name__ == "__main__":
    main()
