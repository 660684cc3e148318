"""Sets of pages as bits: how a training pass keeps one page set per token and KV head without a [T, N] mask.

Bit n % 32 of 32-bit word n // 32 is set when page n is in the set, so N pages take M = ceil(N / 32) words.
"""

import torch
from torch import Tensor

from sparrow.kernels.checks import check_dtype

WORD_BITS = 32


def num_words(num_pages: int) -> int:
    """Returns M, the 32-bit words that hold `num_pages` bits."""
    return -(-num_pages // WORD_BITS)


def _bit_values(device: torch.device) -> Tensor:
    # Bit 31 is the sign bit. A sum of distinct entries cannot overflow int32.
    shifts = torch.arange(WORD_BITS, dtype=torch.int32, device=device)
    return torch.bitwise_left_shift(torch.ones_like(shifts), shifts)


def pack_pages(mask_N: Tensor) -> Tensor:
    """Packs page masks into bit sets.

    Args:
        mask_N: [..., N] bool, True where the page is in the set.

    Returns:
        [..., M] int32 bit sets.

    Raises:
        TypeError: if the mask is not bool.
    """
    check_dtype("mask_N", mask_N, torch.bool)
    words = num_words(mask_N.shape[-1])
    padded = torch.nn.functional.pad(mask_N, (0, words * WORD_BITS - mask_N.shape[-1]))
    bits = torch.unflatten(padded, -1, (words, WORD_BITS)) * _bit_values(mask_N.device)
    return bits.sum(-1, dtype=torch.int32)


def unpack_pages(bits_M: Tensor, num_pages: int) -> Tensor:
    """Unpacks bit sets into page masks.

    Args:
        bits_M: [..., M] int32 bit sets.
        num_pages: N, at most 32 * M.

    Returns:
        [..., N] bool.

    Raises:
        TypeError: if the bit sets are not int32.
        ValueError: if `num_pages` does not fit in M words.
    """
    check_dtype("bits_M", bits_M, torch.int32)
    if num_pages > bits_M.shape[-1] * WORD_BITS:
        raise ValueError(f"num_pages is {num_pages}, but {bits_M.shape[-1]} words hold {bits_M.shape[-1] * WORD_BITS}")
    mask = (bits_M.unsqueeze(-1) & _bit_values(bits_M.device)) != 0
    return mask.flatten(-2)[..., :num_pages]


def pack_lists(pages_S: Tensor, num_pages: int) -> Tensor:
    """Packs page lists, as `select_pages` returns them, into bit sets.

    Args:
        pages_S: [..., S] int32 or int64 page ids in [0, num_pages), padded with -1, in any order.
        num_pages: N.

    Returns:
        [..., M] int32 bit sets.
    """
    check_dtype("pages_S", pages_S, torch.int32, torch.int64)
    # The padding lands in one extra column, which is cut off again.
    index = torch.where(pages_S < 0, num_pages, pages_S).long()
    mask = torch.zeros(*pages_S.shape[:-1], num_pages + 1, dtype=torch.bool, device=pages_S.device)
    return pack_pages(mask.scatter_(-1, index, True)[..., :num_pages])
