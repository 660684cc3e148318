"""What corrections keep, by hand; and the share of the gradient's norm against gradients made one by one."""

import math

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from sparrow.algorithms.corrections import Bypass, NoCorrection, SequenceMIS, TokenMIS, TokenTIS
from sparrow.auditing.corrections import effect_of, gradients_kept, policy_inputs


def weighted(by_hand, weights, lengths, prompt_len=1):
    """Sequences whose sampled tokens have the given weights exp(dense - sparse)."""
    width = max(lengths)
    sparse_BT = torch.full((len(lengths), width), -2.0)
    dense_BT = sparse_BT.clone()
    for row, values in enumerate(weights):
        dense_BT[row, prompt_len : lengths[row]] = -2.0 + torch.tensor(values).log()
    measured = by_hand(torch.ones(len(lengths), width), dense_BT, sparse_BT, [prompt_len] * len(lengths), lengths,
                       list(range(len(lengths))))  # fmt: skip
    return measured, policy_inputs(measured, torch.ones(len(lengths)), seed=0)


def test_effects_by_hand(by_hand):
    _, inputs = weighted(by_hand, [[1.0, 1.0], [4.0, 1.0, 0.5, 3.0]], [3, 5])
    none = effect_of(NoCorrection(), inputs, None)
    assert (none.rejected, none.rejected_sequences, none.mean_weight, none.effective) == (0, 0, 1, pytest.approx(1))
    tis = effect_of(TokenTIS(cap=2.0), inputs, None)
    assert tis.rejected == 0
    assert tis.mean_weight == pytest.approx((1 + 1 + 2 + 1 + 0.5 + 2) / 6)
    assert tis.effective == pytest.approx(7.5**2 / (6 * (1 + 1 + 4 + 1 + 0.25 + 4)))
    assert tis.by_outcome == ()
    mis = effect_of(TokenMIS(high=2.0), inputs, torch.tensor([True, False]))
    assert mis.rejected == pytest.approx(2 / 6)
    assert mis.rejected_sequences == 0
    assert mis.mean_weight == pytest.approx((1 + 1 + 1 + 0.5) / 4)
    assert [(share.name, share.rejected, share.tokens) for share in mis.by_length] == [
        ("2 to 2 tokens", 0.0, 2), ("4 to 4 tokens", 0.5, 4),
    ]  # fmt: skip
    assert [(share.name, share.rejected) for share in mis.by_outcome] == [("correct", 0.0), ("not correct", 0.5)]
    sequence = effect_of(SequenceMIS(high=3.0), inputs, None)
    assert (sequence.rejected, sequence.rejected_sequences) == (pytest.approx(4 / 6), 0.5)


def test_ten_parts_by_length(by_hand):
    lengths = [*range(2, 22)]
    weights = [[1.0] * (length - 1) for length in lengths]
    weights[-1] = [5.0] * 20
    _, inputs = weighted(by_hand, weights, lengths)
    found = effect_of(TokenMIS(high=2.0), inputs, None).by_length
    assert [share.name for share in found][0::9] == ["1 to 2 tokens", "19 to 20 tokens"]
    assert [share.rejected for share in found] == [0] * 9 + [pytest.approx(20 / 39)]


def test_gradient_norms_are_those_of_separate_backwards(by_hand):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=7, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    measured, _ = weighted(by_hand, [[1.0, 1.0], [1.0, 1.0, 1.0, 1.0]], [3, 5])
    tokens_BT, mask_BT = measured.experience.tokens_BT, measured.experience.mask_BT
    logits_BTV = model(input_ids=tokens_BT).logits[:, :-1].log_softmax(-1)
    dense_BT = torch.zeros(2, 5)
    dense_BT[:, 1:] = logits_BTV.gather(-1, tokens_BT[:, 1:, None])[..., 0].detach()
    gap_BT = torch.tensor([[0, 0.0, 0.9, 0, 0], [0, 0.2, -0.4, 1.2, 0.1]])
    measured = by_hand(torch.ones(2, 5), dense_BT, dense_BT - gap_BT, [1, 1], [3, 5], [0, 1])
    inputs = policy_inputs(measured, torch.tensor([1.0, -0.5]), seed=0)

    def norm(weight_BT):
        model.zero_grad()
        logprobs_BTV = model(input_ids=tokens_BT).logits[:, :-1].log_softmax(-1)
        logprobs_BT = logprobs_BTV.gather(-1, tokens_BT[:, 1:, None])[..., 0]
        advantages_B1 = torch.tensor([[1.0], [-0.5]])
        (-(weight_BT * advantages_B1 * mask_BT)[:, 1:] * logprobs_BT).sum().backward()
        return math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters()))

    weight_BT = gap_BT.exp()
    rules = {"tis": TokenTIS(cap=2.0), "mis": TokenMIS(high=2.0), "none": NoCorrection()}
    kept = gradients_kept(model, measured, inputs, rules, tokens=100, temperature=1.0)
    plain = norm(torch.ones(2, 5))
    assert kept["none"] == pytest.approx(1.0)
    assert kept["tis"] == pytest.approx(norm(weight_BT.clamp(max=2.0)) / plain, rel=1e-4)
    assert kept["mis"] == pytest.approx(norm(weight_BT * (weight_BT <= 2.0)) / plain, rel=1e-4)
    first = gradients_kept(model, measured, inputs, {"tis": TokenTIS()}, tokens=3, temperature=1.0)  # only row 0 fits
    only_BT = torch.tensor([[1.0], [0.0]])
    assert first["tis"] == pytest.approx(norm(weight_BT.clamp(max=2.0) * only_BT) / norm(only_BT), rel=1e-4)
    assert math.isnan(gradients_kept(model, measured, inputs, rules, tokens=2, temperature=1.0)["tis"])
    assert all(math.isfinite(value) for value in gradients_kept(
        model, measured, inputs, {"bypass": Bypass()}, tokens=100, temperature=1.0).values())  # fmt: skip
