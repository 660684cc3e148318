"""Reference of `block_sparse_attention`: one explicit [B, H, T, T] mask. The operator's docstring holds the definition.

Clear, differentiable by autograd, any device; memory grows with T squared, so it is for tests and short sequences.
"""

import torch
from torch import Tensor

from sparrow.kernels.checks import accumulation_dtype
from sparrow.kernels.page_bits import unpack_pages


def attended(
    chosen_BKTM: Tensor, prompt_len_B: Tensor, length_B: Tensor, *, start: int, stop: int, page_size: int
) -> Tensor:
    """Which keys the query rows start .. stop-1 may read.

    Args:
        chosen_BKTM: page sets of those rows only.
        prompt_len_B: rows before it are dense.
        length_B: rows from it on are padding and read nothing.
        start: first row.
        stop: one past the last row; keys 0 .. stop-1 are considered.
        page_size: P.

    Returns:
        [B, K, stop - start, stop] bool.
    """
    device = chosen_BKTM.device
    row_T = torch.arange(start, stop, device=device)
    key_T = torch.arange(stop, device=device)
    pages_BKTN = unpack_pages(chosen_BKTM, -(-stop // page_size))
    dense_BT = row_T < prompt_len_B.unsqueeze(1)
    pages_BKTN = pages_BKTN | dense_BT.view(-1, 1, stop - start, 1)
    readable_BTT = (key_T <= row_T.unsqueeze(1)) & (row_T < length_B.unsqueeze(1)).unsqueeze(2)
    return pages_BKTN.repeat_interleave(page_size, dim=-1)[..., :stop] & readable_BTT.unsqueeze(1)


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
    """Masked softmax attention over all T x T pairs."""
    dtype = accumulation_dtype(query_BHTD)
    kv_heads, length = key_BKTD.shape[1:3]
    mask_BKTT = attended(chosen_BKTM, prompt_len_B, length_B, start=0, stop=length, page_size=page_size)
    padding_B1T1 = (torch.arange(length, device=length_B.device) >= length_B.unsqueeze(1))[:, None, :, None]
    query, key, value = (x.to(dtype).masked_fill(padding_B1T1, 0) for x in (query_BHTD, key_BKTD, value_BKTD))

    query_BKGTD = torch.unflatten(query, 1, (kv_heads, -1))
    logits_BKGTT = torch.einsum("bkgtd,bksd->bkgts", query_BKGTD, key) * scale
    # A row that reads nothing would be NaN: it keeps its finite logits here and is cleared below.
    empty_BKT1 = ~mask_BKTT.any(dim=-1, keepdim=True)
    readable = mask_BKTT | empty_BKT1
    weights_BKGTT = logits_BKGTT.masked_fill(~readable.unsqueeze(2), -torch.inf).softmax(dim=-1)
    out_BKGTD = torch.einsum("bkgts,bksd->bkgtd", weights_BKGTT, value).masked_fill(empty_BKT1.unsqueeze(2), 0)
    return out_BKGTD.flatten(1, 2).to(query_BHTD.dtype)
