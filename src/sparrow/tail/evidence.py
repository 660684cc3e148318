"""Is p5 of a length bin at or above a line? Answered from counts per prompt, which add up over steps and ranks.

P5 is at least a line exactly when at most 5 % of the tokens lie below it, so the question is about a share. Tokens of
one trace, and traces of one prompt, are alike: the share's variance is taken over prompts, and what it exceeds that of
independent tokens by (the design effect) shrinks the number of tokens before Wilson's interval is drawn.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Literal

import torch
from scipy.stats import t as student
from torch import Tensor

Verdict = Literal["holds", "fails", "unsure"]


@dataclass(frozen=True)
class Evidence:
    """Sums over prompts of one bin; n and k are a prompt's tokens and how many of them lie below the line.

    Attributes:
        prompts: prompts with a token in the bin; one that comes back in another step counts again.
        tokens: sum of n.
        below: sum of k.
        below_squared: sum of k * k.
        below_tokens: sum of k * n.
        tokens_squared: sum of n * n.
    """

    prompts: float = 0.0
    tokens: float = 0.0
    below: float = 0.0
    below_squared: float = 0.0
    below_tokens: float = 0.0
    tokens_squared: float = 0.0

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def share(self) -> float:
        """Share of tokens below the line; NaN without tokens."""
        return self.below / self.tokens if self.tokens else math.nan

    @property
    def design_effect(self) -> float:
        """Variance of the share over prompts, in units of that of as many independent tokens; NaN if undefined.

        The variance is that of a ratio of sums over clusters, linearised (Cochran, Sampling Techniques, section 2.11).
        """
        share = self.share
        if self.prompts < 2 or not 0 < share < 1:
            return math.nan
        residual = self.below_squared - 2 * share * self.below_tokens + share**2 * self.tokens_squared
        variance = self.prompts / (self.prompts - 1) * max(residual, 0.0) / self.tokens**2
        return variance / (share * (1 - share) / self.tokens)

    def interval(self, confidence: float, least_design_effect: float = 1.0) -> tuple[float, float]:
        """Lower and upper bound of the share, each holding with the given confidence.

        Wilson's interval with tokens / design effect in the place of tokens, and Student's quantile for the few
        prompts there are.

        Args:
            confidence: of each side, above 0.5 and below 1.
            least_design_effect: taken where fewer below-line tokens than it needs leave it unknown or too small.

        Raises:
            ValueError: fewer than two prompts.
        """
        if self.prompts < 2:
            raise ValueError(f"an interval over {self.prompts:g} prompts: at least two are needed")
        measured = self.design_effect
        effect = least_design_effect if math.isnan(measured) else max(measured, least_design_effect)
        size = self.tokens / effect
        z2 = _student(confidence, self.prompts - 1) ** 2
        centre = (self.share + z2 / (2 * size)) / (1 + z2 / size)
        half = math.sqrt(z2 * self.share * (1 - self.share) / size + z2**2 / (4 * size**2)) / (1 + z2 / size)
        return max(0.0, centre - half), min(1.0, centre + half)

    def verdict(self, quantile: float, confidence: float, least_design_effect: float = 1.0) -> Verdict:
        """Whether the quantile lies at or above the line, if that can be told with confidence.

        Args:
            quantile: level of the tail statistic, 0.05 for p5.
            confidence: see :meth:`interval`.
            least_design_effect: see :meth:`interval`.
        """
        low, high = self.interval(confidence, least_design_effect)
        if high <= quantile:
            return "holds"
        return "fails" if low > quantile else "unsure"


def count_below(
    alpha_BT: Tensor,
    position_BT: Tensor,
    mask_BT: Tensor,
    group_B: Tensor,
    *,
    line: float,
    bin_tokens: int,
    num_bins: int,
) -> Tensor:
    """Sums of :class:`Evidence` per length bin, float64 [Q, 6]; they add up over ranks and steps.

    Args:
        alpha_BT: acceptance per token.
        position_BT: cached tokens of the query, rounded up to whole pages.
        mask_BT: tokens that count.
        group_B: prompt of each row.
        line: tokens with a smaller alpha are below.
        bin_tokens: width of a bin.
        num_bins: number of bins; the last one is open.
    """
    bin_BT = (position_BT // bin_tokens).clamp(max=num_bins - 1)
    _, prompt_B = group_B.unique(return_inverse=True)
    prompts = int(prompt_B.max()) + 1 if len(prompt_B) else 0
    cell_X = (bin_BT * prompts + prompt_B[:, None])[mask_BT]
    size = num_bins * prompts
    tokens = torch.bincount(cell_X, minlength=size).double().view(num_bins, prompts)
    low_X = (alpha_BT[mask_BT] < line).double()
    below = torch.bincount(cell_X, weights=low_X, minlength=size).view(num_bins, prompts)
    sums = [(tokens > 0).double(), tokens, below, below * below, below * tokens, tokens * tokens]
    return torch.stack([value.sum(-1) for value in sums], dim=-1)


@lru_cache(maxsize=1024)
def _student(confidence: float, freedom: float) -> float:
    return float(student.ppf(confidence, freedom))
