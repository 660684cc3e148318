"""Does the tail fall with length? Correlations over blocks of tokens, with intervals over prompts."""

from dataclasses import dataclass

import numpy
import torch

from sparrow.auditing.measurement import Measured
from sparrow.evaluation.intervals import Estimate


@dataclass(frozen=True)
class Blocks:
    """Stretches of consecutive decoded tokens of one sequence each.

    Attributes:
        prompt: prompt of each block.
        position: cached tokens at its middle.
        mean: mean alpha.
        tail: 5th percentile of alpha.
    """

    prompt: numpy.ndarray
    position: numpy.ndarray
    mean: numpy.ndarray
    tail: numpy.ndarray


def blocks_of(measured: Measured, estimator: str, tokens: int) -> Blocks:
    """Cut each sequence's decoded tokens into whole blocks; a shorter rest is left out."""
    rows: list[tuple[float, ...]] = []
    decoded_BT = measured.experience.decoded_BT
    for row, prompt in enumerate(measured.experience.group_B.tolist()):
        alpha_X = measured.alphas[estimator][row][decoded_BT[row]].double()
        first = int(measured.experience.prompt_len_B[row]) + 1
        for start in range(0, len(alpha_X) - tokens + 1, tokens):
            part = alpha_X[start : start + tokens]
            middle = first + start + (tokens - 1) / 2
            rows.append((prompt, middle, float(part.mean()), float(torch.quantile(part, 0.05))))
    table = numpy.asarray(rows, dtype=numpy.float64).reshape(-1, 4)
    return Blocks(table[:, 0], table[:, 1], table[:, 2], table[:, 3])


def pearson(x: numpy.ndarray, y: numpy.ndarray) -> float:
    """Pearson's r; NaN where either does not vary or fewer than three points are there."""
    if len(x) < 3 or numpy.ptp(x) == 0 or numpy.ptp(y) == 0:
        return float("nan")
    return float(numpy.corrcoef(x, y)[0, 1])


def correlation(blocks: Blocks, values: numpy.ndarray, *, level: float, resamples: int, seed: int = 0) -> Estimate:
    """r of ``values`` with length, and its percentile interval from prompts drawn with replacement."""
    places = [numpy.flatnonzero(blocks.prompt == prompt) for prompt in numpy.unique(blocks.prompt)]
    value = pearson(blocks.position, values)
    if not places:
        return Estimate(value, value, value)
    random, found = numpy.random.default_rng(seed), []
    for _ in range(resamples):
        taken = numpy.concatenate([places[i] for i in random.integers(0, len(places), len(places))])
        found.append(pearson(blocks.position[taken], values[taken]))
    kept = [r for r in found if r == r]
    if not kept:
        return Estimate(value, float("nan"), float("nan"))
    low, high = numpy.quantile(kept, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high))
