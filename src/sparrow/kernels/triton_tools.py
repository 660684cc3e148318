"""What the Triton kernels share: the decorator, argument checks, and the table of tile sizes.

Import it from `gpu.py` files only: it needs Triton, which a machine without a GPU may lack.

Rules of the kernels: plain pointers; 64-bit offsets wherever a page or row index is multiplied; fp32 right after each
load, except for the operands of `tl.dot`, which accumulates in fp32; no autotuning, so that a call compiles one kernel
and a row's result depends on nothing but its own shape.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
import triton
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Dtypes of tokens and cache that the kernels serve."""

LARGEST_HEAD = 256
"""Head sizes from 1 to this are served; those that are no power of two by masked lanes."""

LARGEST_GROUP = 32
"""Query heads per KV head that fit one tile."""

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""Whether Triton runs its kernels by numpy on CPU tensors (the tests do)."""


@overload
def kernel(function: Callable[..., Any]) -> Any: ...


@overload
def kernel(*, runtime: Sequence[str]) -> Callable[[Callable[..., Any]], Any]: ...


def kernel(function: Callable[..., Any] | None = None, *, runtime: Sequence[str] = ()) -> Any:
    """`triton.jit` with a type. `runtime` names integers on whose values no variant of the kernel may depend."""
    if function is None:
        return lambda decorated: triton.jit(decorated, do_not_specialize=list(runtime))
    return triton.jit(function, do_not_specialize=list(runtime))


def power_of_two(number: int, least: int = 16) -> int:
    """The smallest power of two that is neither below `number` nor below `least`; the latter is `tl.dot`'s limit."""
    return max(least, 1 << max(number - 1, 0).bit_length())


def serve_device(operator: str, tensor: Tensor) -> None:
    """Raises ValueError unless a kernel can run where `tensor` lives."""
    wanted = "cpu" if INTERPRETED else "cuda"
    if tensor.device.type != wanted:
        raise ValueError(f"{operator}: the Triton kernel got a tensor on {tensor.device}, it serves {wanted}")


def serve_dtype(operator: str, name: str, tensor: Tensor) -> None:
    """Raises TypeError for a dtype that the kernel of `operator` does not serve."""
    if tensor.dtype not in DTYPES:
        names = ", ".join(str(dtype) for dtype in DTYPES)
        raise TypeError(f"{operator}: {name} has dtype {tensor.dtype}, the Triton kernel serves {names}")


def serve_size(operator: str, name: str, value: int, most: int) -> None:
    """Raises ValueError for a size outside 1 .. `most`."""
    if not 1 <= value <= most:
        raise ValueError(f"{operator}: {name} is {value}, the Triton kernel serves 1 to {most}")


def serve_contiguous(operator: str, name: str, tensor: Tensor) -> None:
    """Raises ValueError for a pool whose pages do not lie one after the other; copying it would hide the cost."""
    if not tensor.is_contiguous():
        raise ValueError(
            f"{operator}: {name} has strides {tensor.stride()}, the Triton kernel serves contiguous pools only"
        )


def rows_in_place(tensor: Tensor) -> Tensor:
    """The tensor itself if the elements of its last axis lie side by side, as in a slice of a fused projection."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()
