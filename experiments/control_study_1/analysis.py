"""From runs to answers: which number at the start of a run foretells how it ends, and from where the threshold comes.

    python -m experiments.control_study_1.analysis

Everything here is a pure function of plain data; the tests feed it made-up runs.

The proposal for the threshold: a token with agreement alpha can be kept as the dense policy would have written it with
probability alpha (maximal coupling), so a trace keeps all of its m decisive tokens with probability about
exp(-sum over them of (1 - alpha)). With D disagreements per trace and a share d of its tokens decisive,

    survival = exp(-d D),

and the actor's reward is about survival times that of the dense policy. Training starves where survival is small, so
the threshold is a limit on d D, not on a quantile; the tau of a task is the p5 of the cheapest budget that keeps it. A
task where d is small (an answer that many wordings reach) stands a far longer tail than one where every token counts.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent

RunData = dict[str, Any]

EARLY = 3
"""First steps of a run that predictors are read from: the weights have hardly moved."""

LEAST_SURVIVAL = 0.5
"""Share of traces that must keep their decisive tokens for a run to be called safe by the proposal."""


def predictors(run: RunData, early: int = EARLY) -> dict[str, float]:
    """What a run's first steps say, each so that larger is healthier."""
    rows = run["history"][:early]

    def mean(key: str) -> float:
        return float(np.mean([row[key] for row in rows if key in row]))

    least = [min(value for key, value in row.items() if key.startswith("tail/alpha_p05/")) for row in rows]
    return {
        "p5 of the least bin": float(np.mean(least)),
        "p5": mean("tail/alpha/p05"),
        "p1": mean("tail/alpha/p01"),
        "mean": mean("tail/alpha/mean"),
        "disagreements": -mean("tail/disagreements"),
    }


def gain(run: RunData) -> float:
    """Held-out exact match of the dense policy after training less that before."""
    return float(run["exact_match_after"] - run["exact_match_before"])


def collapsed(run: RunData, margin: float = 0.05) -> bool:
    """Whether training made the dense policy worse, by more than the noise of a few hundred problems."""
    return gain(run) < -margin


def failed(run: RunData, dense_gain: float) -> bool:
    """Whether training gained less than half of what dense rollouts gain: it collapsed, or it stood still."""
    return gain(run) < dense_gain / 2


