"""A seeded slice of the fuzz run; `make fuzz` is the whole."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPERATORS: dict[str, str] = runpy.run_path(str(ROOT / "tests/fuzz/__init__.py"))["OPERATORS"]
CONFIGURATIONS = 30


QUICK = ("decode_attention", "page_landmarks", "page_scores", "paged_attention", "row_linear", "select_pages")


@pytest.mark.parametrize(
    "operator",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in sorted(OPERATORS)],
)
def test_random_configurations_agree(operator: str, tmp_path: Path) -> None:
    output = tmp_path / "fuzz.json"
    command = [sys.executable, "-m", "tests.fuzz", "--operator", operator, "--output", str(output)]
    command += ["--configurations", str(CONFIGURATIONS), "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    result = json.loads(output.read_text(encoding="utf-8"))[operator]
    assert result["configurations"] == CONFIGURATIONS
    assert result["failures"] == []
