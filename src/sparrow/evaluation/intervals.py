"""Bootstrap intervals over problems: problems are what an evaluation samples, its answers only measure them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy


@dataclass(frozen=True)
class Estimate:
    """A mean over problems and its interval.

    Attributes:
        value: the mean.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float


def bootstrap(values: Sequence[float], *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Estimate:
    """The mean of one value per problem, and a percentile interval from problems drawn with replacement.

    For a paired comparison give the differences, problem by problem: what both sides share then cancels.

    Args:
        values: one number per problem.
        resamples: number of bootstrap means.
        level: share of them inside the interval.
        seed: of the draws; the global random state is not touched.

    Raises:
        ValueError: if there are no values.
    """
    if not values:
        raise ValueError("bootstrap of 0 problems is not allowed; allowed: 1 or more")
    held = numpy.asarray(values, dtype=numpy.float64)
    random = numpy.random.default_rng(seed)
    # One resample at a time: all at once would take resamples x problems numbers.
    means = [held[random.integers(0, len(held), len(held))].mean() for _ in range(resamples)]
    low, high = numpy.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(held.mean()), float(low), float(high))
