"""Where a result came from: versions, commit and machine, as strings."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("torch", "lightning", "transformers", "peft", "hydra-core", "torchmetrics", "numba", "numpy", "triton")


def provenance() -> dict[str, str]:
    """Versions of what computes, the commit of the source tree if there is one, and the machine."""
    found = {"sparrow": _version("sparrow"), "python": platform.python_version(), "commit": _commit()}
    found |= {name: _version(name) for name in PACKAGES}
    found |= {"machine": platform.machine(), "processor": _processor(), "cores": str(os.cpu_count())}
    found["torch_threads"] = str(torch.get_num_threads())
    found["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    folder = Path(__file__).resolve().parent
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "not a git checkout"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
