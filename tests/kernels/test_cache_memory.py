"""Memory of the page pool: zeros of any dtype that live as long as their tensor, on huge pages where there are any."""

import gc
from pathlib import Path

import pytest
import torch

from sparrow.kernels.cache_memory import LEAST_BYTES, cache_zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [1, 4095, 4096, 4097])  # around the least size in fp32
def test_zeros_that_can_be_written(dtype, rows):
    tensor = cache_zeros((rows, 2, 64), dtype, CPU)
    assert (tensor.shape, tensor.dtype) == ((rows, 2, 64), dtype)
    assert tensor.is_contiguous()
    assert not tensor.any()
    tensor[-1, 1, 63] = 3.0
    assert float(tensor.double().sum()) == 3.0


def test_the_memory_outlives_everything_but_the_tensor_and_then_goes():
    before = _mapped()
    tensor = cache_zeros((64, 1 << 20), torch.uint8, CPU).fill_(7)
    part = tensor[63, -5:]
    del tensor
    gc.collect()
    assert part.tolist() == [7] * 5
    assert _mapped() - before > 60 << 20
    del part
    gc.collect()
    assert _mapped() - before < 4 << 20


@pytest.mark.parametrize("shape", [(0, 3), (3, 0, 8)])
def test_nothing_at_all(shape):
    assert cache_zeros(shape, torch.float32, CPU).shape == shape


def test_large_tensors_ask_for_huge_pages():
    tensor = cache_zeros((4 * LEAST_BYTES,), torch.uint8, CPU)
    small = cache_zeros((LEAST_BYTES - 1,), torch.uint8, CPU)
    available = Path("/sys/kernel/mm/transparent_hugepage").is_dir()
    assert ("hg" in _flags(tensor.data_ptr())) == available  # the kernel's mark of a mapping that was advised so
    assert "hg" not in _flags(small.data_ptr())


def _mapped() -> int:
    """Bytes of the process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _flags(address: int) -> list[str]:
    """VmFlags of the mapping that an address lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(end, 16) for end in first.split("-"))
            inside = low <= address < high
        elif inside and first == "VmFlags:":
            return line.split()[1:]
    raise AssertionError(f"no mapping at {address:#x}")


def test_no_room_is_said_as_torch_says_it():
    with pytest.raises(torch.OutOfMemoryError, match=f"{2**62} bytes of cache: "):
        cache_zeros((2**60,), torch.float32, CPU)
