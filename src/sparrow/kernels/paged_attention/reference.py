"""Reference of `paged_attention`: plain torch, any device and dtype. The operator's docstring holds the definition.

It gathers the listed pages, so it moves three times the bytes of a kernel that reads them in place.
"""

import torch
from torch import Tensor

from sparrow.kernels.checks import accumulation_dtype


def every_page(cached_B: Tensor, kv_heads: int, num_pages: int, page_size: int) -> tuple[Tensor, Tensor]:
    """The identity list: dense attention is sparse attention that lists every page.

    Returns:
        pages [B, K, N] int32 and count [B, K] int32.
    """
    page_N = torch.arange(num_pages, dtype=torch.int32, device=cached_B.device)
    live_B = ((cached_B + page_size - 1) // page_size).to(torch.int32)
    pages_BKN = page_N.expand(cached_B.shape[0], kv_heads, num_pages).contiguous()
    return pages_BKN, live_B.unsqueeze(1).expand(-1, kv_heads).contiguous()


def paged_attention(
    query_BHD: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_table_BN: Tensor,
    pages_BKS: Tensor | None,
    count_BK: Tensor | None,
    cached_B: Tensor,
    scale: float,
) -> Tensor:
    """Gathers the listed pages and takes one softmax over their tokens."""
    kv_heads, page_size = key_pages.shape[1:3]
    if pages_BKS is None or count_BK is None:
        pages_BKS, count_BK = every_page(cached_B, kv_heads, page_table_BN.shape[1], page_size)
    dtype = accumulation_dtype(query_BHD)
    device = query_BHD.device

    listed_BKS = torch.arange(pages_BKS.shape[-1], device=device) < count_BK.unsqueeze(-1)
    logical_BKS = torch.where(listed_BKS, pages_BKS, 0).long()
    table_BKN = page_table_BN.long().unsqueeze(1).expand(-1, kv_heads, -1)
    physical_BKS = torch.where(listed_BKS, table_BKN.gather(2, logical_BKS), 0)
    head_K1 = torch.arange(kv_heads, device=device).unsqueeze(1)

    position_BKSP = logical_BKS.unsqueeze(-1) * page_size + torch.arange(page_size, device=device)
    valid_BKSP = listed_BKS.unsqueeze(-1) & (position_BKSP < cached_B.view(-1, 1, 1, 1))
    valid_BKT = valid_BKSP.flatten(2)
    # Slots that hold no token may hold NaN, and zero times NaN is NaN: they are cleared, not only masked.
    unused = ~valid_BKT.unsqueeze(-1)
    key_BKTD = key_pages[physical_BKS, head_K1].flatten(2, 3).to(dtype).masked_fill(unused, 0)
    value_BKTD = value_pages[physical_BKS, head_K1].flatten(2, 3).to(dtype).masked_fill(unused, 0)

    query_BKGD = torch.unflatten(query_BHD.to(dtype), 1, (kv_heads, -1))
    logits_BKGT = (query_BKGD @ key_BKTD.mT * scale).masked_fill(~valid_BKT.unsqueeze(2), -torch.inf)
    weights_BKGT = logits_BKGT.softmax(dim=-1)
    empty_BK11 = ~valid_BKT.any(dim=-1).view(*valid_BKT.shape[:2], 1, 1)
    out_BKGD = (weights_BKGT @ value_BKTD).masked_fill(empty_BK11, 0)
    return out_BKGD.flatten(1, 2).to(query_BHD.dtype)
