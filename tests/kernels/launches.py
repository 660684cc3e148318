"""Catches the launches of a host function run on meta tensors, and compiles each as it would have been launched.

So what is tested is what the launcher chooses for a shape: the types, the alignments, the tile sizes, the warps. No GPU
and no memory is needed; the host function must not look at values.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from tests.kernels.compiling import Compiled, _resources

TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OPTIONS = ("num_warps", "num_stages")


class Launch:
    """A kernel and the arguments of one launch."""

    def __init__(self, kernel: JITFunction, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.kernel = kernel
        self.options = {name: keywords.pop(name) for name in OPTIONS if name in keywords}
        self.values = dict(zip(kernel.arg_names, arguments)) | keywords
        self.fixed = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return self.kernel.__name__.strip("_")

    def compile(self, capability: int) -> Compiled:
        """Compiles for sm_<capability>, specialised as Triton does it at a launch."""
        constants: dict[tuple[int, ...], Any] = {}
        attributes: dict[tuple[int, ...], Any] = {}
        signature = {}
        for position, parameter in enumerate(self.kernel.params):
            value = self.values[parameter.name]
            if parameter.is_constexpr:
                signature[parameter.name] = "constexpr"
                constants[(position,)] = value
            else:
                specialise = parameter.name not in self.fixed
                signature[parameter.name] = _describe(value, (position,), specialise, constants, attributes)
        source = ASTSource(self.kernel, signature, constants, attributes)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=self.options)
        ptx = compiled.asm["ptx"]
        return Compiled(*_resources(ptx, capability), compiled.metadata.shared, ptx)


def _describe(value: Any, path: tuple[int, ...], specialise: bool, constants: Any, attributes: Any) -> Any:
    """Type of a run-time argument; notes that it is 1, or a multiple of 16 (pointers are aligned so by torch)."""
    if isinstance(value, tuple):
        return tuple(_describe(v, (*path, i), specialise, constants, attributes) for i, v in enumerate(value))
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int) and value == 1 and specialise:
        constants[path] = 1
        return "constexpr"
    aligned = isinstance(value, torch.Tensor) or (value % 16 == 0 and specialise)
    if aligned:
        attributes[path] = [["tt.divisibility", 16]]
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    return "i32" if -(2**31) <= value < 2**31 else "i64"


@contextmanager
def caught() -> Iterator[list[Launch]]:
    """The launches made inside; no kernel runs."""
    launches: list[Launch] = []

    def item(kernel: JITFunction, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **keywords: launches.append(Launch(kernel, arguments, keywords))

    with mock.patch.object(JITFunction, "__getitem__", item):
        yield launches
