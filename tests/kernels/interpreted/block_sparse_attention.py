from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from sparrow.kernels.block_sparse_attention import gpu, gpu_lists, reference
from sparrow.kernels.block_sparse_attention.gpu_forward import Tiles, choose_tiles
from sparrow.kernels.page_bits import pack_pages

NAMES = ("output", "query", "key", "value")


def relative_error(got: Tensor, want: Tensor) -> float:
    """Root mean square of the difference over that of what is wanted, or over 0.01 where that vanishes.

    (The gradient of a row that reads one key is zero, and in fp32 the rest of a difference.)
    """
    return ((got.double() - want).norm() / want.norm().clamp(min=0.01 * want.numel() ** 0.5)).item()


class Inputs:
    """Random q, k, v and upstream gradient with NaN in the padding, and page sets with garbage outside the response."""

    def __init__(
        self,
        lengths: Sequence[int],
        prompts: Sequence[int],
        rows: int,
        *,
        kv_heads: int = 1,
        group: int = 2,
        head_size: int = 16,
        page_size: int = 4,
        keep: float = 0.2,
    ) -> None:
        batch, pages = len(lengths), -(-rows // page_size)
        heads = (kv_heads * group, kv_heads, kv_heads, kv_heads * group)
        self.tensors = [torch.randn(batch, h, rows, head_size) for h in heads]
        for tensor in self.tensors:
            for b, length in enumerate(lengths):
                tensor[b, :, length:] = torch.nan
        mask = torch.rand(batch, kv_heads, rows, pages) < keep
        self.mask = mask | (torch.arange(rows).unsqueeze(1) // page_size == torch.arange(pages))
        self.chosen = pack_pages(self.mask)
        row = torch.arange(rows)
        for b in range(batch):
            unread = (row < prompts[b]) | (row >= lengths[b])
            self.chosen[b, :, unread] = torch.randint(-(2**31), 2**31, self.chosen[b, :, unread].shape).int()
        self.prompts, self.lengths = torch.tensor(prompts), torch.tensor(lengths)
        self.options = {"page_size": page_size, "scale": head_size**-0.5}

    def run(self, attend, dtype: torch.dtype) -> list[Tensor]:
        """Output and the three gradients."""
        *leaves, upstream = (x.to(dtype) for x in self.tensors)
        leaves = [x.detach().requires_grad_() for x in leaves]
        out = attend(*leaves, self.chosen, self.prompts, self.lengths, **self.options)
        return [out, *torch.autograd.grad(out, leaves, upstream)]


def compare(inputs: Inputs) -> list[Tensor]:
    """Values and every gradient against autograd of the reference in fp64; the padding must be zero."""
    got, want = (
        inputs.run(gpu.block_sparse_attention, torch.float32),
        inputs.run(reference.block_sparse_attention, torch.float64),
    )
    for name, x, y in zip(NAMES, got, want):
        assert relative_error(x, y) < 1e-5, name
        assert x.dtype == torch.float32
        for b, length in enumerate(inputs.lengths.tolist()):
            assert (x[b, :, length:] == 0).all(), name
    return got


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tiles and blocks for little work."""
    small = Tiles(16, 16, 4, 1, backward_keys=16, backward_warps=4, backward_stages=1)
    monkeypatch.setattr(gpu, "choose_tiles", lambda head_size, dtype: small)


@pytest.mark.parametrize("page_size", [1, 3, 4, 16, 64, 128])
def test_page_sizes(page_size: int) -> None:
    compare(Inputs([100, 67, 0], [20, 67, 0], 100, page_size=page_size))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 16, 32])
def test_group_sizes(group: int) -> None:
    compare(Inputs([45], [9], 45, kv_heads=1 + (group < 4), group=group))


@pytest.mark.parametrize("head_size", [1, 24, 64, 80, 96, 128, 256])
def test_head_sizes(head_size: int) -> None:
    compare(Inputs([50, 17], [16, 1], 50, head_size=head_size, page_size=16))


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 15, 16, 17, 33])
@pytest.mark.usefixtures("small_tiles")
def test_lengths(rows: int) -> None:
    compare(Inputs([rows, max(1, rows - 1), rows // 2], [1, rows // 2, 0], rows, group=3))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("page_size", [1, 5, 16, 40])
def test_many_tiles(page_size: int) -> None:
    # 160 rows of one-token pages are 5 words of a set, and 10 blocks of keys times 20 tiles of rows.
    compare(Inputs([160, 111], [20, 60], 160, page_size=page_size, keep=0.05))


def test_more_tiles_than_one_scan_looks_at() -> None:
    compare(Inputs([135], [0], 135, group=32, page_size=16, keep=0.1))


def test_prompts_are_dense_and_prompts_may_fill_or_exceed_the_row() -> None:
    inputs = Inputs([40, 40, 25], [40, 60, 30], 40)
    out = compare(inputs)[0]
    query, key, value = (x.nan_to_num() for x in inputs.tensors[:3])
    want = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out[:2], want[:2], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("small_tiles")
def test_a_row_that_reads_nothing_is_zero() -> None:
    inputs = Inputs([60], [5], 60)
    inputs.chosen[:, :, 30:50] = 0
    out, grad_query, *_ = compare(inputs)
    assert (out[:, :, 30:50] == 0).all()
    assert (grad_query[:, :, 30:50] == 0).all()


def test_layouts_of_a_model() -> None:
    # Heads next to tokens, slices of a fused projection, a gradient that is one number.
    inputs = Inputs([37, 20], [5, 9], 37, kv_heads=2, group=3, head_size=24)
    fused = torch.randn(2, 37, 10, 24)
    query, key, value = (x.transpose(1, 2) for x in fused.split([6, 2, 2], dim=2))
    inputs.tensors = [query, key, value, torch.tensor(0.5).expand(2, 6, 37, 24)]
    compare(inputs)
    inputs.tensors = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in inputs.tensors]
    out = compare(inputs)[0]
    assert out.shape == (2, 6, 37, 24)


def test_only_what_is_asked_for_is_differentiated() -> None:
    inputs = Inputs([20], [5], 20)
    query, key, value, upstream = (x.nan_to_num() for x in inputs.tensors)
    whole = inputs.run(gpu.block_sparse_attention, torch.float32)
    for asked, index in ((query, 1), (key, 2), (value, 3)):
        asked.requires_grad_()
        out = gpu.block_sparse_attention(
            query, key, value, inputs.chosen, inputs.prompts, inputs.lengths, **inputs.options
        )
        assert torch.equal(torch.autograd.grad(out, asked, upstream)[0], whole[index])
        asked.requires_grad_(False)


def test_the_same_bits_every_time_and_alone_or_in_a_batch() -> None:
    inputs = Inputs([80, 45], [10, 3], 80)
    whole = inputs.run(gpu.block_sparse_attention, torch.float32)
    again = inputs.run(gpu.block_sparse_attention, torch.float32)
    for b in range(2):
        row = Inputs([80], [0], 80)
        row.tensors = [x[b : b + 1] for x in inputs.tensors]
        row.chosen, row.prompts, row.lengths = (x[b : b + 1] for x in (inputs.chosen, inputs.prompts, inputs.lengths))
        for x, y, z in zip(whole, again, row.run(gpu.block_sparse_attention, torch.float32)):
            assert torch.equal(x[b], y[b])
            assert torch.equal(x[b], z[0])


def test_large_logits_do_not_overflow() -> None:
    inputs = Inputs([50], [10], 50)
    inputs.tensors[0] *= 1e4
    out = inputs.run(gpu.block_sparse_attention, torch.float32)[0]
    want = inputs.run(reference.block_sparse_attention, torch.float64)[0]
    torch.testing.assert_close(out.double(), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tokens", [1, 5, 8, 16, 21, 32])
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_lists_by_a_loop(tokens: int, page_size: int) -> None:
    inputs = Inputs([90, 41, 0], [12, 41, 0], 90, page_size=page_size, keep=0.1)
    lists = gpu_lists.list_pages(inputs.chosen, inputs.prompts, inputs.lengths, page_size=page_size, tile_tokens=tokens)
    blocks, counts = gpu_lists.list_tiles(
        lists, inputs.lengths, 90, page_size=page_size, tile_tokens=tokens, block_keys=16
    )
    for b, (length, prompt) in enumerate(zip([90, 41, 0], [12, 41, 0])):
        read_by: dict[int, list[int]] = {block: [] for block in range(6)}
        for tile in range(-(-90 // tokens)):
            union: dict[int, int] = {}
            for t in range(tile * tokens, min((tile + 1) * tokens, length)):
                for page in range(t // page_size + 1):
                    if t < prompt or inputs.mask[b, 0, t, page]:
                        union[page] = union.get(page, 0) | 1 << t - tile * tokens
            count = lists.counts[b, 0, tile].item()
            assert lists.pages[b, 0, tile, :count].tolist() == sorted(union)
            bits = lists.readers[b, 0, tile, sorted(union)]
            assert [x % 2**tokens for x in bits.tolist()] == [union[page] for page in sorted(union)]
            for block in read_by:
                # A page may reach over the edge of a block; only keys that the tile may see count.
                keys = range(block * 16, min((block + 1) * 16, length, (tile + 1) * tokens))
                if any(key // page_size in union for key in keys):
                    read_by[block].append(tile)
        for block, tiles in read_by.items():
            assert blocks[b, 0, block, : counts[b, 0, block].item()].tolist() == tiles


def test_the_table_of_tiles_fits_every_group() -> None:
    for head_size in (1, 64, 80, 128, 256):
        for dtype in (torch.bfloat16, torch.float32):
            tiles = choose_tiles(head_size, dtype)
            for group in range(1, 33):
                assert 1 <= tiles.tokens(group) <= 32
                assert tiles.tokens(group) * group <= tiles.rows


def test_empty_batches() -> None:
    for batch, rows in ((0, 5), (2, 0)):
        query = torch.zeros(batch, 2, rows, 16, requires_grad=True)
        chosen = torch.zeros(batch, 2, rows, -(-rows // 128), dtype=torch.int32)
        ends = torch.zeros(batch, dtype=torch.int64)
        out = gpu.block_sparse_attention(query, query, query, chosen, ends, ends, page_size=4, scale=1.0)
        assert torch.autograd.grad(out.sum(), query)[0].shape == query.shape


def test_errors_name_the_value_and_what_is_served() -> None:
    def attend(
        heads: int = 2, head_size: int = 16, page_size: int = 4, dtypes: tuple[torch.dtype, torch.dtype] | None = None
    ) -> None:
        first, second = dtypes or (torch.float32, torch.float32)
        query = torch.zeros(1, heads, 4, head_size, dtype=first)
        key = torch.zeros(1, 1, 4, head_size, dtype=second)
        one = torch.tensor([4])
        gpu.block_sparse_attention(
            query, key, key, torch.ones(1, 1, 4, 1).int(), one, one, page_size=page_size, scale=1.0
        )

    with pytest.raises(ValueError, match="query heads per KV head is 33, the Triton kernel serves 1 to 32"):
        attend(heads=33)
    with pytest.raises(ValueError, match="block_sparse_attention: head size is 257, the Triton kernel serves 1 to 256"):
        attend(head_size=257)
    with pytest.raises(ValueError, match="block_sparse_attention: page size is 256, the Triton kernel serves 1 to 128"):
        attend(page_size=256)
    with pytest.raises(
        TypeError, match=r"query_BHTD has dtype torch\.float64, the Triton kernel serves torch\.bfloat16"
    ):
        attend(dtypes=(torch.float64, torch.float64))
    with pytest.raises(TypeError, match=r"key_BKTD has dtype torch\.bfloat16, the Triton kernel serves that of the qu"):
        attend(dtypes=(torch.float32, torch.bfloat16))
