"""The operators of the training pass on a CUDA device in bf16, against their references in fp64 on the same numbers."""

import pytest
import torch
from torch import Tensor

from sparrow.kernels import block_sparse_attention, token_statistics
from sparrow.kernels.block_sparse_attention import reference
from sparrow.kernels.page_bits import pack_pages

pytestmark = pytest.mark.gpu


def relative_error(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


@pytest.mark.parametrize(
    ("kv_heads", "group", "head_size", "page_size"),
    [
        (2, 2, 128, 16),
        (3, 3, 64, 16),
        (2, 4, 128, 4),
        (1, 5, 128, 16),
        (2, 1, 80, 16),
        (1, 7, 96, 32),
        (1, 8, 256, 128),
        (1, 16, 128, 16),
        (1, 32, 64, 64),
        (1, 6, 64, 8),
    ],
)
def test_block_sparse_attention(kv_heads: int, group: int, head_size: int, page_size: int) -> None:
    lengths, prompts, rows = [1000, 517, 0], [100, 517, 0], 1000
    heads = (kv_heads * group, kv_heads, kv_heads, kv_heads * group)
    tensors = [torch.randn(3, rows, h, head_size, device="cuda").bfloat16().transpose(1, 2) for h in heads]
    for tensor in tensors:
        for b, length in enumerate(lengths):
            tensor[b, :, length:] = torch.nan
    pages = torch.arange(-(-rows // page_size), device="cuda")
    mask = torch.rand(3, kv_heads, rows, len(pages), device="cuda") < 0.1
    own = torch.arange(rows, device="cuda").unsqueeze(1) // page_size == pages
    ends = [torch.tensor(x, device="cuda") for x in (prompts, lengths)]
    fixed, options = (pack_pages(mask | own), *ends), {"page_size": page_size, "scale": head_size**-0.5}

    def run(attend, dtype: torch.dtype) -> list[Tensor]:
        *leaves, upstream = (x.to(dtype) for x in tensors)
        leaves = [x.detach().requires_grad_() for x in leaves]
        out = attend(*leaves, *fixed, **options)
        return [out, *torch.autograd.grad(out, leaves, upstream)]

    want = run(reference.block_sparse_attention, torch.float64)
    for name, got, exact in zip(("output", "query", "key", "value"), run(block_sparse_attention, torch.bfloat16), want):
        assert relative_error(got, exact) < 5e-3, name
    for got, exact in zip(run(block_sparse_attention, torch.float32), want):
        assert relative_error(got, exact) < 1e-5


def test_block_sparse_attention_gives_the_same_bits_every_time() -> None:
    query = torch.randn(1, 4, 700, 128, device="cuda").bfloat16().requires_grad_()
    key, value = (torch.randn(1, 2, 700, 128, device="cuda").bfloat16().requires_grad_() for _ in range(2))
    chosen = pack_pages(torch.rand(1, 2, 700, 44, device="cuda") < 0.3)
    ends = torch.tensor([50], device="cuda"), torch.tensor([700], device="cuda")
    results = []
    for _ in range(3):
        out = block_sparse_attention(query, key, value, chosen, *ends, page_size=16, scale=0.1)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), (query, key, value))])
    for again in results[1:]:
        for x, y in zip(results[0], again):
            assert torch.equal(x, y)


@pytest.mark.parametrize(("tokens", "vocabulary", "width"), [(5000, 9001, 256), (300, 151936, 128)])
def test_token_statistics(tokens: int, vocabulary: int, width: int) -> None:
    hidden = torch.randn(tokens, width, device="cuda").bfloat16().requires_grad_()
    head = (torch.randn(vocabulary, width, device="cuda") / width**0.5).bfloat16().requires_grad_()
    other = (hidden.detach() + 0.3 * torch.randn_like(hidden)).bfloat16()
    token = torch.randint(0, vocabulary, (tokens,), device="cuda")
    found = token_statistics(hidden, head, token, temperature=0.8, topk=30, other_hidden_XE=other)
    wide_hidden, wide_head = (x.detach().double().requires_grad_() for x in (hidden, head))
    own = torch.log_softmax(wide_hidden @ wide_head.T / 0.8, dim=-1)
    sparse = torch.log_softmax(other.double() @ wide_head.detach().T / 0.8, dim=-1)
    picked, entropy = own.gather(1, token.unsqueeze(1)).squeeze(1), -(own.exp() * own).sum(-1)
    assert relative_error(found.logprobs_X, picked) < 1e-5
    assert relative_error(found.entropy_X, entropy) < 1e-5
    assert relative_error(found.alpha_X, torch.minimum(own, sparse).exp().sum(-1)) < 1e-5
    assert relative_error(found.topk_logprobs, own.topk(30).values) < 1e-5
    weights = torch.randn(2, tokens, device="cuda")
    got = torch.autograd.grad((found.logprobs_X * weights[0] + found.entropy_X * weights[1]).sum(), (hidden, head))
    want = torch.autograd.grad((picked * weights[0] + entropy * weights[1]).sum(), (wide_hidden, wide_head))
    for x, y in zip(got, want):
        assert x.dtype == torch.bfloat16
        assert relative_error(x, y) < 5e-3
