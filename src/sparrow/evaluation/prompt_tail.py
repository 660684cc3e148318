"""The tail of alpha per length bin with intervals over prompts: tokens of a trace are alike, prompts are what vary."""

from collections.abc import Callable

import numpy
import torch
from torch import Tensor

from sparrow.evaluation.intervals import Estimate
from sparrow.metrics.functional.quantiles import histogram, histogram_quantile, unit_centres, unit_edges


class PromptTail:
    """Fixed histograms of alpha, one per prompt and length bin; memory does not grow with tokens.

    Args:
        prompts: number of prompts; each keeps its own histograms.
        bin_tokens: width of a bin in tokens.
        num_bins: number of bins; the last one is open.

    Attributes:
        counts: int64 [prompts, bins, grid].

    Raises:
        ValueError: a number below 1.
    """

    def __init__(self, prompts: int, bin_tokens: int, num_bins: int) -> None:
        for key, value in (("prompts", prompts), ("bin_tokens", bin_tokens), ("num_bins", num_bins)):
            if value < 1:
                raise ValueError(f"{key}={value}: must be 1 or more")
        self.bin_tokens, self.num_bins = bin_tokens, num_bins
        self.counts = torch.zeros(prompts, num_bins, len(unit_edges()), dtype=torch.int64)

    def add(self, prompt: int, alpha_X: Tensor, position_X: Tensor) -> None:
        """Count tokens of one prompt.

        Args:
            prompt: 0 .. prompts - 1.
            alpha_X: acceptance in [0, 1].
            position_X: cached tokens of the query that predicts each token, rounded up to whole pages.
        """
        bin_X = (position_X.long() // self.bin_tokens).clamp(max=self.num_bins - 1)
        self.counts[prompt] += histogram(alpha_X.clamp(0, 1), unit_edges(), bin_X, self.num_bins)

    def tokens(self) -> list[int]:
        """Tokens per bin, over all prompts."""
        return [int(count) for count in self.counts.sum((0, 2))]

    def filled(self, minimum: int) -> list[bool]:
        """Bins that can be judged: at least ``minimum`` tokens, of at least two prompts."""
        prompts = (self.counts.sum(-1) > 0).sum(0).tolist()
        return [tokens >= minimum and count >= 2 for tokens, count in zip(self.tokens(), prompts, strict=True)]

    def interval(
        self,
        index: int | None,
        statistic: "Statistic",
        *,
        level: float = 0.90,
        resamples: int = 1000,
        seed: int = 0,
    ) -> Estimate:
        """A statistic of one bin and its percentile interval from prompts drawn with replacement.

        Args:
            index: the bin; None takes all of them together.
            statistic: of histograms, e.g. ``quantile_of(0.05)``.
            level: share of the bootstrap values inside the interval; its lower end is the (1 - level) / 2 quantile.
            resamples: number of bootstrap values.
            seed: of the draws; the global random state is not touched.

        Raises:
            ValueError: no tokens.
        """
        counts = self.counts.sum(1) if index is None else self.counts[:, index]
        counts = counts[counts.sum(-1) > 0]
        if not len(counts):
            raise ValueError(f"bin {index} holds no tokens; allowed: a bin with tokens")
        random = numpy.random.default_rng(seed)
        draws = torch.from_numpy(random.multinomial(len(counts), [1 / len(counts)] * len(counts), size=resamples))
        # Products in float64 are exact for whole numbers of this size.
        values = statistic((draws.double() @ counts.double()).round().long()).numpy()
        low, high = numpy.quantile(values, [(1 - level) / 2, (1 + level) / 2])
        return Estimate(float(statistic(counts.sum(0))), float(low), float(high))


Statistic = Callable[[Tensor], Tensor]
"""From histograms int64 [..., grid] to numbers [...]."""


def quantile_of(level: float) -> Statistic:
    """The quantile of alpha."""
    return lambda counts: histogram_quantile(counts, level, unit_centres())


def mean_alpha(counts: Tensor) -> Tensor:
    """Mean alpha, to half a histogram bin's width (0.00025)."""
    return counts.double() @ unit_centres() / counts.sum(-1)


def share_below(threshold: float) -> Statistic:
    """Share of tokens whose alpha lies below a threshold."""
    return lambda counts: counts[..., unit_centres() < threshold].sum(-1) / counts.sum(-1).double()
