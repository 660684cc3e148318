"""The planner by hand, and against what a backward pass really keeps."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from sparrow.benchmarks.memory import MemorySuite
from sparrow.benchmarks.training_memory import TILE_COPIES, Setup, layer_activation_bytes, training_memory
from sparrow.kernels import token_statistics
from sparrow.models.architecture import Architecture, from_config

SMALL = Architecture(
    layers=3, hidden=8, intermediate=10, heads=4, kv_heads=2, head_dim=5, vocab=11, tied=True, qk_norm=True
)
"""A layer has 8 (40 + 20) + 3 * 8 * 10 + 16 + 10 = 746 parameters, all of it 3 * 746 + 88 + 8 = 2334."""

SETUP = Setup(
    sizes=SMALL,
    world_size=4,
    sharded=True,
    element=2,
    sequences=3,
    tokens=21,
    responses=6,
    page_size=4,
    dense_layers=1,
    prefill_tokens=7,
    micro_batch_tokens=9,
    tile_logits=100,
    recorded=True,
)


def test_sharded_by_hand() -> None:
    memory = training_memory(SETUP)
    layer = 9 * (8 * (2 * 6 + 4) + 30 * 6 + (2 * 30 * 2 + 16) + 40 * 2)
    assert layer == 9 * 524
    assert memory.items() == {
        "masters": 4 * 584,  # 2334 / 4, rounded up
        "optimizer": 8 * 584,
        "engine_copy": 2 * 2334 + 4 * 88,
        "pages": 2 * 3 * 18 * 4 * 10 * 2,  # 3 sequences of 6 pages
        "landmarks": 2 * 18 * 10 * 2,
        "graphs": 3 * (48 + 118) * 2 + 3 * 16 * 11 * 4,  # rows are padded to 16
        "prefill": 7 * (48 + 118) * 2,
        "gradients": 4 * 584,
        "gathered": 2 * (3 * 746 + 2 * 96),
        "activations": 3 * layer + 9 * 8 * 2,
        "activations_checkpointed": 3 * 9 * 8 * 2 + layer,
        "logits": 5 * 4 * 100 + 2 * 9 * 8 * 2,
        "host_recorded": 6 * 21 * 8 * 2,
    }
    assert memory.resident == 2336 + 4672 + 5020 + 8640 + 720 + 3108
    assert memory.rollout_peak == 24496 + 2324
    assert memory.update_peak(checkpointed=False) == 24496 + 2336 + 4860 + 14292 + 2288
    assert memory.update_peak(checkpointed=True) == 24496 + 2336 + 4860 + 5148 + 2288
    assert memory.peak(checkpointed=True) == 39128


def test_the_rollout_can_be_the_peak() -> None:
    memory = training_memory(replace(SETUP, prefill_tokens=1000))
    assert memory.peak(checkpointed=True) == memory.rollout_peak == 24496 + 1000 * 332


def test_whole_on_every_device() -> None:
    memory = training_memory(replace(SETUP, sharded=False))
    assert (memory.masters, memory.optimizer, memory.gradients) == (4 * 2334, 8 * 2334, 4 * 2334)
    assert memory.engine_copy == 2 * 2334  # the head is read from the fp32 masters


def test_on_a_cpu_the_engine_has_no_copy_and_nothing_is_captured() -> None:
    memory = training_memory(replace(SETUP, sharded=False, element=4, recorded=False))
    assert (memory.engine_copy, memory.gathered, memory.graphs, memory.host_recorded) == (0, 0, 0, 0)
    assert memory.pages == 2 * 8640


FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 24}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
}


def kept(model: nn.Module, tokens: int) -> int:
    """Bytes of all storages that autograd keeps in a forward pass, parameters and buffers left out."""
    owned = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers())}
    storages: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = model(input_ids=torch.zeros(1, tokens, dtype=torch.int64), use_cache=False)
        total = sum(storage.nbytes() for pointer, storage in storages.items() if pointer not in owned)
        assert out.last_hidden_state.requires_grad
    return total


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_layer_keeps_what_was_worked_out(family: str, dtype: torch.dtype) -> None:
    config_class, model_class, own = FAMILIES[family]
    found = {}
    for layers in (2, 4):
        config = config_class(
            vocab_size=50,
            hidden_size=96,
            intermediate_size=200,
            num_hidden_layers=layers,
            num_attention_heads=6,
            num_key_value_heads=2,
            **own,
        )
        config._attn_implementation = "sdpa"
        found[layers] = kept(model_class(config).to(dtype).model, tokens=80)
    predicted = layer_activation_bytes(from_config(config), 80, dtype.itemsize)
    assert (found[4] - found[2]) / 2 == pytest.approx(predicted, rel=0.1)


def test_scoring_holds_the_tiles_that_were_worked_out(live_bytes: Any) -> None:
    hidden_XE, other_XE = torch.randn(600, 16).requires_grad_(), torch.randn(600, 16)
    head_VE, token_X = torch.randn(4096, 16).requires_grad_(), torch.randint(4096, (600,))
    statistics = token_statistics(hidden_XE, head_VE, token_X, other_hidden_XE=other_XE, chunk_tokens=64)
    with live_bytes:
        (statistics.logprobs_X.sum() + statistics.entropy_X.sum()).backward()
    gradients = hidden_XE.nbytes + head_VE.nbytes
    assert live_bytes.peak - gradients == pytest.approx(TILE_COPIES * 4 * 64 * 4096, rel=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": "fsdp"}, "suite.strategy='fsdp': must be single, ddp or fsdp2"),
        ({"world_size": 2}, "suite.world_size=2: must be 1 with strategy=single"),
        ({"dtype": "fp8"}, "suite.dtype='fp8': must be one of float32, bfloat16"),
        ({"tokens": 0}, "suite.tokens=0: must be 1 or more"),
        ({"dense_layers": -1}, "suite.dense_layers=-1: must be 0 or more"),
        ({"device_gb": 0.0}, "suite.device_gb=0.0: must be above 0, or null"),
    ],
)
def test_wrong_values_are_named(change: dict[str, Any], message: str) -> None:
    fields = {"strategy": "single", "world_size": 1, "dtype": "bfloat16", "sequences": 2, "tokens": 9, "responses": 4}
    with pytest.raises(ValueError, match=message):
        MemorySuite(architecture="qwen3-0.6b", **{**fields, **change})
