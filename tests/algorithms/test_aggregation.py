"""Aggregations by hand, and the denominator as a named choice."""

from functools import partial

import pytest
import torch

from sparrow.algorithms import aggregation
from sparrow.algorithms.aggregation import count
from sparrow.algorithms.objective import counted

LOSS = torch.tensor([[1.0, 2.0, 3.0], [10.0, torch.nan, torch.nan], [5.0, 7.0, torch.nan], [torch.nan] * 3]).double()
MASK = torch.tensor([[True, True, True], [True, False, False], [True, True, False], [False] * 3])
KEEP = MASK & torch.tensor([[True, False, True], [False] * 3, [True, True, True], [True] * 3])
GROUP = torch.tensor([4, 4, 9, 9])

# tokens 6, sequences 3, prompts 2 (4 and 2 tokens); the fourth row counts nowhere
CASES = {
    "token_mean": (aggregation.token_mean, 28 / 6, 16 / 6, 16 / 4),
    "sequence_mean_token_mean": (
        aggregation.sequence_mean_token_mean,
        (2 + 10 + 6) / 3,
        (4 / 3 + 0 + 6) / 3,
        (4 / 2 + 6) / 2,
    ),
    "sequence_mean_token_sum": (aggregation.sequence_mean_token_sum, 28 / 3, 16 / 3, 16 / 2),
    "token_sum_constant": (partial(aggregation.token_sum_constant, length=8), 28 / 24, 16 / 24, 16 / 16),
    "per_prompt": (aggregation.per_prompt, (16 / 4 + 12 / 2) / 2, (4 / 4 + 12 / 2) / 2, (4 / 2 + 12 / 2) / 2),
}


@pytest.mark.parametrize("name", CASES)
def test_by_hand(name):
    aggregate, nothing_masked, all_count, kept_count = CASES[name]
    for keep, denominator, expected in (
        (MASK, "all", nothing_masked),
        (MASK, "kept", nothing_masked),
        (KEEP, "all", all_count),
        (KEEP, "kept", kept_count),
    ):
        counted_BT = counted(MASK, keep, denominator)
        result = aggregate(LOSS, keep, counted_BT, count(counted_BT, GROUP))
        assert result.item() == pytest.approx(expected), denominator


@pytest.mark.parametrize("name", CASES)
def test_nothing_to_train_gives_zero(name):
    empty = torch.zeros_like(MASK)
    loss = LOSS.clone().requires_grad_()
    result = CASES[name][0](loss, empty, empty, count(empty, GROUP))
    (gradient,) = torch.autograd.grad(result, loss)
    assert result.item() == 0
    assert (gradient == 0).all()


def test_counts():
    counts = count(MASK, GROUP)
    assert (counts.tokens, counts.sequences, counts.prompts) == (6, 3, 2)
    assert counts.prompt_tokens_B.tolist() == [4, 4, 2, 2]
    assert counts.rows(slice(1, 3)).prompt_tokens_B.tolist() == [4, 2]
    assert count(MASK).rows(slice(1, 3)) == count(MASK)


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="denominator is 'some'; allowed: 'all', 'kept'"):
        counted(MASK, KEEP, "some")
    with pytest.raises(ValueError, match="per_prompt needs counts made with group_B"):
        aggregation.per_prompt(LOSS, KEEP, MASK, count(MASK))
    with pytest.raises(ValueError, match=r"has 4 rows, the loss 2; use counts\.rows"):
        aggregation.per_prompt(LOSS[:2], KEEP[:2], MASK[:2], count(MASK, GROUP))
    with pytest.raises(ValueError, match="length is 0"):
        aggregation.token_sum_constant(LOSS, KEEP, MASK, count(MASK), length=0)
