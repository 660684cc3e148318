"""Predicted memory: by hand, of the real pool, and against the peak of a process."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from sparrow.models.architecture import Architecture
from sparrow.rollout import RolloutEngine
from sparrow.rollout.memory import (
    RolloutMemory,
    copy_bytes,
    draw_bytes,
    forward_bytes,
    landmark_bytes,
    page_bytes,
)
from sparrow.schedule import BudgetSchedule

SIZES = Architecture(layers=3, hidden=8, intermediate=10, heads=4, kv_heads=2, head_dim=5, vocab=11, tied=True)

PROCESS = """
import gc, re
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule

def status(key):
    return int(re.search(key + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

def model(**sizes):
    return LlamaForCausalLM(LlamaConfig(vocab_size=2000, num_attention_heads=8, head_dim=64, **sizes)).eval()

def run(model, length, batch, prefill_tokens):
    engine = RolloutEngine(model, BudgetSchedule.constant(8), max_batch=batch, prefill_tokens=prefill_tokens)
    prompts = [[i % 2000 for i in range(length)] for _ in range(batch)]
    predicted = engine.memory(prompts, max_new_tokens=20).total
    engine.generate(prompts, max_new_tokens=20, seed=0, eos_token_ids=())
    return predicted

torch.set_num_threads(1)
small = model(hidden_size=64, intermediate_size=64, num_hidden_layers=3, num_key_value_heads=8)
run(small, 300, 2, 1024)  # compiles, and loads what is loaded late
del small
gc.collect()
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
before = status("VmRSS")
sizes = {"hidden_size": 256, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS}
predicted = run(model(**sizes, num_key_value_heads=KV_HEADS), 512, 16, PREFILL_TOKENS)
print(predicted, status("VmHWM") - before)
"""


def test_parts_by_hand() -> None:
    assert page_bytes(SIZES, 7, 4, 2) == 2 * 3 * 7 * 4 * 2 * 5 * 2
    assert landmark_bytes(SIZES, 7, 2, 2, 4) == 2 * 7 * 2 * 2 * 5 * 4
    # H D = 20 and K D = 10. Always 8 + 20 + 20 = 48; projecting 10 + 48 + 60 = 118, attending 60, finishing 16 + 26.
    assert forward_bytes(SIZES, 3, 3, 2) == (3 * 48 + 3 * 118) * 2
    assert forward_bytes(replace(SIZES, intermediate=100), 3, 3, 2) == (3 * 48 + 3 * (16 + 200)) * 2
    # Of many tokens 2048 are projected at a time; a prompt of 4096 attends at once, two of 2048 one after the other.
    assert forward_bytes(SIZES, 4096, 4096, 2) == (4096 * 48 + 4096 * 60) * 2
    assert forward_bytes(SIZES, 4096, 2048, 2) == (4096 * 48 + 2048 * 118) * 2
    # Rows are padded to 16; blocks of 256 do not divide a vocabulary of 300.
    assert draw_bytes(SIZES, 3) == 3 * 16 * 11 * 4
    assert draw_bytes(SIZES, 3, block=1) == 3 * 3 * 11 * 4
    assert draw_bytes(SIZES, 17, scaled=True) == 4 * 32 * 11 * 4
    assert draw_bytes(replace(SIZES, vocab=300), 3) == 4 * 16 * 300 * 4
    # 8 sequences with 3 drafts: 32 rows twice, 3 drafts and what follows 16 rows each. 64 sequences with 1: 128 rows.
    assert draw_bytes(SIZES, 8, draft_tokens=3) == (2 * 32 + 4 * 16) * 11 * 4
    assert draw_bytes(SIZES, 64, draft_tokens=1, scaled=True) == 4 * 128 * 11 * 4
    assert copy_bytes(SIZES, own=4, element=4, head=4) == 0
    assert copy_bytes(SIZES, own=4, element=2, head=4) == SIZES.parameters * 2
    assert copy_bytes(SIZES, own=2, element=2, head=4) == 88 * 4


def test_the_table_names_every_part_and_the_sum() -> None:
    memory = RolloutMemory(1_000_000_000, 2_000_000_000, 3_000_000_000, 4_000_000, 5_000_000, 6_000_000)
    assert memory.total == 6_015_000_000
    assert str(memory).splitlines()[0].split() == ["parameters", "1.000", "GB"]
    assert str(memory).splitlines()[-1].split() == ["total", "6.015", "GB"]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["live", "cast"])
def test_the_cache_and_the_casts_are_exact(
    dtype: torch.dtype | None, make_model: Callable[..., nn.Module], make_prompts: Callable[..., list[list[int]]]
) -> None:
    model = make_model("llama")
    schedule = BudgetSchedule.constant(2, page_size=4, dense_layers=[0])
    engine = RolloutEngine(model, schedule, max_batch=4, dtype=dtype)
    prompts = make_prompts([5, 11, 8])
    predicted = engine.memory(prompts, n=2, max_new_tokens=9, record=("hidden",))
    engine.generate(prompts, n=2, max_new_tokens=9, seed=0, eos_token_ids=(), record=("hidden",))
    pool = engine._pool
    assert pool is not None
    assert predicted.pages == sum(pages.nbytes for pages in (*pool.keys, *pool.values))
    assert predicted.landmarks == sum(pages.nbytes for pages in pool.landmarks if pages is not None)
    assert predicted.copies == sum(cast.nbytes for cast in engine._copies.values())
    assert (predicted.copies > 0) == (dtype is not None)
    assert predicted.parameters == sum(parameter.nbytes for parameter in model.parameters())
    assert predicted.recorded == 3 * 6 * 9 * 48 * (4 if dtype is None else 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefill_tokens", "sizes"),
    [
        (1024, {"INTERMEDIATE": 256, "LAYERS": 8, "KV_HEADS": 8}),
        (8192, {"INTERMEDIATE": 256, "LAYERS": 8, "KV_HEADS": 8}),
        (8192, {"INTERMEDIATE": 1024, "LAYERS": 6, "KV_HEADS": 2}),
    ],
    ids=["packs_of_1024", "packs_of_8192", "packs_of_8192_gqa"],
)
def test_peak_of_a_process_is_within_a_tenth(prefill_tokens: int, sizes: dict[str, int]) -> None:
    names = {"PREFILL_TOKENS": prefill_tokens, **sizes}
    code = "\n".join([*(f"{name} = {value}" for name, value in names.items()), PROCESS])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    predicted, measured = (int(part) for part in done.stdout.split())
    assert predicted > 100e6
    assert predicted == pytest.approx(measured, rel=0.1)
