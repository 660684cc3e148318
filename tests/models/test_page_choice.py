"""The page choice of the training pass, worked by hand: head size 1, so a score is a product of two numbers."""

import pytest
import torch
from torch import Tensor

from sparrow.kernels import get_page_score
from sparrow.kernels.page_bits import unpack_pages
from sparrow.models import page_choice
from sparrow.models.page_choice import SparsePass, choose_pages
from sparrow.schedule import BudgetSchedule

# Means of the pages of two keys:  0    1    2    3    4    5    (6: half full)
KEYS = [9.0, 9.0, 1.0, 3.0, 5.0, -1.0, 4.0, 2.0, 0.0, 1.0, 7.0, 7.0, 50.0]


def one_head(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype).view(1, 1, -1, 1)


def sparse_pass(schedule: BudgetSchedule, prompt_len: list[int], length: list[int], score: str = "mean") -> SparsePass:
    return SparsePass(schedule, get_page_score(score), torch.tensor(prompt_len), torch.tensor(length))


def pages_at(chosen_BKTM: Tensor, position: int, num_pages: int, row: int = 0, head: int = 0) -> list[int]:
    return unpack_pages(chosen_BKTM[row, head, position], num_pages).nonzero().flatten().tolist()


def test_pages_by_hand() -> None:
    schedule = BudgetSchedule([1], page_size=2, first=1, last=2, dense_layers=())
    query_BHTD = one_head([1.0] * 12 + [-1.0])
    chosen = choose_pages(query_BHTD, one_head(KEYS), sparse_pass(schedule, [7], [13]))
    assert chosen.shape == (1, 1, 13, 1)
    # t = 8, 4 pages, 4 in all: everything.
    assert pages_at(chosen, 7, 7) == [0, 1, 2, 3]
    # t = 9, 5 pages (the last one half full): 1 against 2, means 2 and 2: the lower page.
    assert pages_at(chosen, 8, 7) == [0, 1, 3, 4]
    assert pages_at(chosen, 9, 7) == [0, 1, 3, 4]
    # t = 11, 6 pages: means 2, 2, 3 compete; page 3 wins.
    assert pages_at(chosen, 10, 7) == [0, 3, 4, 5]
    assert pages_at(chosen, 11, 7) == [0, 3, 4, 5]
    # t = 13, 7 pages, query -1: means 2, 2, 3, 0.5 compete and the smallest wins.
    assert pages_at(chosen, 12, 7) == [0, 4, 5, 6]


def test_padding_and_short_rows_do_not_choose() -> None:
    schedule = BudgetSchedule([0], page_size=2, first=1, last=1, dense_layers=())
    query_BHTD, key_BKTD = one_head([1.0] * 13).repeat(2, 1, 1, 1), one_head(KEYS).repeat(2, 1, 1, 1)
    chosen = choose_pages(query_BHTD, key_BKTD, sparse_pass(schedule, [5, 12], [9, 12]))
    assert pages_at(chosen, 4, 7) == [0, 1, 2]  # prompt
    assert pages_at(chosen, 5, 7) == [0, 2]  # t = 6, 3 pages
    assert pages_at(chosen, 8, 7) == [0, 4]  # t = 9, 5 pages
    assert pages_at(chosen, 9, 7) == [0, 1, 2, 3, 4]  # padding
    assert pages_at(chosen, 11, 7, row=1) == [0, 1, 2, 3, 4, 5]  # a row without a response


def test_budget_changes_with_the_length_bin() -> None:
    schedule = BudgetSchedule([0, 2], page_size=2, bin_tokens=12, first=1, last=1, dense_layers=())
    chosen = choose_pages(one_head([1.0] * 13), one_head(KEYS), sparse_pass(schedule, [0], [13]))
    assert pages_at(chosen, 9, 7) == [0, 4]  # t = 10, rounded up 10: bin 0
    assert pages_at(chosen, 10, 7) == [
        0,
        1,
        3,
        5,
    ]  # t = 11, rounded up 12: bin 1; the tie of pages 1 and 2 to the lower


