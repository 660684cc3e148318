"""How the part of alpha that disagrees at all is distributed: a Beta distribution on [0, 0.999], and its fit."""

import math
from dataclasses import dataclass

import numpy
from scipy import stats
from torch import Tensor

UPPER = 0.999
"""Tokens from here on agree; the fit is of the others."""
LEAST = 20
"""Tokens below which no fit is made."""


@dataclass(frozen=True)
class BetaFit:
    """A fit by maximum likelihood.

    Attributes:
        a: first shape.
        b: second shape.
        deviation: standard deviation of the fitted distribution.
        ks: Kolmogorov-Smirnov distance of the data from it.
        tokens: tokens below 0.999.
        share: their share of all tokens.
    """

    a: float
    b: float
    deviation: float
    ks: float
    tokens: int
    share: float

    def density(self, alpha: numpy.ndarray) -> numpy.ndarray:
        """Fitted density at alpha, of the part below 0.999."""
        found: numpy.ndarray = stats.beta.pdf(alpha, self.a, self.b, loc=0, scale=UPPER)
        return found


def fit_beta(alpha_X: Tensor) -> BetaFit | None:
    """Fit the part below 0.999; None where fewer than 20 tokens (or only equal ones) are there.

    Args:
        alpha_X: exact acceptance of tokens.
    """
    values = alpha_X.double().numpy()
    below = values[values < UPPER]
    if len(below) < LEAST or float(numpy.ptp(below)) == 0.0:
        return None
    # The likelihood is infinite at the ends, where rounding may put a token.
    inside = numpy.clip(below, 1e-6, UPPER - 1e-6)
    a, b, _, _ = stats.beta.fit(inside, floc=0, fscale=UPPER)
    fitted = stats.beta(a, b, loc=0, scale=UPPER)
    ks = float(stats.kstest(inside, fitted.cdf).statistic)
    deviation = UPPER * math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
    return BetaFit(float(a), float(b), deviation, ks, len(below), len(below) / len(values))
