"""CPU path of `block_sparse_attention`: torch's fused attention over chunks of rows, with a mask per chunk.

A chunk of rows times all the keys before its end is all that exists at a time, so memory is bounded for any T, and what
lies in the future is left out chunk by chunk. The backward pass makes each chunk again instead of keeping it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from sparrow.kernels.block_sparse_attention.reference import attended
from sparrow.kernels.checks import accumulation_dtype

CHUNK_LOGITS = 2**22
"""Logits that exist at a time: 16 MiB in fp32."""


@dataclass(frozen=True)
class _Layout:
    """Who may read what: the arguments that are not differentiated."""

    chosen_BKTM: Tensor
    prompt_len_B: Tensor
    length_B: Tensor
    page_size: int
    scale: float


def _chunks(layout: _Layout, heads: int) -> Iterator[slice]:
    """Chunks of rows whose logits stay within the limit."""
    batch, _, length, _ = layout.chosen_BKTM.shape
    rows = max(1, min(length, CHUNK_LOGITS // max(1, batch * heads * length)))
    return (slice(start, min(start + rows, length)) for start in range(0, length, rows))


def _attend_chunk(query_BKGTD: Tensor, key_BKTD: Tensor, value_BKTD: Tensor, layout: _Layout, rows: slice) -> Tensor:
    """Attention of a chunk of rows to the keys before its end, [B, K, G, rows, D]."""
    mask_BKTT = attended(
        layout.chosen_BKTM[:, :, rows],
        layout.prompt_len_B,
        layout.length_B,
        start=rows.start,
        stop=rows.stop,
        page_size=layout.page_size,
    )
    # A row that reads nothing reads everything instead, so that no NaN arises, and is cleared afterwards.
    empty_BKT1 = ~mask_BKTT.any(dim=-1, keepdim=True)
    bias_BKTT = torch.zeros_like(mask_BKTT, dtype=query_BKGTD.dtype).masked_fill_(~(mask_BKTT | empty_BKT1), -torch.inf)
    # (sequence, KV head) as the batch, so that one mask and one set of keys serve all G heads.
    group = query_BKGTD.shape[2]
    out_XGTD = scaled_dot_product_attention(
        query_BKGTD.flatten(0, 1),
        key_BKTD.flatten(0, 1).unsqueeze(1).expand(-1, group, -1, -1),
        value_BKTD.flatten(0, 1).unsqueeze(1).expand(-1, group, -1, -1),
        attn_mask=bias_BKTT.flatten(0, 1).unsqueeze(1),
        scale=layout.scale,
    )
    return out_XGTD.view_as(query_BKGTD).masked_fill(empty_BKT1.unsqueeze(2), 0)


def block_sparse_attention(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    chosen_BKTM: Tensor,
    prompt_len_B: Tensor,
    length_B: Tensor,
    *,
    page_size: int,
    scale: float,
) -> Tensor:
    """Clears the padding, runs the chunks, joins them."""
    layout = _Layout(chosen_BKTM, prompt_len_B, length_B, page_size, scale)
    heads, length = query_BHTD.shape[1:3]
    padding_B1T1 = (torch.arange(length, device=length_B.device) >= length_B.unsqueeze(1))[:, None, :, None]
    # Padding may hold NaN, and zero times NaN is NaN. Clearing it also keeps its gradient at zero.
    dtype = accumulation_dtype(query_BHTD)
    query, key, value = (x.to(dtype).masked_fill(padding_B1T1, 0) for x in (query_BHTD, key_BKTD, value_BKTD))
    query_BKGTD = torch.unflatten(query, 1, (key.shape[1], -1))
    parts = [
        checkpoint(
            _attend_chunk,
            query_BKGTD[:, :, :, rows],
            key[:, :, : rows.stop],
            value[:, :, : rows.stop],
            layout,
            rows,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for rows in _chunks(layout, heads)
    ]
    return torch.cat(parts, dim=3).flatten(1, 2).to(query_BHTD.dtype)
