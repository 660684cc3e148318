from unittest import mock

import pytest
import torch

from sparrow.kernels.token_statistics import gpu
from sparrow.kernels.token_statistics.types import Request
from tests.kernels.launches import Launch, caught

NAMES = ("reduce", "rank", "overlap", "differentiate")


def launches(vocabulary: int, width: int) -> dict[str, Launch]:
    """Every kernel of a pass with agreement, and of the backward pass, over 4096 tokens in bf16, by name."""
    hidden, head = (
        torch.empty(n, width, dtype=torch.bfloat16, device="meta", requires_grad=True) for n in (4096, vocabulary)
    )
    token = torch.empty(4096, dtype=torch.int64, device="meta")
    with caught() as found, mock.patch.object(gpu, "serve_device"), mock.patch.object(gpu, "_half", _half):
        statistics = gpu.token_statistics(
            hidden, head, Request(token, other_hidden_XE=hidden.detach()), chunk_tokens=2048, chunk_vocab=None
        )
        torch.autograd.grad(statistics.logprobs_X.sum(), (hidden, head))
    return {launch.name: launch for launch in found}


def _half(a: torch.Tensor, b: torch.Tensor) -> bool:
    # As on a GPU where the dtype of the gradient is decided; the products themselves run on meta tensors in fp32.
    return a.requires_grad and b.requires_grad


MODELS = {"qwen3": launches(151936, 2048), "smollm2": launches(49152, 576)}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_no_spills_little_shared_memory_wide_loads(model: str, name: str, capability: int) -> None:
    compiled = MODELS[model][name].compile(capability)
    assert compiled.spilled_bytes == 0
    assert compiled.shared_bytes < 100_000
    assert compiled.wide_loads > 0
