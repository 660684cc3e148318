"""Histogram quantiles against torch.quantile: any size, any shape of distribution, any level."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow.metrics.functional.quantiles import (
    histogram,
    histogram_quantile,
    log_ratio_centres,
    log_ratio_edges,
    unit_centres,
    unit_edges,
)

LEVELS = (0.0, 0.01, 0.05, 0.1, 0.5, 0.95, 1.0)


def beta(a, b, number, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.distributions.Beta(torch.tensor(a).double(), torch.tensor(b).double()).sample((number,))


DISTRIBUTIONS = {
    "study_512": 0.999 * beta(2.209, 0.47, 3000),
    "study_16384": 0.999 * beta(11.32, 0.55, 3000),
    "mostly_one": torch.cat([torch.ones(2000).double(), 1 - 1e-7 * torch.rand(500).double(), beta(2.0, 1.0, 90)]),
    "uniform": torch.linspace(0, 1, 997, dtype=torch.float64),
    "two_far_apart": torch.tensor([0.0, 1.0], dtype=torch.float64),
    "one": torch.tensor([0.8613], dtype=torch.float64),
    "all_one": torch.ones(11, dtype=torch.float64),
    "all_zero": torch.zeros(7, dtype=torch.float64),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("level", LEVELS)
def test_within_a_quarter_of_a_thousandth(name, level):
    values = DISTRIBUTIONS[name]
    estimate = histogram_quantile(histogram(values, unit_edges()), level, unit_centres())
    assert estimate.item() == pytest.approx(torch.quantile(values, level).item(), abs=0.000251)


def test_one_is_exactly_one_and_the_grid_is_fine_next_to_it():
    ones = histogram(torch.ones(5), unit_edges())
    assert histogram_quantile(ones, 0.05, unit_centres()).item() == 1.0
    values = torch.tensor([0.99999], dtype=torch.float64)
    assert histogram_quantile(histogram(values, unit_edges()), 0.5, unit_centres()).item() == pytest.approx(
        0.99999, abs=1e-6
    )


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=40), level=st.floats(0, 1))
def test_any_values_at_any_level(values, level):
    tensor = torch.tensor(values, dtype=torch.float64)
    estimate = histogram_quantile(histogram(tensor, unit_edges()), level, unit_centres())
    assert estimate.item() == pytest.approx(torch.quantile(tensor, level).item(), abs=0.000251)


def test_rows_are_kept_apart_and_empty_ones_are_nan():
    values, row = torch.tensor([0.2, 0.9, 0.4]), torch.tensor([2, 0, 2])
    counts = histogram(values, unit_edges(), row, 3)
    assert counts.sum(-1).tolist() == [1, 0, 2]
    low, empty, high = histogram_quantile(counts, 0.5, unit_centres()).tolist()
    assert low == pytest.approx(0.9, abs=3e-4)
    assert empty != empty
    assert high == pytest.approx(0.3, abs=3e-4)


def test_shards_add_up():
    values = DISTRIBUTIONS["study_512"]
    whole = histogram(values, unit_edges())
    assert whole.equal(sum(histogram(shard, unit_edges()) for shard in values.split(377)))


def test_log_ratio_grid():
    edges = log_ratio_edges()
    assert (edges.diff() > 0).all()
    assert edges[0] < -20
    assert edges[-1] > 20
    values = torch.tensor([-3.0, -0.01, 0.0, 0.02, 1.5], dtype=torch.float64)
    counts = histogram(values, edges)
    for level in (0.0, 0.25, 0.5, 0.75, 1.0):
        exact = torch.quantile(values, level).item()
        assert histogram_quantile(counts, level, log_ratio_centres()).item() == pytest.approx(
            exact, abs=0.00026 + 0.0026 * abs(exact)
        )


def test_level_outside_its_range():
    with pytest.raises(ValueError, match=r"quantile is 1\.5"):
        histogram_quantile(torch.ones(1, 3).long(), 1.5, torch.arange(3))
