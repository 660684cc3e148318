"""Random paged caches for the kernel tests: shuffled pages, everything that holds no token filled with NaN."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sparrow.kernels import PageScore, page_landmarks


@dataclass
class Cache:
    """A paged cache of B sequences and, token by token, what went into it."""

    keys: list[Tensor]
    """[t, K, D] of each sequence."""
    values: list[Tensor]
    key_pages: Tensor
    value_pages: Tensor
    landmarks: Tensor
    page_table_BN: Tensor
    cached_B: Tensor

    def row(self, b: int) -> "Cache":
        """Sequence b alone, over the same pool."""
        return Cache(
            [self.keys[b]],
            [self.values[b]],
            self.key_pages,
            self.value_pages,
            self.landmarks,
            self.page_table_BN[b : b + 1],
            self.cached_B[b : b + 1],
        )


def random_cache(lengths: list[int], kv_heads: int, head_size: int, page_size: int, score: PageScore) -> Cache:
    """Writes every sequence with `page_landmarks`, whose own test holds it to a plain loop."""
    width = max(1, max(-(-t // page_size) for t in lengths))
    pool = len(lengths) * width + 2
    shape = (pool, kv_heads, page_size, head_size)
    key_pages, value_pages = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    landmarks = torch.full((pool, kv_heads, score.width, head_size), torch.nan)
    table = torch.randperm(pool)[: len(lengths) * width].view(len(lengths), width)
    keys = [torch.randn(t, kv_heads, head_size) for t in lengths]
    values = [torch.randn(t, kv_heads, head_size) for t in lengths]
    for b, t in enumerate(lengths):
        position = torch.arange(t)
        page, offset = table[b][position // page_size], position % page_size
        page_landmarks(keys[b], values[b], key_pages, value_pages, landmarks, page, offset, score)
        # What the table says past the end must not matter.
        table[b, -(-t // page_size) :] = 2**31 - 1
    return Cache(keys, values, key_pages, value_pages, landmarks, table.int(), torch.tensor(lengths, dtype=torch.int32))


class LargestTensor(TorchDispatchMode):
    """Records the most elements of any tensor made inside."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def make_cache() -> Callable[..., Cache]:
    """`random_cache(lengths, kv_heads, head_size, page_size, score)`."""
    return random_cache


@pytest.fixture
def largest_tensor() -> LargestTensor:
    """A context manager; its `numel` is the size of the largest tensor made inside."""
    return LargestTensor()
