"""The rule of speculative sampling, by hand and by counting."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from sparrow.rollout.sampler import (
    SamplingParams,
    distribution,
    filter_probs,
    sample,
    stream_of,
    substream_of,
    uniforms,
)
from sparrow.rollout.verification import accepted_length, residual


def test_acceptance_by_hand():
    dense = torch.tensor([[0.5, 0.2, 0.9], [0.1, 0.9, 0.9], [0.5, 0.5, 0.5], [0.0, 1.0, 1.0]], dtype=torch.float64)
    draft = torch.tensor([[0.25, 0.8, 0.1], [0.4, 0.1, 0.1], [0.5, 0.5, 0.5], [0.5, 1.0, 1.0]], dtype=torch.float64)
    # Ratios: 2, 1/4, 9 | 1/4 | 1, 1 (then its end) | 0: accepted while the number is below.
    uniform = torch.tensor([[0.99, 0.25, 0.0], [0.2499, 0.5, 0.5], [0.999, 0.999, 0.0], [0.0, 0.0, 0.0]]).double()
    count = torch.tensor([3, 3, 2, 3])
    assert accepted_length(dense, draft, uniform, count).tolist() == [1, 3, 2, 0]
    assert accepted_length(dense, draft, uniform, torch.tensor([0, 1, 0, 3])).tolist() == [0, 1, 0, 0]
    assert accepted_length(dense[:, :0], draft[:, :0], uniform[:, :0], torch.zeros(4, dtype=torch.int64)).tolist() == (
        [0] * 4
    )


def test_residual_by_hand():
    dense = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    draft = torch.tensor([[0.25, 0.5, 0.25], [0.0, 1.0, 0.0]])
    # The second row is the case of rounding: nothing is left, so p itself.
    assert residual(dense, draft).tolist() == [[0.25, 0.0, 0.0], [0.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(0.6), SamplingParams(1.3, 3), SamplingParams(1.0, 0, 0.7, 0.1)], ids=str
)
def test_the_distribution_is_what_sample_draws_by(params):
    logits = torch.randn(1, 6, generator=torch.Generator().manual_seed(0)).expand(20000, 6)
    probs = distribution(logits[:1], params)[0].double()
    assert float(probs.sum()) == pytest.approx(1.0, abs=1e-6)
    expected = filter_probs(torch.softmax(logits[:1] / params.temperature, dim=-1), params)[0]
    torch.testing.assert_close(probs, expected / expected.sum(), rtol=1e-5, atol=1e-7)
    drawn = sample(logits, uniforms(torch.full((20000,), stream_of(0, 0, 0, 0)), torch.arange(20000)), params).token_B
    counts = torch.bincount(drawn, minlength=6).double()
    assert (counts[probs == 0] == 0).all()
    kept = probs > 0
    assert chisquare(counts[kept], probs[kept] / probs[kept].sum() * 20000).pvalue > 1e-3


def test_greedy_is_all_on_the_best_and_nan_stays():
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, -torch.inf], [0.0, torch.nan, 0.0]])
    probs = distribution(logits, SamplingParams(0.0))
    assert probs[:2].tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    assert probs[2].isnan().any()


def test_purposes_have_their_own_numbers():
    streams = np.array([stream_of(1, 2, 3, i) for i in range(500)])
    numbers = [streams, substream_of(streams, 1), substream_of(streams, 2)]
    drawn = torch.stack([uniforms(torch.from_numpy(s), torch.arange(500)) for s in numbers])
    assert len(set(drawn.flatten().tolist())) == 1500
    assert torch.corrcoef(drawn).fill_diagonal_(0).abs().max() < 4 / 500**0.5
    for row in drawn:
        assert chisquare(torch.histc(row, 10, 0, 1).tolist()).pvalue > 1e-3
    assert substream_of(streams[:1], 1).tolist() == [stream_of_five(1, 2, 3, 0, 1)]


def stream_of_five(*parts):
    """splitmix64 of five parts one after the other, in plain Python."""
    mask, state = (1 << 64) - 1, 0
    for part in parts:
        state = (state + 0x9E3779B97F4A7C15 + part) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state - (1 << 64) if state >= 1 << 63 else state