def auc(scores: Sequence[float], bad: Sequence[bool]) -> float:
    """Probability that a bad run scores lower than a good one, ties counted half; NaN without both kinds.

    >>> auc([0.1, 0.4, 0.35, 0.8], [True, True, False, False])
    0.75
    """
    lower = [score for score, is_bad in zip(scores, bad, strict=True) if is_bad]
    upper = [score for score, is_bad in zip(scores, bad, strict=True) if not is_bad]
    if not lower or not upper:
        return math.nan
    wins = sum((a < b) + 0.5 * (a == b) for a in lower for b in upper)
    return float(wins / (len(lower) * len(upper)))


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation, ties at their mean rank; NaN where one side is constant."""
    ranks_a, ranks_b = _ranks(a), _ranks(b)
    if np.ptp(ranks_a) == 0 or np.ptp(ranks_b) == 0:
        return math.nan
    return float(np.corrcoef(ranks_a, ranks_b)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    below = (array[None, :] < array[:, None]).sum(1)
    equal = (array[None, :] == array[:, None]).sum(1)
    return np.asarray(below + (equal + 1) / 2)


def threshold(scores: Sequence[float], bad: Sequence[bool]) -> float:
    """The cut below which runs are called bad with the fewest mistakes; of several, the middle of the widest.

    Raises:
        ValueError: there are no runs.
    """
    if not len(scores):
        raise ValueError("a threshold needs at least one run")
    values = sorted(set(scores))
    cuts = [-math.inf, *((a + b) / 2 for a, b in pairwise(values)), math.inf]
    mistakes = [sum((s < cut) != b for s, b in zip(scores, bad, strict=True)) for cut in cuts]
    best = [index for index, count in enumerate(mistakes) if count == min(mistakes)]
    gaps = [math.inf if not 0 < index < len(values) else values[index] - values[index - 1] for index in best]
    finite = [(gap, index) for gap, index in zip(gaps, best, strict=True) if math.isfinite(gap)]
    return cuts[max(finite)[1]] if finite else cuts[best[0]]


def held_out_accuracy(
    runs: Sequence[RunData], scores: Sequence[float], bad: Sequence[bool], group: Callable[[RunData], Any]
) -> float:
    """Share of runs called right by a threshold that was chosen without the runs of the same group."""
    right = 0
    for index, run in enumerate(runs):
        others = [i for i, other in enumerate(runs) if group(other) != group(run)]
        if not others:
            raise ValueError(f"all runs are of group {group(run)!r}: nothing is held out")
        cut = threshold([scores[i] for i in others], [bad[i] for i in others])
        right += (scores[index] < cut) == bad[index]
    return right / len(runs)


def bootstrap(
    size: int, statistic: Callable[[np.ndarray], float], draws: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Interval of 90 % of a statistic over runs drawn with replacement; draws where it is undefined are left out.

    Args:
        size: number of runs.
        statistic: of the runs with the given indices.
        draws: how often to draw.
        seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    values = [statistic(generator.integers(0, size, size)) for _ in range(draws if size else 0)]
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan, math.nan
    low, high = np.quantile(known, [0.05, 0.95])
    return float(low), float(high)


def compare(
    runs: Sequence[RunData], draws: int = 1000, is_bad: Callable[[RunData], bool] = collapsed
) -> dict[str, dict[str, Any]]:
    """Every predictor: AUC for bad runs, rank correlation with the gain, and accuracy on held-out budgets and seeds."""
    read = [predictors(run) for run in runs]
    bad, gains = np.asarray([is_bad(run) for run in runs]), np.asarray([gain(run) for run in runs])
    every = np.arange(len(runs))
    found: dict[str, dict[str, Any]] = {}
    for name in read[0]:
        scores = np.asarray([values[name] for values in read])

        def area(index: np.ndarray, scores: np.ndarray = scores) -> float:
            return auc(scores[index].tolist(), bad[index].tolist())

        def ranks(index: np.ndarray, scores: np.ndarray = scores) -> float:
            return rank_correlation(scores[index].tolist(), gains[index].tolist())

        found[name] = {
            "auc": area(every),
            "auc_interval": bootstrap(len(runs), area, draws),
            "rank_correlation": ranks(every),
            "rank_correlation_interval": bootstrap(len(runs), ranks, draws),
            "threshold": threshold(scores.tolist(), bad.tolist()),
            "accuracy_other_budgets": held_out_accuracy(runs, scores.tolist(), bad.tolist(), lambda run: run["budget"]),
            "accuracy_other_seeds": held_out_accuracy(runs, scores.tolist(), bad.tolist(), lambda run: run["seed"]),
        }
    return found


def survival(disagreements: float, decisive: float) -> float:
    """Share of traces that keep all decisive tokens.

    Args:
        disagreements: sum of 1 - alpha of a trace.
        decisive: share of tokens that decide the answer.
    """
    if not 0 <= decisive <= 1 or disagreements < 0:
        raise ValueError(f"decisive={decisive}, disagreements={disagreements}: must be in 0 .. 1, and 0 or more")
    return math.exp(-decisive * disagreements)


def predicted_tau(budgets: dict[str, dict[str, float]], decisive: float, least: float = LEAST_SURVIVAL) -> float:
    """P5 of the least bin of the cheapest budget whose traces survive; NaN if none does.

    Args:
        budgets: by name: ``p05_min``, ``disagreements`` and ``kv_fraction`` at the start.
        decisive: share of decisive tokens.
        least: survival asked for.
    """
    safe = [entry for entry in budgets.values() if survival(entry["disagreements"], decisive) >= least]
    return min(safe, key=lambda entry: entry["kv_fraction"])["p05_min"] if safe else math.nan


def reward_kept(runs: Sequence[RunData], early: int = EARLY) -> dict[str, tuple[float, float]]:
    """By budget, of plain runs: measured share of the dense reward in the first steps, and disagreements there."""
    rewards: dict[str, list[float]] = {}
    spread: dict[str, list[float]] = {}
    for run in runs:
        if run["means"] != "plain":
            continue
        rows = run["history"][:early]
        rewards.setdefault(run["budget"], []).append(float(np.mean([row["rewards/outcome/correct"] for row in rows])))
        spread.setdefault(run["budget"], []).append(float(np.mean([row["tail/disagreements"] for row in rows])))
    dense = float(np.mean(rewards["dense"])) if "dense" in rewards else math.nan
    return {name: (float(np.mean(rewards[name])) / dense, float(np.mean(spread[name]))) for name in rewards}


def agreement(called: Sequence[bool]) -> float:
    """Share of runs that were called right; NaN without any."""
    return float(np.mean(called)) if called else math.nan


def load_runs(folder: Path) -> list[RunData]:
    """Finished runs, by name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def report(runs: Sequence[RunData], budgets: dict[str, Any], decisive: float, draws: int = 1000) -> dict[str, Any]:
    """Everything the study concludes from, as plain data."""
    plain = [run for run in runs if run["means"] == "plain"]
    outcomes: dict[str, list[float]] = {}
    for run in runs:
        outcomes.setdefault(f"{run['budget']}/{run['means']}", []).append(gain(run))
    starts = {name: entry["start"] for name, entry in budgets.items()}
    kept = {
        name: {"reward_kept": share, "disagreements": spread, "survival": survival(max(spread, 0.0), decisive)}
        for name, (share, spread) in reward_kept(runs).items()
    }
    safe = {name: entry["survival"] >= LEAST_SURVIVAL for name, entry in kept.items()}
    dense = [gain(run) for run in plain if run["budget"] == "dense"]
    half = partial(failed, dense_gain=float(np.mean(dense)) if dense else math.nan)
    return {
        "runs": len(runs),
        "gain": outcomes,
        "predictors_plain": compare(plain, draws) if plain else {},
        "predictors_plain_of_failure": compare(plain, draws, half) if plain else {},
        "predictors_all": compare(runs, draws) if runs else {},
        "decisive_share": decisive,
        "predicted_tau": predicted_tau(starts, decisive),
        "survival": kept,
        "survival_accuracy": agreement([safe[run["budget"]] != collapsed(run) for run in plain]),
        "survival_accuracy_of_failure": agreement([safe[run["budget"]] != half(run) for run in plain]),
    }


def main() -> None:
    """Command line: where the runs are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=HERE / "runs")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    budgets = json.loads((HERE / "budgets.json").read_text())
    decisive = json.loads((HERE / "decisive.json").read_text())["share"]
    text = json.dumps(report(load_runs(options.runs), budgets, decisive), indent=1)
    options.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
