"""Blocks and correlations by hand."""

import numpy
import pytest
import torch

from sparrow.auditing.lengths import Blocks, blocks_of, correlation, pearson


def test_blocks_by_hand(by_hand):
    alpha_BT = torch.ones(2, 12)
    alpha_BT[0, 3:6] = torch.tensor([0.0, 0.5, 1.0])
    alpha_BT[0, 6:9] = 0.25
    zeros = torch.zeros(2, 12)
    blocks = blocks_of(by_hand(alpha_BT, zeros, zeros, [2, 2], [11, 5], [0, 1]), "exact", 3)
    # Decoded tokens of row 0 are 3 .. 10: two whole blocks and two tokens left over; row 1 has 3, 4: none.
    assert blocks.prompt.tolist() == [0, 0]
    assert blocks.position.tolist() == [4, 7]
    assert blocks.mean.tolist() == [0.5, 0.25]
    assert blocks.tail == pytest.approx([0.05, 0.25])


def test_pearson_by_hand():
    assert pearson(numpy.array([1.0, 2, 3]), numpy.array([3.0, 2, 1])) == pytest.approx(-1)
    assert pearson(numpy.array([1.0, 2, 3, 4]), numpy.array([1.0, 3, 2, 4])) == pytest.approx(0.8)
    assert numpy.isnan(pearson(numpy.array([1.0, 2]), numpy.array([1.0, 2])))
    assert numpy.isnan(pearson(numpy.array([1.0, 2, 3]), numpy.ones(3)))


def test_the_interval_is_over_prompts():
    """Two prompts, one rising and one falling: resamples hold only the one, only the other, or both."""
    position, values = numpy.array([1.0, 2, 3, 1, 2, 3]), numpy.array([1.0, 2, 3, 3, 2, 1])
    blocks = Blocks(numpy.array([0.0, 0, 0, 1, 1, 1]), position, values, values)
    found = correlation(blocks, values, level=0.9, resamples=200)
    assert found.value == pytest.approx(0)
    assert (found.low, found.high) == pytest.approx((-1, 1))
    empty = Blocks(*(numpy.zeros(0) for _ in range(4)))
    assert numpy.isnan(correlation(empty, empty.mean, level=0.9, resamples=10).value)
