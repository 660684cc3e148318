"""Results of an evaluation: per set and arm, the arms side by side, as JSON and as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from sparrow.evaluation.estimators import avg_at_n, maj_at_k, pass_at_k
from sparrow.evaluation.intervals import Estimate, bootstrap
from sparrow.evaluation.sampling import Problem
from sparrow.evaluation.settings import EvaluationSettings
from sparrow.rewards import LABELS

Estimates = dict[str, Estimate]
ALL = "all"


@dataclass(frozen=True)
class Report:
    """What an evaluation found; sets by data source, and all of them as "all" where there are several.

    Attributes:
        problems: problems per set.
        arms: arm -> set -> metric -> estimate.
        paired: set -> metric -> sparse less dense, problem by problem; empty with one arm.
    """

    problems: dict[str, int]
    arms: dict[str, dict[str, Estimates]]
    paired: dict[str, Estimates]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain dicts."""
        return asdict(self)

    def table(self) -> Table:
        """The report for a terminal: a line per set and metric, a column per arm, and their difference."""
        table = Table(title="Evaluation, with intervals over problems")
        for name in ("set", "problems", "metric", *self.arms, *(["sparse - dense"] if self.paired else [])):
            table.add_column(name, justify="left" if name in ("set", "metric") else "right")
        first = next(iter(self.arms.values()))
        for group, count in self.problems.items():
            for place, metric in enumerate(first[group]):
                cells = [_cell(arm[group][metric]) for arm in self.arms.values()]
                if self.paired:
                    cells.append(_cell(self.paired[group][metric], signed=True))
                table.add_row(group if place == 0 else "", str(count) if place == 0 else "", metric, *cells)
        return table


def make_report(arms: Mapping[str, Sequence[Problem]], settings: EvaluationSettings) -> Report:
    """Estimates with intervals for every arm and set.

    Args:
        arms: arm -> problems; with two arms the same problems in the same order.
        settings: sizes k and the bootstrap's numbers.

    Raises:
        ValueError: if the arms hold different problems or none, or one of several sets is named "all".
    """
    keys = {arm: [problem.key for problem in problems] for arm, problems in arms.items()}
    if len({tuple(held) for held in keys.values()}) != 1:
        raise ValueError(f"arms {', '.join(arms)} hold different problems; allowed: the same ones in the same order")
    if not next(iter(keys.values())):
        raise ValueError(f"arms {', '.join(arms)} hold no problems; allowed: 1 or more")
    values = {arm: [measure(problem, settings) for problem in problems] for arm, problems in arms.items()}
    groups = _groups(next(iter(arms.values())))
    report: dict[str, dict[str, Estimates]] = {
        arm: {group: _estimates([held[i] for i in places], settings) for group, places in groups.items()}
        for arm, held in values.items()
    }
    paired: dict[str, Estimates] = {}
    if {"dense", "sparse"} <= set(arms):
        for group, places in groups.items():
            differences = [_difference(values["sparse"][i], values["dense"][i]) for i in places]
            paired[group] = _estimates(differences, settings)
            shared = [metric for metric in report["dense"][group] if metric in paired[group]]
            for arm in report:
                report[arm][group] = {metric: report[arm][group][metric] for metric in shared}
            paired[group] = {metric: paired[group][metric] for metric in shared}
    return Report({group: len(places) for group, places in groups.items()}, report, paired)


def measure(problem: Problem, settings: EvaluationSettings) -> dict[str, float]:
    """Every metric of one problem; maj@k only where every judged sample has an answer to vote with."""
    samples = problem.samples
    correct = [sample.correct for sample in samples]
    n = len(samples)
    values = {f"avg@{n}": avg_at_n(correct)}
    values |= {f"pass@{k}": pass_at_k(n, sum(correct), k) for k in settings.ks}
    if all(sample.answer is not None for sample in samples if sample.label in ("correct", "wrong")):
        answers = [sample.answer for sample in samples]
        values |= {f"maj@{k}": maj_at_k(answers, correct, k, settings.seed) for k in settings.ks if k > 1}
    values["tokens"] = sum(sample.tokens for sample in samples) / n
    values["truncated"] = sum(sample.truncated for sample in samples) / n
    values |= {f"outcome/{label}": sum(sample.label == label for sample in samples) / n for label in LABELS}
    return values


def flat_metrics(report: Report, prefix: str = "val") -> dict[str, float]:
    """The report as `prefix/arm/set/metric` -> value, for loggers."""
    flat = {
        f"{prefix}/{arm}/{group}/{metric}": estimate.value
        for arm, sets in report.arms.items()
        for group, estimates in sets.items()
        for metric, estimate in estimates.items()
    }
    for group, estimates in report.paired.items():
        flat |= {f"{prefix}/paired/{group}/{metric}": estimate.value for metric, estimate in estimates.items()}
    return flat


def _groups(problems: Sequence[Problem]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for place, problem in enumerate(problems):
        groups.setdefault(problem.data_source, []).append(place)
    if ALL in groups and len(groups) > 1:
        raise ValueError(f"data_source {ALL!r} beside others is not allowed: it names all of them together")
    return groups if len(groups) == 1 else {**groups, ALL: list(range(len(problems)))}


def _estimates(values: Sequence[Mapping[str, float]], settings: EvaluationSettings) -> Estimates:
    """Of metrics that every problem has: a mean over some of them would be another metric."""
    shared = [metric for metric in values[0] if all(metric in held for held in values)]
    return {
        metric: bootstrap(
            [held[metric] for held in values], resamples=settings.resamples, level=settings.level, seed=settings.seed
        )
        for metric in shared
    }


def _difference(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {metric: left[metric] - right[metric] for metric in left if metric in right}


def _cell(estimate: Estimate, *, signed: bool = False) -> str:
    digits = 1 if abs(estimate.value) >= 10 else 3
    sign = "+" if signed else ""
    return f"{estimate.value:{sign}.{digits}f} [{estimate.low:{sign}.{digits}f}, {estimate.high:{sign}.{digits}f}]"
