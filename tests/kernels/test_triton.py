"""Runs the Triton tests that need a process of their own: Triton interprets or compiles, decided at its first import.

`interpreted/` runs kernels by numpy on CPU tensors, `compiled/` compiles them for GPUs that are not there. Each file is
a pytest file; to run one by hand: `TRITON_INTERPRET=1 python -m pytest tests/kernels/interpreted/page_scores.py`.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def _run(path: Path, interpret: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": interpret}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{path.relative_to(ROOT)} failed:\n{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


IN_EVERY_RUN = ("page_scores",)
"""One of them; the fuzz slice of `test_fuzz.py` interprets the others in every run, and `make test-full` runs all."""


def _files(folder: str) -> list[Any]:
    paths = sorted((HERE / folder).glob("*.py"))
    quick = [folder == "interpreted" and path.stem in IN_EVERY_RUN for path in paths]
    return [
        pytest.param(path, id=path.stem, marks=[] if soon else [pytest.mark.slow]) for path, soon in zip(paths, quick)
    ]


@pytest.mark.parametrize("path", _files("interpreted"))
def test_interpreted(path: Path) -> None:
    _run(path, "1")


@pytest.mark.parametrize("path", _files("compiled"))
def test_compiled(path: Path) -> None:
    _run(path, "0")
