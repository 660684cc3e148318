"""Random `block_sparse_attention`: output and every gradient of each path against autograd of the reference in fp64."""

import random
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor

from sparrow.kernels.block_sparse_attention import cpu, gpu, reference
from sparrow.kernels.block_sparse_attention.gpu_forward import Tiles
from sparrow.kernels.page_bits import pack_pages


@dataclass(frozen=True)
class Case:
    """One configuration; a tile of 0 rows stands for the table's choice."""

    seed: int
    lengths: tuple[int, ...]
    prompts: tuple[int, ...]
    rows: int
    kv_heads: int
    group: int
    head_size: int
    page_size: int
    keep: float
    own_page: bool
    spread: float
    tile_rows: int
    tile_keys: int
    backward_keys: int
    tokens_first: bool


def draw(random: random.Random) -> Case:
    """Rows up to 60, empty ones too; prompts that fill or exceed them; sets from nothing to everything."""
    rows = random.choice([1, 2, 7, 15, 16, 17, random.randint(1, 40), random.randint(1, 60)])
    lengths = tuple(random.choice([rows, random.randint(0, rows)]) for _ in range(random.choice([1, 1, 2])))
    group = random.choice([1, 2, 3, 4, 5, 6, 7, 8, 16, 32])
    return Case(
        seed=random.getrandbits(31),
        lengths=lengths,
        prompts=tuple(random.choice([0, random.randint(0, n), n + 3]) for n in lengths),
        rows=rows,
        kv_heads=random.choice([1, 1, 2]) if group < 5 else 1,
        group=group,
        head_size=random.choice([1, 8, 16, 24, 64, 80, 96, 128, 256]),
        page_size=random.choice([1, 2, 3, 4, 4, 8, 16, 16, 16, 32, 64, 128, random.randint(1, 128)]),
        keep=random.choice([0.0, 0.05, 0.3, 0.7, 1.0]),
        own_page=random.random() < 0.85,
        spread=random.choice([1.0, 1.0, 4.0]),
        tile_rows=random.choice([0, 32, 64]),
        tile_keys=random.choice([16, 32, 64]),
        backward_keys=random.choice([16, 32, 64]),
        tokens_first=random.random() < 0.5,
    )


def _tensor(case: Case, heads: int) -> Tensor:
    """Random rows in one of two layouts, with NaN in the padding."""
    shape = (len(case.lengths), case.rows, heads, case.head_size)
    tensor = torch.randn(shape).transpose(1, 2) * case.spread
    if not case.tokens_first:
        tensor = tensor.contiguous()
    for b, length in enumerate(case.lengths):
        tensor[b, :, length:] = torch.nan
    return tensor


def _sets(case: Case) -> Tensor:
    """Bit sets, with garbage where they must not be read."""
    row, page = torch.arange(case.rows), torch.arange(-(-case.rows // case.page_size))
    mask = torch.rand(len(case.lengths), case.kv_heads, case.rows, len(page)) < case.keep
    if case.own_page:
        mask = mask | (row.unsqueeze(1) // case.page_size == page)
    chosen = pack_pages(mask)
    for b, (length, prompt) in enumerate(zip(case.lengths, case.prompts)):
        unread = (row < prompt) | (row >= length)
        chosen[b, :, unread] = torch.randint(-(2**31), 2**31, chosen[b, :, unread].shape).int()
    return chosen


def check(case: Case) -> dict[str, float]:
    """Relative RMS errors, the worst of output and gradients; below 1e-5 (times the spread of the logits)."""
    torch.manual_seed(case.seed)
    heads = case.kv_heads * case.group
    *tensors, upstream = (_tensor(case, n) for n in (heads, case.kv_heads, case.kv_heads, heads))
    fixed = (_sets(case), torch.tensor(case.prompts), torch.tensor(case.lengths))
    options = {"page_size": case.page_size, "scale": case.head_size**-0.5}

    def run(attend, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).detach().requires_grad_() for x in tensors]
        out = attend(*leaves, *fixed, **options)
        return [out.detach(), *torch.autograd.grad(out, leaves, upstream.nan_to_num().to(dtype))]

    want = run(reference.block_sparse_attention, torch.float64)
    tiles = Tiles(case.tile_rows, case.tile_keys, 4, 1, case.backward_keys, 4, 1)
    choose = gpu.choose_tiles if case.tile_rows == 0 else lambda head_size, dtype: tiles
    with mock.patch.object(gpu, "choose_tiles", choose):
        found = {"triton": run(gpu.block_sparse_attention, torch.float32)}
    found["cpu"] = run(cpu.block_sparse_attention, torch.float32)
    return {path: _compare(case, path, got, want) for path, got in found.items()}


def _compare(case: Case, path: str, got: list[Tensor], want: list[Tensor]) -> float:
    worst = 0.0
    for name, x, y in zip(("output", "grad query", "grad key", "grad value"), got, want):
        for b, length in enumerate(case.lengths):
            assert (x[b, :, length:] == 0).all(), f"{path}: the padding of {name} is not zero"
        # A gradient may vanish (a row that reads one key). What is left is the rounding of numbers of size spread ** 3.
        size = max(y.norm().item(), 0.01 * case.spread**3 * y.numel() ** 0.5)
        error = (x.double() - y).norm().item() / size
        assert error < 1e-5 * case.spread**2, f"{path}: {name} is off by {error:.2e}"
        worst = max(worst, error)
    return worst
