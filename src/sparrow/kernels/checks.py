"""Argument checks shared by the operators: one wording for a wrong shape, dtype or head count.

They run on every call, decode steps included, so they look only at metadata and never at values on a device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def check_shape(name: str, tensor: Tensor, expected: Sequence[int | None]) -> None:
    """Raises ValueError unless `tensor` has the `expected` shape; None stands for any size."""
    shape = tensor.shape
    if len(shape) == len(expected):
        for got, want in zip(shape, expected):
            if got != want and want is not None:
                break
        else:
            return
    wanted = ", ".join("any" if want is None else str(want) for want in expected)
    raise ValueError(f"{name} has shape {tuple(shape)}, expected ({wanted})")


def check_dtype(name: str, tensor: Tensor, *allowed: torch.dtype) -> None:
    """Raises TypeError unless the dtype of `tensor` is one of `allowed`."""
    if tensor.dtype not in allowed:
        names = ", ".join(str(dtype) for dtype in allowed)
        raise TypeError(f"{name} has dtype {tensor.dtype}, allowed: {names}")


def check_float(name: str, tensor: Tensor) -> None:
    """Raises TypeError unless `tensor` holds floating-point numbers."""
    if not tensor.is_floating_point():
        raise TypeError(f"{name} has dtype {tensor.dtype}, allowed: a floating-point dtype")


def group_size(heads: int, kv_heads: int) -> int:
    """Returns G = H / K, the query heads that share one KV head; ValueError if K does not divide H."""
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot be shared by {kv_heads} KV heads: H must be a multiple of K")
    return heads // kv_heads


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """Returns the dtype to compute in: float32, or float64 if an input is float64 (finite differences)."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype
