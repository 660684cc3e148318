"""The random numbers against splitmix64, the draw against its distribution, the filters against plain Python."""

import math

import pytest
import torch
from scipy.stats import chisquare, kstest

from sparrow.rollout.sampler import SamplingParams, filter_probs, invert_cdf, sample, stream_of, uniforms


def splitmix64(state, draws):
    """The published generator (Steele, Lea, Flood 2014), in Python integers."""
    for _ in range(draws):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        mixed = state
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        yield mixed ^ (mixed >> 31)


def test_uniforms_are_splitmix64():
    assert next(splitmix64(0, 1)) == 0xE220A8397B1DCDAF  # the generator's known first output
    for stream in (0, 1, -1, 2**63 - 1, -(2**63), 123456789):
        expected = [(value >> 11) / 2**53 for value in splitmix64(stream % 2**64, 50)]
        got = uniforms(torch.full((50,), stream), torch.arange(50))
        assert got.dtype == torch.float64
        assert got.tolist() == expected


def test_streams_differ_in_every_argument_and_are_64_bit():
    seeds = [(s, t, k, j) for s in (0, 1, -1) for t in range(4) for k in (0, 5, 2**63 - 1, -3) for j in range(8)]
    streams = [stream_of(*arguments) for arguments in seeds]
    assert len(set(streams)) == len(seeds)
    assert all(-(2**63) <= stream < 2**63 for stream in streams)
    assert stream_of(1, 2, 3, 4) != stream_of(2, 1, 3, 4)


def test_uniforms_are_uniform_over_positions_and_over_samples():
    along = uniforms(torch.full((20000,), stream_of(0, 0, 0, 0)), torch.arange(20000))
    across = uniforms(torch.tensor([stream_of(0, 0, 7, j) for j in range(20000)]), torch.full((20000,), 3))
    for numbers in (along, across):
        assert kstest(numbers.numpy(), "uniform").pvalue > 1e-3
        assert numbers.min() >= 0.0
        assert numbers.max() < 1.0


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("vocab", [2, 5, 300, 700])
def test_draws_follow_the_distribution_and_never_hit_minus_infinity(vocab, temperature):
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(vocab, generator=generator)
    if vocab > 2:
        logits[[0, vocab // 2, vocab - 1]] = -math.inf
    draws = 20000
    uniform = uniforms(torch.full((draws,), stream_of(9, 0, vocab, 0)), torch.arange(draws))
    sampled = sample(logits.expand(draws, vocab), uniform, SamplingParams(temperature))
    counts = torch.bincount(sampled.token_B, minlength=vocab).double()
    probs = torch.softmax(logits.double() / temperature, dim=-1)
    assert counts[probs == 0].sum() == 0
    # Cells with few expected draws are pooled, as the test's approximation needs.
    rare = probs * draws < 5
    observed = torch.cat((counts[~rare], counts[rare].sum()[None]))[: None if probs[rare].sum() > 0 else -1]
    expected = torch.cat((probs[~rare], probs[rare].sum()[None]))[: None if probs[rare].sum() > 0 else -1] * draws
    assert chisquare(observed.numpy(), (expected * observed.sum() / expected.sum()).numpy()).pvalue > 1e-3
    expected_logprob = probs.log()[sampled.token_B].float()
    torch.testing.assert_close(sampled.logprob_B, expected_logprob, rtol=0, atol=1e-5)


def test_the_inverse_cdf_at_its_corners():
    most = 1.0 - 2.0**-53
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).expand(8, 6)
    uniform = torch.tensor([0.0, 0.2499999, 0.25, 0.5, 0.7499999, 0.75, 0.9, most], dtype=torch.float64)
    assert invert_cdf(probs, uniform).tolist() == [1, 1, 3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize("vocab", [257, 512, 1000])
def test_the_inverse_cdf_over_blocks_equals_a_search_in_the_cumulative_sum(vocab):
    generator = torch.Generator().manual_seed(0)
    probs = torch.softmax(4 * torch.randn(400, vocab, generator=generator), dim=-1)
    probs[torch.rand(400, vocab, generator=generator) < 0.5] = 0.0
    uniform = torch.rand(400, generator=generator, dtype=torch.float64)
    uniform[:3] = torch.tensor([0.0, 1.0 - 2.0**-53, 0.5])
    got = invert_cdf(probs, uniform)
    assert (probs.gather(1, got[:, None]) > 0).all()
    cumulative = probs.double().cumsum(dim=-1)
    target = uniform * cumulative[:, -1]
    below = (cumulative - probs).gather(1, got[:, None])[:, 0]
    assert (below <= target + 1e-12).all()
    assert (cumulative.gather(1, got[:, None])[:, 0] > target - 1e-12).all()


def test_one_possible_token_is_always_drawn():
    logits = torch.full((3, 600), -math.inf)
    logits[[0, 1, 2], [0, 300, 599]] = torch.tensor([-4.0, 0.0, 7.0])
    for value in (0.0, 0.5, 1.0 - 2.0**-53):
        sampled = sample(logits, torch.full((3,), value, dtype=torch.float64), SamplingParams())
        assert sampled.token_B.tolist() == [0, 300, 599]
        assert sampled.logprob_B.tolist() == [0.0, 0.0, 0.0]


def kept_by_hand(probs, params):
    """Ids that survive the filters, one row of Python floats at a time, renormalising after every filter."""
    order = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1.0:
        total, reached, kept = sum(probs[i] for i in order), 0.0, []
        for i in order:
            kept.append(i)
            reached += probs[i] / total
            if reached >= params.top_p:
                break
        order = kept
    if params.min_p > 0.0:
        order = [i for i in order if probs[i] >= params.min_p * probs[order[0]]]
    return sorted(order)


@pytest.mark.parametrize("top_k", [0, 1, 7, 99])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-6])
@pytest.mark.parametrize("min_p", [0.0, 0.1, 1.0])
def test_filters_keep_what_plain_python_keeps(top_k, top_p, min_p):
    params = SamplingParams(1.0, top_k, top_p, min_p)
    probs = torch.softmax(2 * torch.randn(12, 23, generator=torch.Generator().manual_seed(top_k)), dim=-1)
    filtered = filter_probs(probs, params)
    for row, before in zip(filtered, probs):
        assert row.nonzero()[:, 0].tolist() == kept_by_hand(before.tolist(), params)
        assert torch.equal(row[row > 0].float(), before[row > 0])


