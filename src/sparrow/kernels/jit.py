"""The one place that touches numba: how the CPU fast paths are compiled, and on how many threads they run.

Numba types itself only in part, and differently from release to release; here its decorators get the type of the
function they decorate, so that everything else passes strict type checking.
"""

import threading
from collections.abc import Callable
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

prange: Any = numba.prange
"""A range whose iterations may run on several threads inside a `compiled_parallel` function."""

# Sums may be reordered into vector lanes and products fused. NaN and infinity keep their meaning: no "nnan", no "ninf".
# The order is fixed when the code is compiled, so a row gives the same bits in any batch and on any number of threads.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: F) -> F:
    """Compiles a function at its first call.

    The machine code is kept on disk: in `__pycache__` next to the source, or in the user's cache folder where the
    package is installed read-only. It follows changes of its own file only: after an edit of this one, delete it.
    """
    decorated: F = _numba.njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")(function)
    return decorated


def compiled_parallel(function: F) -> F:
    """As `compiled`, with `prange` loops on several threads. Keep it thin: this form takes much longer to compile."""
    decorated: F = _numba.njit(cache=True, nogil=True, parallel=True, error_model="numpy")(function)
    return decorated


_threads = threading.local()


def use_torch_threads() -> None:
    """Makes the next parallel call use as many threads as torch does, so that one setting governs both."""
    wanted = torch.get_num_threads()
    # Telling numba costs 10 us, more than some kernels, so it is told only what is new.
    if getattr(_threads, "count", None) != wanted:
        _numba.set_num_threads(min(wanted, _numba.config.NUMBA_NUM_THREADS))
        _threads.count = wanted


def array(tensor: Tensor, dtype: torch.dtype | None = None) -> Any:
    """The tensor's memory as a C-contiguous numpy array; copies only what has another layout or dtype."""
    if dtype is not None and tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor.numpy(force=True)


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
