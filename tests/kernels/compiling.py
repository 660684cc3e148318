"""Compiles Triton kernels for GPUs that need not be there, and reads what came out."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@dataclass(frozen=True)
class Compiled:
    """What `ptxas` says of a kernel, and its PTX."""

    registers: int
    spilled_bytes: int
    shared_bytes: int
    ptx: str

    def count(self, pattern: str) -> int:
        """Instructions of the PTX that match."""
        return len(re.findall(pattern, self.ptx))

    @property
    def wide_loads(self) -> int:
        """Loads of 16 bytes a lane from global memory, through registers or straight into shared memory."""
        return self.count(r"ld\.global[.\w:]*\.v4\.b32|ld\.global[.\w:]*\.v2\.b64|cp\.async\.cg\.shared\.global .*0x10")


def compile_for(
    capability: int, kernel: Any, types: dict[str, str], constants: dict[str, Any], **options: int
) -> Compiled:
    """Compiles `kernel` for sm_<capability>.

    Args:
        capability: 80 or 90.
        kernel: the jitted function.
        types: type of each run-time argument, e.g. "*bf16" or "i32"; "i32:16" is an integer known to be a multiple of
            16, as Triton finds out at a call. Pointers are taken as aligned to 16 bytes, as torch's allocations are.
        constants: the compile-time arguments; None for a pointer that is not given.
        options: num_warps, num_stages.
    """
    signature, attributes = {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        kind, _, multiple = types[name].partition(":")
        signature[name] = kind
        if kind.startswith("*") or multiple:
            attributes[(position,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, spilled = _resources(compiled.asm["ptx"], capability)
    return Compiled(registers, spilled, compiled.metadata.shared, compiled.asm["ptx"])


def _resources(ptx: str, capability: int) -> tuple[int, int]:
    """Registers a lane and bytes spilled."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        # Hopper code uses instructions that only the "a" variant of the architecture has.
        architecture = f"sm_{capability}a" if capability == 90 else f"sm_{capability}"
        command = [
            triton.knobs.nvidia.ptxas.path,
            "-v",
            f"--gpu-name={architecture}",
            source,
            "-o",
            Path(folder, "out"),
        ]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    registers = re.search(r"Used (\d+) registers", report)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert registers, f"ptxas printed no register count:\n{report}"
    assert spills, f"ptxas printed no spills:\n{report}"
    return int(registers[1]), int(spills[1]) + int(spills[2])
