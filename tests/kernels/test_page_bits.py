import pytest
import torch

from sparrow.kernels.page_bits import num_words, pack_lists, pack_pages, unpack_pages


def test_bit_n_of_word_n_over_32() -> None:
    mask = torch.zeros(70, dtype=torch.bool)
    mask[[0, 3, 31, 32, 69]] = True
    # 1 + 8 - 2**31, 1, 2**5
    assert pack_pages(mask).tolist() == [9 - 2**31, 1, 32]
    assert pack_lists(torch.tensor([69, 3, 0, -1, 32, 31, -1]), 70).tolist() == [9 - 2**31, 1, 32]


@pytest.mark.parametrize("num_pages", [1, 31, 32, 33, 64, 157])
def test_round_trip(num_pages: int) -> None:
    mask = torch.rand(3, 2, num_pages) < 0.5
    bits = pack_pages(mask)
    assert bits.shape == (3, 2, num_words(num_pages))
    assert torch.equal(unpack_pages(bits, num_pages), mask)


def test_all_pages_of_a_full_word_are_minus_one() -> None:
    assert pack_pages(torch.ones(32, dtype=torch.bool)).tolist() == [-1]
    assert unpack_pages(torch.tensor([-1], dtype=torch.int32), 32).all()


def test_errors_name_the_value() -> None:
    with pytest.raises(TypeError, match=r"mask_N has dtype torch\.int32, allowed: torch\.bool"):
        pack_pages(torch.ones(3, dtype=torch.int32))
    with pytest.raises(ValueError, match="num_pages is 33, but 1 words hold 32"):
        unpack_pages(torch.zeros(1, dtype=torch.int32), 33)
