import math

import pytest
import torch
from torch import Tensor

from sparrow.kernels import block_sparse_attention
from sparrow.kernels.block_sparse_attention import cpu, reference
from sparrow.kernels.page_bits import pack_pages

BACKENDS = [cpu.block_sparse_attention, reference.block_sparse_attention]


def make_inputs(
    lengths: list[int], prompts: list[int], kv_heads: int, group: int, head_size: int, page_size: int, rows: int
) -> tuple[list[Tensor], Tensor, Tensor, Tensor, Tensor]:
    """Random q, k, v with NaN in the padding, and page sets with garbage where they must not be read."""
    batch, pages = len(lengths), -(-rows // page_size)
    tensors = [torch.randn(batch, heads, rows, head_size) for heads in (kv_heads * group, kv_heads, kv_heads)]
    for tensor in tensors:
        for b, length in enumerate(lengths):
            tensor[b, :, length:] = torch.nan
    mask = torch.rand(batch, kv_heads, rows, pages) < 0.4
    own = torch.arange(rows).unsqueeze(1) // page_size == torch.arange(pages)
    return tensors, mask, pack_pages(mask | own), torch.tensor(prompts), torch.tensor(lengths)


def by_loop(
    tensors: list[Tensor], mask: Tensor, prompts: Tensor, lengths: Tensor, page_size: int, scale: float
) -> Tensor:
    """Row by row and token by token; differentiable."""
    query, key, value = tensors
    batch, heads, rows, _ = query.shape
    group = heads // key.shape[1]
    out = []
    for b in range(batch):
        for h in range(heads):
            k = h // group
            for t in range(rows):
                if t >= lengths[b]:
                    out.append(torch.zeros_like(query[b, h, t]))
                    continue
                read = [
                    s
                    for s in range(t + 1)
                    if t < prompts[b] or s // page_size == t // page_size or mask[b, k, t, s // page_size]
                ]
                weights = torch.stack([query[b, h, t] @ key[b, k, s] * scale for s in read]).softmax(0)
                out.append(sum(w * value[b, k, s] for w, s in zip(weights, read)))
    return torch.stack(out).view_as(query)


def test_by_hand() -> None:
    # Pages of 2. Row 4 (page 2) reads page 0 and its own; logits 0, log 3 and 0 give weights 1/5, 3/5, 1/5.
    query = torch.ones(1, 1, 5, 1)
    key = torch.tensor([0.0, math.log(3), 50.0, 50.0, 0.0]).view(1, 1, 5, 1)
    value = torch.tensor([10.0, 20.0, 1e6, 1e6, 30.0]).view(1, 1, 5, 1)
    chosen = torch.tensor([0, 0, 0, 0b11, 0b101], dtype=torch.int32).view(1, 1, 5, 1)
    for attend in BACKENDS:
        out = attend(query, key, value, chosen, torch.tensor([3]), torch.tensor([5]), page_size=2, scale=1.0)
        assert out.flatten()[4].item() == pytest.approx(2 + 12 + 6, rel=1e-6)
        # Row 0 reads itself; row 1, a prompt row, reads 0 and 1 although its set is empty.
        assert out.flatten()[:2].tolist() == pytest.approx([10.0, 17.5], rel=1e-6)


@pytest.mark.parametrize("attend", BACKENDS, ids=["cpu", "reference"])
@pytest.mark.parametrize(
    ("kv_heads", "group", "head_size", "page_size", "rows"),
    [(1, 1, 16, 4, 17), (2, 3, 32, 4, 9), (1, 5, 80, 16, 18), (2, 2, 24, 1, 7), (1, 7, 16, 3, 10), (1, 2, 16, 4, 1)],
)
def test_values_and_gradients_match_the_loop(
    attend, kv_heads: int, group: int, head_size: int, page_size: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "CHUNK_LOGITS", 2 * kv_heads * group * rows * 4)  # chunks of 4 rows
    lengths, prompts = [rows, max(1, rows - 3)], [max(1, rows // 3), max(1, rows - 3)]
    tensors, mask, chosen, prompt_len, length = make_inputs(
        lengths, prompts, kv_heads, group, head_size, page_size, rows
    )
    fast = [x.clone().requires_grad_() for x in tensors]
    slow = [x.clone().nan_to_num().requires_grad_() for x in tensors]
    got = attend(*fast, chosen, prompt_len, length, page_size=page_size, scale=0.3)
    want = by_loop(slow, mask, prompt_len, length, page_size, 0.3)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(got)
    for a, b in zip(torch.autograd.grad(got, fast, upstream), torch.autograd.grad(want, slow, upstream)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("attend", BACKENDS, ids=["cpu", "reference"])
def test_gradients_match_finite_differences(attend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "CHUNK_LOGITS", 2 * 2 * 5 * 2)
    tensors, _, chosen, prompt_len, length = make_inputs([5, 4], [2, 1], 1, 2, 3, 2, rows=5)
    doubles = [x.nan_to_num().double().requires_grad_() for x in tensors]
    assert torch.autograd.gradcheck(
        lambda q, k, v: attend(q, k, v, chosen, prompt_len, length, page_size=2, scale=0.7), doubles
    )


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, _, chosen, prompt_len, length = make_inputs([300, 171], [20, 64], 2, 2, 32, 16, rows=300)
    arguments = (*tensors, chosen, prompt_len, length)
    whole = cpu.block_sparse_attention(*arguments, page_size=16, scale=0.2)
    monkeypatch.setattr(cpu, "CHUNK_LOGITS", 2 * 4 * 300 * 7)
    parts = cpu.block_sparse_attention(*arguments, page_size=16, scale=0.2)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)
    want = reference.block_sparse_attention(*arguments, page_size=16, scale=0.2)
    torch.testing.assert_close(whole, want, rtol=1e-5, atol=1e-6)


def test_all_pages_equal_plain_causal_attention() -> None:
    query, key, value = torch.randn(2, 4, 50, 32), torch.randn(2, 2, 50, 32), torch.randn(2, 2, 50, 32)
    chosen = torch.full((2, 2, 50, 1), -1, dtype=torch.int32)
    out = block_sparse_attention(
        query, key, value, chosen, torch.tensor([1, 9]), torch.tensor([50, 50]), page_size=4, scale=0.2
    )
    want = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=0.2, enable_gqa=True
    )
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-6)


def test_memory_does_not_grow_with_the_square_of_the_length(monkeypatch: pytest.MonkeyPatch, largest_tensor) -> None:
    monkeypatch.setattr(cpu, "CHUNK_LOGITS", 2**16)
    tensors, _, chosen, prompt_len, length = make_inputs([1000], [100], 1, 2, 16, 16, rows=1000)
    leaves = [x.requires_grad_() for x in tensors]
    with largest_tensor as largest:
        out = block_sparse_attention(*leaves, chosen, prompt_len, length, page_size=16, scale=0.2)
        out.sum().backward()
    assert largest.numel <= 2**16
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


def test_bf16_is_computed_in_fp32() -> None:
    tensors, _, chosen, prompt_len, length = make_inputs([40], [10], 2, 2, 32, 4, rows=40)
    half = [x.bfloat16() for x in tensors]
    arguments = (chosen, prompt_len, length)
    out = block_sparse_attention(*half, *arguments, page_size=4, scale=0.2)
    want = block_sparse_attention(*[x.float() for x in half], *arguments, page_size=4, scale=0.2)
    assert torch.equal(out, want.bfloat16())


def test_errors() -> None:
    query, key = torch.zeros(1, 4, 40, 16), torch.zeros(1, 2, 40, 16)
    chosen, one = torch.zeros(1, 2, 40, 1, dtype=torch.int32), torch.tensor([1])
    with pytest.raises(ValueError, match=r"chosen_BKTM has shape \(1, 2, 40, 1\), expected \(1, 2, 40, 2\)"):
        block_sparse_attention(query, key, key, chosen, one, one, page_size=1, scale=1.0)
    with pytest.raises(TypeError, match=r"chosen_BKTM has dtype torch\.int64"):
        block_sparse_attention(query, key, key, chosen.long(), one, one, page_size=4, scale=1.0)
