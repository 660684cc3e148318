"""What the cases of the decode operators share: poisoned pools and relative errors."""

import torch
from torch import Tensor

NOWHERE = 2**31 - 1
"""A page index that no pool has: using it raises or crashes."""


def poisoned(*shape: int) -> Tensor:
    """Memory that must not be read."""
    return torch.full(shape, torch.nan)


def page_table(lengths: list[int], page_size: int, spare: int) -> tuple[Tensor, int]:
    """Shuffled physical pages of every sequence, and the size of the pool; entries past the end point nowhere."""
    pages = [-(-t // page_size) for t in lengths]
    width = max(1, *pages) + spare
    pool = sum(pages) + 2
    free = torch.randperm(pool)
    table = torch.full((len(lengths), width), NOWHERE)
    for b, count in enumerate(pages):
        table[b, :count], free = free[:count], free[count:]
    return table.int(), pool


def fill(pools: list[Tensor], table: Tensor, lengths: list[int]) -> None:
    """Writes random rows wherever a token lives; the pools are [pool, K, P, D]."""
    page_size = pools[0].shape[2]
    for b, t in enumerate(lengths):
        position = torch.arange(t)
        page, slot = table[b, position // page_size].long(), position % page_size
        for pool in pools:
            pool[page, :, slot] = torch.randn(t, pool.shape[1], pool.shape[3])


def relative_rms(got: Tensor, want: Tensor) -> float:
    """Root of the mean squared error over that of the values; NaN where only one side is NaN, so that it shows."""
    assert got.shape == want.shape, f"shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    error, size = (got.double() - want.double()).square().mean(), want.double().square().mean()
    return 0.0 if error == 0 else float((error / size.clamp(min=1e-60)).sqrt())


def hold(errors: dict[str, float], tolerance: float) -> dict[str, float]:
    """The errors, if each is within the tolerance; NaN is not."""
    wrong = {path: error for path, error in errors.items() if not error <= tolerance}
    assert not wrong, f"relative error over {tolerance:.1e}: {wrong}"
    return errors
