"""The Beta fit finds known parameters, leaves agreeing tokens out, and gives up on too few."""

import numpy
import pytest
import torch
from scipy import stats

from sparrow.auditing.beta_fit import fit_beta


@pytest.mark.parametrize(("a", "b"), [(2.209, 0.47), (11.32, 0.55), (1.0, 1.0)])
def test_known_parameters_are_recovered(a, b):
    drawn = 0.999 * stats.beta.rvs(a, b, size=20_000, random_state=3)
    agreeing = numpy.full(20_000, 0.9995)
    fit = fit_beta(torch.from_numpy(numpy.concatenate([drawn, agreeing])))
    assert fit.a == pytest.approx(a, rel=0.05)
    assert fit.b == pytest.approx(b, rel=0.05)
    assert fit.deviation == pytest.approx(0.999 * stats.beta(a, b).std(), rel=0.05)
    assert fit.ks < 0.015
    assert fit.tokens == pytest.approx(20_000, abs=5)
    assert fit.share == pytest.approx(0.5, abs=1e-3)


def test_standard_deviations_of_the_study():
    """Beta(2.209, 0.47) has standard deviation .198 and Beta(11.32, 0.55) .059 on [0, 0.999]."""
    for a, b, deviation in ((2.209, 0.47, 0.198), (11.32, 0.55, 0.059)):
        fit = fit_beta(torch.from_numpy(0.999 * stats.beta.rvs(a, b, size=50_000, random_state=1)))
        assert fit.deviation == pytest.approx(deviation, abs=0.004)


def test_a_poor_fit_shows_in_ks():
    halves = torch.cat([torch.linspace(0.05, 0.1, 500), torch.linspace(0.9, 0.95, 500)])
    assert fit_beta(halves).ks > 0.15


def test_too_few_or_equal_tokens_give_none():
    assert fit_beta(torch.linspace(0.1, 0.9, 19)) is None
    assert fit_beta(torch.full((100,), 0.5)) is None
    assert fit_beta(torch.ones(100)) is None
