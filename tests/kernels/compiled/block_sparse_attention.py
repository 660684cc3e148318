import pytest
import torch

from sparrow.kernels.block_sparse_attention import gpu
from tests.kernels.launches import Launch, caught

GATHERING = ("attend", "grad_query", "grad_key_value")
NAMES = ("list_pages", "attend", "grad_query", "list_tiles", "grad_key_value")


def launches(heads: int, kv_heads: int, head_size: int, page_size: int = 16) -> dict[str, Launch]:
    """Every kernel of a forward and backward pass over two sequences of 4096 tokens, by name; bf16, heads innermost."""

    def tensor(heads: int) -> torch.Tensor:
        rows = torch.empty(2, 4096, heads, head_size, dtype=torch.bfloat16, device="meta")
        return rows.transpose(1, 2).requires_grad_()

    query, key, value = tensor(heads), tensor(kv_heads), tensor(kv_heads)
    chosen = torch.empty(2, kv_heads, 4096, -(-4096 // page_size // 32), dtype=torch.int32, device="meta")
    ends = torch.empty(2, dtype=torch.int64, device="meta")
    with caught() as found:
        out = gpu._Attend.apply(query, key, value, chosen, ends, ends, page_size, 0.1)
        torch.autograd.grad(out, (query, key, value), torch.empty_like(out))
    return {launch.name: launch for launch in found}


MODELS = {
    "qwen3": launches(16, 8, 128),
    "smollm2": launches(9, 3, 64),
    "head80-group1-page4": launches(2, 2, 80, page_size=4),
    "head256": launches(8, 4, 256),
}


@pytest.mark.parametrize(
    ("model", "name", "capability"),
    [
        *((model, name, capability) for model in ("qwen3", "smollm2") for name in NAMES for capability in (80, 90)),
        # Fewer registers are left on sm_80, so that is where other shapes would spill.
        *((model, name, 80) for model in ("head80-group1-page4", "head256") for name in GATHERING),
    ],
)
def test_no_spills_little_shared_memory_wide_loads(model: str, name: str, capability: int) -> None:
    compiled = MODELS[model][name].compile(capability)
    assert compiled.spilled_bytes == 0
    assert compiled.shared_bytes < 100_000
    if name in GATHERING:
        assert compiled.wide_loads > 0
        # bf16 on the tensor cores, and nothing summed in bf16.
        assert compiled.count(r"wgmma\.mma_async|mma\.sync") > 0
        assert compiled.count(r"add\.(rn\.)?bf16") == 0


@pytest.mark.parametrize("model", ["qwen3", "smollm2"])
@pytest.mark.parametrize("name", GATHERING)
def test_loads_run_ahead_of_the_products(model: str, name: str) -> None:
    compiled = MODELS[model][name].compile(90)
    assert compiled.count(r"cp\.async\.cg\.shared\.global") > 0
    assert compiled.count(r"wgmma\.mma_async") > 0
