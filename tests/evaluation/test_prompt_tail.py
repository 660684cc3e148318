"""Tail per bin with intervals over prompts: values by hand, by numpy, and from a bootstrap written out."""

import numpy
import pytest
import torch

from sparrow.evaluation.prompt_tail import PromptTail, mean_alpha, quantile_of, share_below


def test_bins_tokens_and_quantiles():
    tail = PromptTail(2, bin_tokens=4, num_bins=2)
    tail.add(0, torch.tensor([1.0, 0.5, 0.25]), torch.tensor([0, 3, 4]))
    tail.add(1, torch.tensor([0.75, 1.0]), torch.tensor([100, 2]))
    assert tail.tokens() == [3, 2]
    assert tail.filled(3) == [True, False]
    assert tail.filled(2) == [True, True]
    assert [tail.interval(place, quantile_of(0.5)).value for place in (0, 1)] == pytest.approx([1.0, 0.5], abs=3e-4)
    assert [tail.interval(place, mean_alpha).value for place in (0, 1)] == pytest.approx([2.5 / 3, 0.5], abs=3e-4)


def test_a_bin_of_one_prompt_is_not_filled():
    tail = PromptTail(3, bin_tokens=4, num_bins=1)
    tail.add(1, torch.ones(50), torch.zeros(50, dtype=torch.long))
    assert tail.filled(10) == [False]


def test_interval_is_the_percentile_bootstrap_over_prompts():
    random = numpy.random.default_rng(1)
    values = [random.uniform(0.2 * prompt, 1.0, size=40 + 10 * prompt) for prompt in range(4)]
    tail = PromptTail(5, bin_tokens=8, num_bins=2)  # the fifth prompt has no token in the bin and must not count
    for prompt, alpha in enumerate(values):
        tail.add(prompt, torch.from_numpy(alpha), torch.full((len(alpha),), 9))
    estimate = tail.interval(1, quantile_of(0.05), level=0.8, resamples=400, seed=7)
    draws = numpy.random.default_rng(7).multinomial(4, [0.25] * 4, size=400)
    resampled = [
        numpy.quantile(numpy.concatenate([values[p] for p in range(4) for _ in range(times[p])]), 0.05)
        for times in draws
    ]
    low, high = numpy.quantile(resampled, [0.1, 0.9])
    assert estimate.value == pytest.approx(numpy.quantile(numpy.concatenate(values), 0.05), abs=5e-4)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-4)


def test_share_below_and_all_bins_together():
    tail = PromptTail(2, bin_tokens=8, num_bins=2)
    tail.add(0, torch.tensor([0.2, 0.9]), torch.tensor([0, 9]))
    tail.add(1, torch.tensor([0.9, 0.9]), torch.tensor([0, 9]))
    share = tail.interval(None, share_below(0.5), level=0.9, resamples=200)
    assert share.value == 0.25
    assert (share.low, share.high) == (0.0, 0.5)


def test_errors_name_the_bin_and_the_key():
    with pytest.raises(ValueError, match="bin 0 holds no tokens"):
        PromptTail(1, 4, 1).interval(0, mean_alpha)
    with pytest.raises(ValueError, match="num_bins=0: must be 1 or more"):
        PromptTail(1, 4, 0)