def test_query_heads_of_a_group_are_averaged() -> None:
    schedule = BudgetSchedule([1], page_size=1, first=0, last=1, dense_layers=())
    key_BKTD = torch.tensor([[5.0, -5.0, 0.0]]).view(1, 1, 3, 1).repeat(1, 2, 1, 1)
    # Heads 0..2 share KV head 0 (mean 1/3, though two of three are negative), heads 3..5 share head 1 (mean -1/3).
    query_BHTD = torch.tensor([3.0, -1.0, -1.0, -3.0, 1.0, 1.0]).view(1, 6, 1, 1).expand(1, 6, 3, 1)
    chosen = choose_pages(query_BHTD, key_BKTD, sparse_pass(schedule, [0], [3]))
    assert pages_at(chosen, 2, 3, head=0) == [0, 2]
    assert pages_at(chosen, 2, 3, head=1) == [1, 2]


def test_landmarks_are_rounded_to_the_dtype_of_the_keys() -> None:
    schedule = BudgetSchedule([1], page_size=2, first=0, last=1, dense_layers=())
    keys = [1.0, 1.0, 1.0, 1.0078125, 0.0, 0.0]  # means 1 and 1.00390625, which bf16 rounds to 1: a tie
    for dtype, best in ((torch.bfloat16, 0), (torch.float32, 1)):
        chosen = choose_pages(one_head([1.0] * 6, dtype), one_head(keys, dtype), sparse_pass(schedule, [0], [6]))
        assert pages_at(chosen, 5, 3) == [best, 2]


def test_more_than_32_pages_and_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    schedule = BudgetSchedule([3, 9, 40], page_size=1, bin_tokens=30, first=1, last=2, dense_layers=())
    query_BHTD, key_BKTD = torch.randn(3, 4, 131, 8), torch.randn(3, 2, 131, 8)
    given = sparse_pass(schedule, [5, 130, 64], [131, 131, 100])
    whole = choose_pages(query_BHTD, key_BKTD, given)
    monkeypatch.setattr(page_choice, "CHOICE_BYTES", 20_000)
    assert torch.equal(choose_pages(query_BHTD, key_BKTD, given), whole)
    for row, (prompt_len, length) in enumerate(zip([5, 130, 64], [131, 131, 100])):
        for position in range(131):
            t, scored = position + 1, range(1, position - 1)
            if not prompt_len <= position < length or t <= schedule.pages(t) + 3:
                expected = list(range(t))
            else:
                query_D = query_BHTD[row, 2:, position].mean(0)
                value = {n: float(query_D @ key_BKTD[row, 1, n]) for n in scored}
                best = sorted(scored, key=lambda n: (-value[n], n))[: schedule.pages(t)]
                expected = [0, *sorted(best), t - 2, t - 1]
            assert pages_at(whole, position, 131, row=row, head=1) == expected


def test_pieces_stay_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_choice, "CHOICE_BYTES", 40_000)
    schedule = BudgetSchedule([1], page_size=4, dense_layers=())
    rows = sparse_pass(schedule, [0, 9], [200, 150]).rows
    pieces = list(page_choice._pieces(rows, floats_per_page=16))
    assert [piece.start for piece, _, _ in pieces[1:]] == [piece.stop for piece, _, _ in pieces[:-1]]
    assert (pieces[0][0].start, pieces[-1][0].stop) == (0, len(rows.num_pages))
    for piece, num_pages, capacity in pieces:
        assert num_pages == max(rows.num_pages[piece])
        assert capacity == 4
        assert (piece.stop - piece.start) * num_pages * 16 * 4 <= 40_000


def test_lengths_that_do_not_fit_are_refused() -> None:
    schedule = BudgetSchedule([1], page_size=2, dense_layers=())
    query, key = one_head([1.0] * 13), one_head(KEYS)
    with pytest.raises(ValueError, match=r"1 sequences of up to 14 tokens, but the batch is 1 x 13"):
        choose_pages(query, key, sparse_pass(schedule, [3], [14]))
    with pytest.raises(ValueError, match=r"2 sequences of up to 13 tokens, but the batch is 1 x 13"):
        choose_pages(query, key, sparse_pass(schedule, [3, 3], [13, 13]))
    with pytest.raises(ValueError, match="row 1: prompt_len=8, length=7: must be 0 <= prompt_len <= length"):
        choose_pages(query, key, sparse_pass(schedule, [3, 8], [13, 7]))
    with pytest.raises(ValueError, match=r"shapes \(2,\) and \(1,\): must be \[B\] both"):
        sparse_pass(schedule, [3, 3], [13])


def test_no_gradient_flows_through_the_choice() -> None:
    schedule = BudgetSchedule([1], page_size=2, dense_layers=())
    query = one_head([1.0] * 13).requires_grad_()
    key = one_head(KEYS).requires_grad_()
    assert not choose_pages(query, key, sparse_pass(schedule, [3], [13])).requires_grad
