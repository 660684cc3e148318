"""The forward in pieces equals the training-side sparse forward, whatever the pieces are, and forks leave no trace."""

import pytest
import torch

from sparrow.calibration.segment import SegmentForward
from sparrow.kernels import get_page_score
from sparrow.models.attention import SparsePass
from sparrow.modules.passes import dense_pass, hidden_states, sparse_pass
from sparrow.schedule import BudgetSchedule

LENGTH, PROMPT = 117, 9


def whole(model, tokens_T, schedule):
    """The training-side pass over the whole sequence."""
    with torch.no_grad():
        if schedule.is_dense:
            with dense_pass(model):
                return hidden_states(model, tokens_T[None])[0]
        with sparse_pass(model, with_adapter=False):
            lengths = torch.tensor([PROMPT]), torch.tensor([LENGTH])
            return hidden_states(model, tokens_T[None], SparsePass(schedule, get_page_score("mean"), *lengths))[0]


def in_pieces(model, tokens_T, schedule, ends):
    forward, past, hidden = SegmentForward(model, get_page_score("mean")), (), []
    for start, end in zip([0, *ends], [*ends, LENGTH], strict=True):
        segment, hidden_XE = forward.extend(past, tokens_T[start:end], PROMPT, schedule)
        past, hidden = (*past, segment), [*hidden, hidden_XE]
    return torch.cat(hidden)


@pytest.fixture
def tokens_T():
    return torch.randint(37, (LENGTH,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("ends", [[], [28, 60, 92], [1, 5, 50, 116]], ids=str)
def test_pieces_equal_the_training_side_pass(model, tokens_T, schedule, ends):
    torch.testing.assert_close(
        in_pieces(model, tokens_T, schedule, ends), whole(model, tokens_T, schedule), atol=2e-5, rtol=1e-4
    )


def test_dense_pieces_equal_the_dense_pass(model, tokens_T):
    dense = BudgetSchedule.dense(page_size=4)
    torch.testing.assert_close(
        in_pieces(model, tokens_T, dense, [40, 80]), whole(model, tokens_T, dense), atol=2e-5, rtol=1e-4
    )


def test_the_schedule_matters(model, tokens_T, schedule):
    dense = whole(model, tokens_T, BudgetSchedule.dense(page_size=4))
    assert float((in_pieces(model, tokens_T, schedule, [60]) - dense).abs().max()) > 1e-2


def test_a_small_mask_limit_changes_nothing(model, tokens_T, schedule, monkeypatch):
    expected = in_pieces(model, tokens_T, schedule, [60])
    monkeypatch.setattr("sparrow.calibration.segment.MASK_ENTRIES", 700)
    torch.testing.assert_close(in_pieces(model, tokens_T, schedule, [60]), expected, atol=1e-5, rtol=1e-5)


def test_forks_of_one_past_do_not_meet(model, tokens_T, schedule):
    forward = SegmentForward(model, get_page_score("mean"))
    first, _ = forward.extend((), tokens_T[:60], PROMPT, schedule)
    before = [key.clone() for key in first.keys]
    forward.extend((first,), tokens_T[60:], PROMPT, BudgetSchedule.constant(0, page_size=4, dense_layers=(0,)))
    _, again = forward.extend((first,), tokens_T[60:], PROMPT, schedule)
    assert all(torch.equal(a, b) for a, b in zip(before, first.keys, strict=True))
    torch.testing.assert_close(again, whole(model, tokens_T, schedule)[60:], atol=2e-5, rtol=1e-4)