def test_filters_keep_the_lower_id_of_equals():
    probs = torch.tensor([[0.1, 0.3, 0.3, 0.3]])
    assert filter_probs(probs, SamplingParams(top_k=2))[0].nonzero()[:, 0].tolist() == [1, 2]


def test_filtered_draws_report_the_unfiltered_logprob():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).expand(3000, 3)
    uniform = uniforms(torch.full((3000,), 4), torch.arange(3000))
    sampled = sample(logits, uniform, SamplingParams(top_k=2), topk=3)
    counts = torch.bincount(sampled.token_B, minlength=3).tolist()
    assert counts[2] == 0
    assert chisquare(counts[:2], [3000 * 0.625, 3000 * 0.375]).pvalue > 1e-3
    torch.testing.assert_close(sampled.logprob_B.exp(), torch.tensor([0.5, 0.3, 0.2])[sampled.token_B])
    assert sampled.topk_ids_BC[0].tolist() == [0, 1, 2]
    torch.testing.assert_close(sampled.topk_logprobs_BC[0].exp(), torch.tensor([0.5, 0.3, 0.2]))


def test_greedy_takes_the_best_and_reports_temperature_one():
    logits = torch.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, -math.inf]])
    sampled = sample(logits, torch.tensor([0.99, 0.99], dtype=torch.float64), SamplingParams(0.0))
    assert sampled.token_B.tolist() == [1, 0]
    expected = [3.0 - math.log(math.e + math.e**3 + math.e**2), -math.log(1 + math.exp(-1))]
    torch.testing.assert_close(sampled.logprob_B, torch.tensor(expected))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"top_k": -1}, "top_k=-1"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"min_p": -0.5}, "min_p=-0.5"),
    ],
)
def test_impossible_parameters_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**arguments)
