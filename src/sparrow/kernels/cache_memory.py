"""Memory for what kernels read by page: on the CPU it lies on huge pages of the operating system, where there are any.

A cache page of one head is a few kilobytes somewhere in a pool of many megabytes. On ordinary pages nearly each read
misses the table of page addresses; sparse decoding took a fifth longer then (LOG.md).
"""

import contextlib
import math
import mmap
import sys

import torch
from torch import Tensor

LEAST_BYTES = 2 << 20
"""Size of a huge page; smaller tensors cannot hold one."""


def cache_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of a shape; large ones on the CPU ask Linux for huge pages, which it gives if it has been allowed to.

    Raises:
        torch.OutOfMemoryError: there is no room.
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < LEAST_BYTES or not sys.platform.startswith("linux"):
        return torch.zeros(shape, dtype=dtype, device=device)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise torch.OutOfMemoryError(f"{size} bytes of cache: {error.strerror}") from error
    with contextlib.suppress(OSError):  # a kernel built without them: the memory is as good, only slower to find
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)  # keeps the mapping alive
