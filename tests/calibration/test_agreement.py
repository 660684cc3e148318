"""Alpha of several sparse policies at once: the values of `token_statistics`, policy by policy."""

import pytest
import torch

from sparrow.calibration.agreement import agreement
from sparrow.kernels import token_statistics


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_all_estimators_equal_the_operator(temperature, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    head_VE, dense_XE = (torch.randn(size, generator=generator) for size in ((301, 16), (23, 16)))
    sparse = [dense_XE + scale * torch.randn(23, 16, generator=generator) for scale in (0.05, 0.5)]
    monkeypatch.setattr("sparrow.calibration.agreement.CHUNK_LOGITS", 301 * 5)
    found = agreement(dense_XE, sparse, head_VE, temperature)
    token_X = torch.zeros(23, dtype=torch.long)
    for alphas, sparse_XE in zip(found, sparse, strict=True):
        own = token_statistics(sparse_XE, head_VE, token_X, temperature=temperature, topk=20)
        expected = token_statistics(
            dense_XE, head_VE, token_X, temperature=temperature, other_hidden_XE=sparse_XE,
            candidate_ids_XC=own.topk_ids, candidate_logprobs_XC=own.topk_logprobs,
        )  # fmt: skip
        torch.testing.assert_close(alphas["exact"], expected.alpha_X, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(alphas["top20"], expected.alpha_top20_X, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(alphas["bounds"], expected.alpha_low_X, atol=2e-6, rtol=1e-5)
        assert bool((alphas["top20"] <= alphas["bounds"] + 1e-6).all())
        assert bool((alphas["bounds"] <= alphas["exact"] + 1e-6).all())


def test_no_tokens_give_empty_alphas():
    (alphas,) = agreement(torch.zeros(0, 8), [torch.zeros(0, 8)], torch.randn(30, 8), 1.0)
    assert {name: tuple(values.shape) for name, values in alphas.items()} == dict.fromkeys(alphas, (0,))
    assert set(alphas) == {"exact", "bounds", "top20"}


def test_a_policy_agrees_with_itself_and_a_small_vocabulary_has_no_rest():
    hidden_XE, head_VE = torch.randn(4, 8), torch.randn(11, 8)
    (alphas,) = agreement(hidden_XE, [hidden_XE], head_VE, 1.0)
    for values in alphas.values():
        torch.testing.assert_close(values, torch.ones(4), atol=1e-6, rtol=0)
