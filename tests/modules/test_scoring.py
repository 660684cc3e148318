"""Scores against a plain transformers forward and torch's own log-softmax."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from sparrow.metrics.functional import acceptance_rate
from sparrow.modules import Experience, Scores, score
from sparrow.modules.passes import dense_pass
from sparrow.modules.scoring import merge
from sparrow.schedule import BudgetSchedule

SPARSE = BudgetSchedule.constant(0, page_size=4, dense_layers=())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_and_entropy_match_transformers(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], temperature: float
) -> None:
    model = make_model()
    experience = roll(model, temperature=temperature)
    with torch.no_grad(), dense_pass(model):
        scores = score(model, experience, temperature)
        logits_BTV = model(input_ids=experience.tokens_BT, use_cache=False).logits / temperature
    logprobs_BTV = logits_BTV.log_softmax(-1)
    for row in range(len(experience)):
        for index in range(int(experience.prompt_len_B[row]), int(experience.length_B[row])):
            expected_V = logprobs_BTV[row, index - 1]
            token = int(experience.tokens_BT[row, index])
            assert scores.logprobs_BT[row, index].item() == pytest.approx(expected_V[token].item(), abs=1e-5)
            entropy = -(expected_V.exp() * expected_V).sum().item()
            assert scores.entropy_BT[row, index].item() == pytest.approx(entropy, abs=1e-5)
    assert bool((scores.logprobs_BT[~experience.mask_BT] == 0).all())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_alpha_is_the_overlap_of_the_two_distributions(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience], temperature: float
) -> None:
    model = make_model()
    experience = roll(model, SPARSE, temperature)
    with torch.no_grad(), dense_pass(model):
        scores = score(model, experience, temperature)
        dense_BTV = model(input_ids=experience.tokens_BT, use_cache=False).logits
    assert scores.alpha_BT is not None
    assert experience.sparse_hidden is not None
    least = 1.0
    for row, hidden_TE in enumerate(experience.sparse_hidden):
        start, end = int(experience.prompt_len_B[row]), int(experience.length_B[row])
        sparse_TV = hidden_TE @ model.get_output_embeddings().weight.detach().T
        expected_T = acceptance_rate(dense_BTV[row, start - 1 : end - 1], sparse_TV, temperature)
        torch.testing.assert_close(scores.alpha_BT[row, start:end], expected_T.float(), atol=2e-5, rtol=0)
        least = min(least, expected_T.min().item())
    assert least < 0.95, "the schedule of this test must make the actor differ"


def test_dense_rollout_agrees_with_the_trainer(
    make_model: Callable[[], PreTrainedModel], roll: Callable[..., Experience]
) -> None:
    model = make_model()
    experience = roll(model)
    with torch.no_grad(), dense_pass(model):
        scores = score(model, experience, 1.0)
    mask_BT = experience.mask_BT
    gap_X = (scores.logprobs_BT - experience.sparse_logprobs_BT)[mask_BT]
    assert (gap_X.exp() - 1).abs().max().item() < 1e-4
    assert scores.alpha_BT is not None
    assert scores.alpha_BT[mask_BT].min().item() > 0.9999


def test_merge_puts_rows_back() -> None:
    first = Scores(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    second = Scores(torch.tensor([[5.0, 6.0, 7.0]]), torch.tensor([[8.0, 9.0, 10.0]]))
    merged = merge([([1], first), ([0], second)], (2, 3))
    assert merged.logprobs_BT.tolist() == [[5.0, 6.0, 7.0], [1.0, 2.0, 0.0]]
    assert merged.entropy_BT.tolist() == [[8.0, 9.0, 10.0], [3.0, 4.0, 0.0]]
    assert merged.alpha_BT is None
    assert merged.select([1], 2).logprobs_BT.tolist() == [[1.0, 2.0]]
