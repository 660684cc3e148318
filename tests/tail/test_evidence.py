"""Shares below a line and their intervals: by hand, against scipy, and by how often they hold."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from sparrow.tail.evidence import Evidence, count_below


def of_prompts(tokens: list[int], below: list[int]) -> Evidence:
    n, k = np.asarray(tokens, dtype=float), np.asarray(below, dtype=float)
    return Evidence(len(n), n.sum(), k.sum(), (k * k).sum(), (k * n).sum(), (n * n).sum())


def test_share_and_design_effect_by_hand() -> None:
    # Two prompts of 10 tokens, 1 and 3 below: residual 10 - 2 * .2 * 40 + .04 * 200 = 2, variance 2 * 2 / 400 = .01,
    # that of 20 independent tokens .2 * .8 / 20 = .008.
    evidence = of_prompts([10, 10], [1, 3])
    assert evidence.share == pytest.approx(0.2)
    assert evidence.design_effect == pytest.approx(1.25)


def test_without_correlation_it_is_the_interval_of_wilson() -> None:
    many = Evidence(prompts=1e12, tokens=1000, below=50)  # no residual, so that the least design effect is taken
    low, high = many.interval(0.95, least_design_effect=1.0)
    peer = binomtest(50, 1000).proportion_ci(0.9, method="wilson")
    assert low == pytest.approx(peer.low, abs=1e-6)
    assert high == pytest.approx(peer.high, abs=1e-6)
    half = binomtest(25, 500).proportion_ci(0.9, method="wilson")
    assert many.interval(0.95, least_design_effect=2.0) == pytest.approx((half.low, half.high), abs=1e-6)


def test_prompts_that_differ_widen_the_interval() -> None:
    alike = of_prompts([100] * 8, [5] * 8).interval(0.95)
    unlike = of_prompts([100] * 8, [0, 0, 0, 0, 0, 0, 0, 40]).interval(0.95)
    assert unlike[0] < alike[0] < 0.05 < alike[1] < unlike[1]


def test_the_bounds_hold_about_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    outside = [0, 0]
    for _ in range(1000):
        shares = generator.beta(0.05 * 60, 0.95 * 60, 16)  # correlated within prompts: a design effect of 4.2
        low, high = of_prompts([200] * 16, generator.binomial(200, shares).tolist()).interval(0.95)
        outside[0] += high < 0.05
        outside[1] += low > 0.05
    assert 10 <= outside[0] <= 100
    assert 10 <= outside[1] <= 100


def test_verdicts() -> None:
    assert of_prompts([200] * 8, [1] * 8).verdict(0.05, 0.95) == "holds"
    assert of_prompts([200] * 8, [20] * 8).verdict(0.05, 0.95) == "fails"
    assert of_prompts([200] * 8, [9, 10, 11, 10, 9, 10, 11, 10]).verdict(0.05, 0.95) == "unsure"
    assert of_prompts([10] * 2, [0, 0]).verdict(0.05, 0.95) == "unsure"  # nothing seen below is no proof


def test_one_prompt_gives_no_interval() -> None:
    with pytest.raises(ValueError, match="over 1 prompts: at least two"):
        of_prompts([10], [1]).interval(0.95)
    assert math.isnan(Evidence().share)


@pytest.mark.parametrize("seed", range(3))
def test_p5_is_at_least_a_line_where_at_most_a_twentieth_lies_below(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    alpha_BT = torch.rand(7, 143, generator=generator) ** 0.05
    line = float(torch.quantile(alpha_BT.flatten(), 0.05))
    position_BT = torch.arange(143).expand(7, -1)
    every_BT = torch.ones_like(alpha_BT, dtype=torch.bool)
    for shift, holds in ((-1e-3, True), (1e-3, False)):
        sums = count_below(
            alpha_BT, position_BT, every_BT, torch.arange(7), line=line + shift, bin_tokens=200, num_bins=1
        )
        assert (Evidence(*sums[0].tolist()).share <= 0.05) == holds


def test_counts_by_hand() -> None:
    # Bins of 4: positions 0..3 and, open, 4..; rows 0 and 1 are one prompt. The last two columns are padding.
    alpha_BT = torch.tensor(
        [[0.1, 0.9, 0.9, 0.9, 0.2, 0.9], [0.9, 0.3, 0.9, 0.9, 0.9, 0.9], [0.4, 0.4, 0.9, 0.9, 0.9, 0.1]]
    )
    position_BT = torch.tensor([0, 2, 3, 4, 9, 11]).expand(3, -1)
    mask_BT = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]], dtype=torch.bool)
    sums = count_below(alpha_BT, position_BT, mask_BT, torch.tensor([5, 5, 2]), line=0.5, bin_tokens=4, num_bins=2)
    # Bin 0: prompt 5 has 5 tokens, 2 below; prompt 2 has 3, 2 below. Bin 1: prompt 5 has 2 tokens, 1 below.
    assert sums.tolist() == [[2, 8, 4, 8, 2 * 5 + 2 * 3, 34], [1, 2, 1, 1, 2, 4]]


def test_shards_and_steps_add_up_and_padding_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(4)
    alpha_BT = torch.rand(6, 31, generator=generator)
    position_BT = torch.arange(31).expand(6, -1)
    mask_BT = torch.rand(6, 31, generator=generator) < 0.7
    group_B = torch.tensor([0, 0, 1, 2, 2, 2])
    bins = {"line": 0.3, "bin_tokens": 7, "num_bins": 3}
    whole = count_below(alpha_BT, position_BT, mask_BT, group_B, **bins)
    parts = [
        count_below(alpha_BT[rows], position_BT[rows], mask_BT[rows], group_B[rows], **bins)
        for rows in (slice(0, 3), slice(3, 6))
    ]
    assert torch.equal(parts[0] + parts[1], whole)
    padded_BT = torch.cat([alpha_BT, torch.full((6, 5), torch.nan)], 1)
    wide = torch.arange(36).expand(6, -1), torch.cat([mask_BT, torch.zeros(6, 5, dtype=torch.bool)], 1)
    assert torch.equal(count_below(padded_BT, *wide, group_B, **bins), whole)
