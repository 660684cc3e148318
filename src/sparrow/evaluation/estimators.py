"""Estimators of one problem's n samples: avg@n, pass@k, maj@k. All are exact expectations over the samples drawn.

Resampling with replacement would be biased: the best of k draws from n samples repeats some of them.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import numpy

MAX_SUBSETS = 5000
"""maj@k averages over all subsets up to so many; beyond, over `MAX_SUBSETS` random ones."""


def avg_at_n(correct: Sequence[bool]) -> float:
    """The share of right samples, an unbiased estimate of the chance that one is right.

    Raises:
        ValueError: if there are no samples.
    """
    if not correct:
        raise ValueError("avg@n of 0 samples is not allowed; allowed: 1 or more")
    return sum(correct) / len(correct)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples is right: 1 - C(n - c, k) / C(n, k).

    Source: arXiv 2107.03374, equation 1.

    Args:
        n: samples drawn.
        c: right ones among them.
        k: samples of the question, at most n.

    Raises:
        ValueError: if not 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k: n={n}, c={c}, k={k} is not allowed; allowed: 0 <= c <= n and 1 <= k <= n")
    # Whole numbers, so that no rounding enters; Python divides them exactly rounded.
    return (math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k)


def maj_at_k(answers: Sequence[str | None], correct: Sequence[bool], k: int, seed: int = 0) -> float:
    """The chance that the most frequent answer of k samples is right, over subsets of the samples without replacement.

    Tied answers share evenly, which is what breaking ties at random gives. A sample without an answer has no vote; a
    subset without votes is wrong.

    Args:
        answers: each sample's answer, equal texts for equal answers, or None.
        correct: whether each sample is right.
        k: size of the vote, at most the number of samples.
        seed: of the subsets, where there are too many to take all; the global random state is not touched.

    Raises:
        ValueError: if k is not from 1 to the number of samples, or there is not one answer for each sample.
    """
    n = len(answers)
    if len(correct) != n:
        raise ValueError(f"maj@k: {n} answers with {len(correct)} samples are not allowed; allowed: one for each")
    if not 1 <= k <= n:
        raise ValueError(f"maj@k: k={k} is not allowed with {n} samples; allowed: 1 to {n}")
    if math.comb(n, k) <= MAX_SUBSETS:
        values = [_majority([(answers[i], correct[i]) for i in subset]) for subset in combinations(range(n), k)]
    else:
        random = numpy.random.default_rng(seed)
        subsets = (random.permutation(n)[:k] for _ in range(MAX_SUBSETS))
        values = [_majority([(answers[i], correct[i]) for i in subset]) for subset in subsets]
    return math.fsum(values) / len(values)


def _majority(votes: Sequence[tuple[str | None, bool]]) -> float:
    counts = Counter(answer for answer, _ in votes if answer is not None)
    if not counts:
        return 0.0
    most = max(counts.values())
    winners = [answer for answer, count in counts.items() if count == most]
    return sum(avg_at_n([right for answer, right in votes if answer == winner]) for winner in winners) / len(winners)
