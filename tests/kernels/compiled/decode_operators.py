"""The kernels of the decode step, compiled for the shapes of Qwen3 and SmolLM2 on Ampere and Hopper."""

from typing import Any

import pytest

from sparrow.kernels.page_landmarks import gpu as page_landmarks
from sparrow.kernels.page_scores import gpu as page_scores
from sparrow.kernels.paged_attention import gpu as paged_attention
from sparrow.kernels.select_pages import gpu as select_pages
from sparrow.kernels.triton_tools import power_of_two
from tests.kernels.compiling import Compiled, compile_for

PAGE_SIZE = 16
MODELS = {"qwen3": {"K": 8, "G": 2, "D": 128}, "smollm2": {"K": 3, "G": 3, "D": 64}}
MOST_SHARED = 100 * 1024

pytestmark = [
    pytest.mark.parametrize("capability", [80, 90], ids=lambda number: f"sm_{number}"),
    pytest.mark.parametrize("model", MODELS.values(), ids=MODELS),
]


def check(compiled: Compiled, wide_loads: bool = True) -> None:
    assert compiled.spilled_bytes == 0, f"{compiled.spilled_bytes} bytes spilled"
    assert compiled.shared_bytes < MOST_SHARED, f"{compiled.shared_bytes} bytes of shared memory"
    if wide_loads:
        assert compiled.wide_loads > 0, "no 16-byte load"
    # Sums of 16-bit numbers would lose eight of the bits they have.
    assert compiled.count(r"\b(add|sub|mul|fma)[.\w]*\.bf16") == 0, "arithmetic in bf16"


@pytest.mark.parametrize("summary", [page_landmarks.NONE, page_landmarks.MEAN, page_landmarks.MINMAX])
def test_page_landmarks_write(model: dict[str, int], capability: int, summary: int) -> None:
    block_d = power_of_two(model["D"], least=1)
    types = dict.fromkeys(("key", "value", "key_pages", "value_pages", "landmarks"), "*bf16")
    types |= {"page_T": "*i64", "offset_T": "*i64", "tokens": "i32"}
    types |= {f"{name}_stride_{axis}": "i32:16" for name in ("key", "value") for axis in "tk"}
    constants: dict[str, Any] = {"K": model["K"], "P": PAGE_SIZE, "D": model["D"], "W": 2 if summary == 2 else 1}
    constants |= {"BLOCK_P": PAGE_SIZE, "BLOCK_D": block_d, "SCAN": page_landmarks.SCAN_TOKENS, "SUMMARY": summary}
    if summary == page_landmarks.NONE:
        constants["landmarks"] = None
    warps = page_landmarks.warps(PAGE_SIZE, block_d) if summary else 1
    # A row of D elements over 32 lanes is too short for 16-byte loads; the page that a landmark summarises is not.
    check(compile_for(capability, page_landmarks._write, types, constants, num_warps=warps), wide_loads=summary > 0)


@pytest.mark.parametrize("summary", [page_landmarks.MEAN, page_landmarks.MINMAX])
def test_page_landmarks_of_full_pages(model: dict[str, int], capability: int, summary: int) -> None:
    block_d = power_of_two(model["D"], least=1)
    types = {"key_pages": "*bf16", "landmarks": "*bf16", "page_T": "*i64", "offset_T": "*i64"}
    constants = {"K": model["K"], "P": PAGE_SIZE, "D": model["D"], "W": summary}
    constants |= {"BLOCK_P": PAGE_SIZE, "BLOCK_D": block_d, "SUMMARY": summary}
    warps = page_landmarks.warps(PAGE_SIZE, block_d)
    check(compile_for(capability, page_landmarks._summarise_full, types, constants, num_warps=warps))


