"""The one place that touches numba: how the CPU fast paths are compiled, and on how many threads they run.

Numba types itself only in part, and differently from release to release; here its decorators get the type of the
function they decorate, so that everything else passes strict type checking.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numba
import torch
from llvmlite import ir  # type: ignore[import-untyped]  # no annotations, no stubs
from numba.core import cgutils, types
from numba.extending import intrinsic
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

_numba: Any = numba
_cgutils: Any = cgutils

MOST_THREADS = 16
"""Decoding is bound by memory; more threads than this wait for it, and starting each takes some microseconds."""

# Sums may be reordered into vector lanes and products fused. NaN and infinity keep their meaning: no "nnan", no "ninf".
# The order is fixed when the code is compiled, so a row gives the same bits in any batch and on any number of threads.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: F) -> F:
    """Compiles a function at its first call.

    The machine code is kept on disk: in `__pycache__` next to the source, or in the user's cache folder where the
    package is installed read-only. It follows changes of its own file only: after an edit of this one, delete it.
    """
    decorated: F = _numba.njit(cache=True, nogil=True, no_cfunc_wrapper=True, fastmath=FASTMATH, error_model="numpy")(
        function
    )
    return decorated


def inlined(function: F) -> F:
    """For helpers of a compiled function: their code becomes part of it, so that a constant size stays a constant."""
    decorated: F = _numba.njit(inline="always", fastmath=FASTMATH, error_model="numpy")(function)
    return decorated


def run(kernel: Callable[..., Any], items: int, *arguments: Any) -> None:
    """Calls `kernel(start, stop, *arguments)` so that the ranges cover `items`, on as many threads as torch uses.

    Compiled code runs outside the interpreter lock, so plain threads do: they compile in a fraction of the time of
    numba's own parallel loops, leave no spinning OpenMP team behind, and one thread costs nothing.
    """
    threads = max(1, min(torch.get_num_threads(), items, MOST_THREADS))
    own, *shares = pairwise(items * i // threads for i in range(threads + 1))
    others = [_pool().submit(kernel, *share, *arguments) for share in shares]
    kernel(*own, *arguments)
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="sparrow-kernel")


# A forked child has none of the parent's threads: it starts its own pool instead of waiting for them.
os.register_at_fork(after_in_child=_pool.cache_clear)


def array(tensor: Tensor, dtype: torch.dtype | None = None) -> Any:
    """The tensor's memory as a C-contiguous numpy array; copies only what has another layout or dtype."""
    if dtype is not None and tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor.detach().numpy() if tensor.requires_grad else tensor.numpy()


def _emit(function: Callable[..., Any]) -> Any:
    """Decorates a function that writes its own LLVM code."""
    return intrinsic(function)


@_emit
def float_from_bits(typing_context: Any, bits: Any) -> Any:
    """The float32 whose bit pattern is the given int32."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), build


@_emit
def bits_from_float(typing_context: Any, number: Any) -> Any:
    """The bit pattern of a float32, as int32."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), build


@_emit
def prefetch(typing_context: Any, array_ND: Any, index_N: Any) -> Any:
    """Asks for the cache line of an element, given as a tuple of indices, without waiting for it."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type, index_type = signature.args
        view = context.make_array(array_type)(context, builder, arguments[0])
        parts = zip(cgutils.unpack_tuple(builder, arguments[1]), index_type)
        index = [context.cast(builder, part, part_type, types.intp) for part, part_type in parts]
        pointer = cgutils.get_item_pointer(context, builder, array_type, view, index, wraparound=False)
        byte = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [byte.type, word, word, word])
        function = _cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        # Read access, to be kept in all cache levels, data.
        builder.call(function, [byte, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array_ND, index_N), build
