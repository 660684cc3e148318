"""What the Triton kernels of `block_sparse_attention` read: page sets, turned so that a tile of rows finds its pages.

Query rows are cut into tiles of R tokens (R <= 32) times the G query heads, keys into blocks. Three tables come from
the bit sets, on the device and without a look from the host:

- `readers[tile, page]`: an integer whose bit i says whether token i of the tile reads the page. Prompt tokens read
  every page before them, padding reads none. It is the bit matrix transposed, so it is as large as `chosen_BKTM` at R
  = 32.
- `pages[tile, :]`: the pages that any token of the tile reads, ascending, and how many. Attention and the gradient of
  the query gather exactly these pages.
- `tiles[block, :]`: the tiles that read any page of a block of keys, ascending, and how many, for the gradient of
  keys and values.

Lists rather than tests inside the loops: a loop without branches is what Triton overlaps with its loads.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow.kernels.triton_tools import kernel, power_of_two

WORDS = 4
"""Words of a bit set that one step of `_list_pages` turns."""
SCANNED_TILES = 64
"""Tiles that one step of `_list_tiles` looks at."""


@dataclass(frozen=True)
class PageLists:
    """Which pages each tile of rows reads. `pages` and `readers` hold garbage where the counts say there is nothing."""

    readers: Tensor
    """[B, K, tiles, N] int8, int16 or int32; written up to the last page before the end of the tile."""
    pages: Tensor
    """[B, K, tiles, N] int16 or int32."""
    counts: Tensor
    """[B, K, tiles] int32."""


@kernel(runtime=("length", "words", "num_pages", "kv_heads"))
def _list_pages(
    chosen: tl.tensor,
    prompt_lens: tl.tensor,
    lengths: tl.tensor,
    readers: tl.tensor,
    pages: tl.tensor,
    counts: tl.tensor,
    length: tl.tensor,
    words: tl.tensor,
    num_pages: tl.tensor,
    kv_heads: tl.tensor,
    P: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    WORDS: tl.constexpr,
) -> None:
    """`readers` and `pages` of one tile, `WORDS` words at a time, up to the page of its last token."""
    tile, bk = tl.program_id(0), tl.program_id(1)
    b = bk // kv_heads
    end = tl.minimum(tl.load(lengths + b).to(tl.int32), length)
    prompt = tl.load(prompt_lens + b).to(tl.int32)
    slot = tl.arange(0, BLOCK_T)
    token = tile * TOKENS + slot
    live = (slot < TOKENS) & (token < end)
    set_row = (bk.to(tl.int64) * length + token) * words
    out_row = (bk.to(tl.int64) * tl.num_programs(0) + tile) * num_pages

    last = tl.minimum((tile + 1) * TOKENS, end) - 1
    used_words = tl.where(last < tile * TOKENS, 0, last // (32 * P) + 1)
    count = 0
    for start in range(0, used_words, WORDS):
        word = start + tl.arange(0, WORDS)
        stored = (live & (token >= prompt))[:, None] & (word < words)[None, :]
        bits = tl.load(chosen + set_row[:, None] + word[None, :], mask=stored, other=0)
        bits = tl.where((live & (token < prompt))[:, None], -1, bits)
        page = word[:, None] * 32 + tl.arange(0, 32)[None, :]
        read = (bits[:, :, None] >> tl.arange(0, 32)[None, None, :]) & 1
        read = tl.where(page[None, :, :] * P <= token[:, None, None], read, 0)
        # Every bit occurs once, so the sum is the union.
        found = tl.reshape(tl.sum(read << slot[:, None, None], axis=0), (WORDS * 32,))
        page = start * 32 + tl.arange(0, WORDS * 32)
        tl.store(readers + out_row + page, found.to(readers.dtype.element_ty), mask=page < num_pages)
        listed = (found != 0).to(tl.int32)
        place = count + tl.cumsum(listed, axis=0) - 1
        tl.store(pages + out_row + place, page.to(pages.dtype.element_ty), mask=listed == 1)
        count += tl.sum(listed, axis=0)
    tl.store(counts + bk * tl.num_programs(0) + tile, count)


@kernel(runtime=("length", "num_tiles", "num_pages", "kv_heads"))
def _list_tiles(
    readers: tl.tensor,
    lengths: tl.tensor,
    tiles: tl.tensor,
    counts: tl.tensor,
    length: tl.tensor,
    num_tiles: tl.tensor,
    num_pages: tl.tensor,
    kv_heads: tl.tensor,
    P: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGES: tl.constexpr,
    SCANNED: tl.constexpr,
) -> None:
    """`tiles` of one block of keys; only tiles from the block's first key on can read it."""
    block, bk = tl.program_id(0), tl.program_id(1)
    end = tl.minimum(tl.load(lengths + bk // kv_heads).to(tl.int32), length)
    page = block * BLOCK_N // P + tl.arange(0, PAGES)
    inside = page * P < tl.minimum((block + 1) * BLOCK_N, end)
    out_row = (bk.to(tl.int64) * tl.num_programs(0) + block) * num_tiles

    count = 0
    for start in range(block * BLOCK_N // TOKENS, (end + TOKENS - 1) // TOKENS, SCANNED):
        tile = start + tl.arange(0, SCANNED)
        last = tl.minimum((tile + 1) * TOKENS, end) - 1
        written = inside[None, :] & (page[None, :] * P <= last[:, None]) & (tile * TOKENS < end)[:, None]
        row = (bk.to(tl.int64) * num_tiles + tile) * num_pages
        bits = tl.load(readers + row[:, None] + page[None, :], mask=written, other=0).to(tl.int32)
        listed = tl.max((bits != 0).to(tl.int32), axis=1)
        place = count + tl.cumsum(listed, axis=0) - 1
        tl.store(tiles + out_row + place, tile.to(tiles.dtype.element_ty), mask=listed == 1)
        count += tl.sum(listed, axis=0)
    tl.store(counts + bk * tl.num_programs(0) + block, count)


def _index_dtype(entries: int) -> torch.dtype:
    return torch.int16 if entries <= 2**15 else torch.int32


def list_pages(
    chosen_BKTM: Tensor, prompt_len_B: Tensor, length_B: Tensor, *, page_size: int, tile_tokens: int
) -> PageLists:
    """The pages of every tile of `tile_tokens` rows; `chosen_BKTM` is contiguous."""
    batch, kv_heads, length, words = chosen_BKTM.shape
    tiles, num_pages = triton.cdiv(length, tile_tokens), triton.cdiv(length, page_size)
    bits = torch.int8 if tile_tokens <= 8 else torch.int16 if tile_tokens <= 16 else torch.int32
    shape = (batch, kv_heads, tiles, num_pages)
    lists = PageLists(
        torch.empty(shape, dtype=bits, device=chosen_BKTM.device),
        torch.empty(shape, dtype=_index_dtype(num_pages), device=chosen_BKTM.device),
        torch.empty(shape[:3], dtype=torch.int32, device=chosen_BKTM.device),
    )
    _list_pages[(tiles, batch * kv_heads)](
        chosen_BKTM,
        prompt_len_B,
        length_B,
        lists.readers,
        lists.pages,
        lists.counts,
        length,
        words,
        num_pages,
        kv_heads,
        P=page_size,
        TOKENS=tile_tokens,
        BLOCK_T=power_of_two(tile_tokens, least=1),
        WORDS=min(WORDS, power_of_two(words, least=1)),
        num_warps=4,
    )
    return lists


def list_tiles(
    lists: PageLists, length_B: Tensor, length: int, *, page_size: int, tile_tokens: int, block_keys: int
) -> tuple[Tensor, Tensor]:
    """The tiles that read each block of `block_keys` keys: [B, K, blocks, tiles] and how many, [B, K, blocks] int32."""
    batch, kv_heads, num_tiles, num_pages = lists.readers.shape
    blocks = triton.cdiv(length, block_keys)
    tiles = torch.empty(batch, kv_heads, blocks, num_tiles, dtype=_index_dtype(num_tiles), device=lists.readers.device)
    counts = torch.empty(batch, kv_heads, blocks, dtype=torch.int32, device=lists.readers.device)
    aligned = page_size % block_keys == 0 or block_keys % page_size == 0
    touched = triton.cdiv(block_keys, page_size) + (0 if aligned else 1)
    _list_tiles[(blocks, batch * kv_heads)](
        lists.readers,
        length_B,
        tiles,
        counts,
        length,
        num_tiles,
        num_pages,
        kv_heads,
        P=page_size,
        TOKENS=tile_tokens,
        BLOCK_N=block_keys,
        PAGES=power_of_two(touched, least=1),
        SCANNED=SCANNED_TILES,
        num_warps=4,
    )
    return tiles, counts