@pytest.mark.parametrize("kind", [page_scores.WEIGHTS, page_scores.MEAN, page_scores.MINMAX])
def test_page_scores(model: dict[str, int], capability: int, kind: int) -> None:
    query = "*fp32" if kind == page_scores.WEIGHTS else "*bf16"
    types = {"query": query, "landmarks": "*bf16", "page_table": "*i32", "cached": "*i32", "scores": "*fp32"}
    types |= {"num_pages": "i32", "stride_b": "i32:16", "stride_h": "i32:16"}
    block_d = power_of_two(model["D"], least=1)
    constants = {**model, "P": PAGE_SIZE, "W": 2 if kind == page_scores.MINMAX else 1, "KIND": kind}
    constants |= {"BLOCK_N": page_scores.BLOCK_PAGES, "BLOCK_D": block_d}
    check(compile_for(capability, page_scores._score, types, constants, num_warps=page_scores.warps(block_d)))


@pytest.mark.parametrize("pages", [1024, 4096])
def test_select_pages(model: dict[str, int], capability: int, pages: int) -> None:
    types = {"scores": "*fp32", "cached": "*i32", "budget": "*i32", "pages": "*i32", "counts": "*i32"}
    types |= dict.fromkeys(("num_pages", "capacity", "first", "last"), "i32")
    constants = {"K": model["K"], "P": PAGE_SIZE, "BLOCK_N": pages, "BLOCK_S": select_pages.PAD_BLOCK}
    warps = select_pages.warps(pages)
    # Rows of scores start at any multiple of their number, so their loads are 4 bytes a lane; a row is read once.
    check(compile_for(capability, select_pages._select, types, constants, num_warps=warps), wide_loads=False)


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "dense"])
@pytest.mark.parametrize("direct", [True, False], ids=["one-split", "splits"])
def test_paged_attention(model: dict[str, int], capability: int, direct: bool, listed: bool) -> None:
    block_d = power_of_two(model["D"])
    shape = paged_attention.tile(2, block_d)
    types = dict.fromkeys(("query", "key_pages", "value_pages", "out"), "*bf16")
    types |= dict.fromkeys(("page_table", "pages", "counts", "cached"), "*i32")
    types |= dict.fromkeys(("part_out", "part_max", "part_sum"), "*fp32")
    types |= {"scale": "fp32", "num_pages": "i32", "capacity": "i32", "stride_b": "i32:16", "stride_h": "i32:16"}
    constants: dict[str, Any] = {**model, "P": PAGE_SIZE, "SPLIT": paged_attention.split_pages(PAGE_SIZE)}
    constants |= {"BLOCK_G": 16, "BLOCK_T": shape.tokens, "BLOCK_D": block_d, "STAGES": shape.stages}
    constants |= {"LISTED": listed, "DIRECT": direct}
    constants |= {} if listed else {"pages": None, "counts": None}
    constants |= dict.fromkeys(("part_out", "part_max", "part_sum")) if direct else {}
    compiled = compile_for(capability, paged_attention._attend, types, constants, num_warps=shape.warps)
    check(compiled)
    # Four pages of 16 and more in one step, and copies that run ahead of the arithmetic.
    assert shape.tokens >= 4 * PAGE_SIZE
    copies = 2 * shape.tokens * model["D"] * 2 // (16 * 32 * shape.warps)
    assert compiled.count(r"cp\.async\.cg\.shared\.global") >= 2 * copies, "keys or values are not loaded ahead"


def test_paged_attention_combine(model: dict[str, int], capability: int) -> None:
    types = dict.fromkeys(("part_out", "part_max", "part_sum"), "*fp32")
    types |= {"counts": "*i32", "cached": "*i32", "out": "*bf16", "capacity": "i32", "splits": "i32"}
    constants: dict[str, Any] = {**model, "P": PAGE_SIZE, "SPLIT": paged_attention.split_pages(PAGE_SIZE)}
    constants |= {"BLOCK_X": paged_attention.COMBINE_SPLITS, "BLOCK_D": power_of_two(model["D"]), "LISTED": True}
    check(compile_for(capability, paged_attention._combine, types, constants, num_warps=4))
