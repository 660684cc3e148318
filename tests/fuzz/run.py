"""Runs the configurations of an operator and keeps what was seen."""

import importlib
import json
import platform
import random
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton

from tests.fuzz import OPERATORS


def run_index(operator: str, seed: int, index: int) -> None:
    """One configuration; a failure is raised."""
    module = _module(operator)
    case = _case(module, operator, seed, index)
    print(f"{operator} {index}: {case}", flush=True)
    print(module.check(case))


def run_operator(operator: str, seed: int, configurations: int) -> dict[str, Any]:
    """Every configuration, failed ones included; prints one line and the failures."""
    module = _module(operator)
    worst: dict[str, float] = {}
    failures: list[dict[str, Any]] = []
    start, start_cpu = time.perf_counter(), time.process_time()
    for index in range(configurations):
        case = _case(module, operator, seed, index)
        try:
            errors = module.check(case)
        except Exception as error:  # whatever a path raises is a finding, and the run goes on
            failures.append({"index": index, "case": repr(case), "error": f"{type(error).__name__}: {error}"[:1000]})
            print(f"{operator} {index} FAILED: {case}\n  {failures[-1]['error']}", flush=True)
            continue
        worst = {path: max(worst.get(path, 0.0), error) for path, error in errors.items()}
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    shown = ", ".join(f"{path} {error:.2e}" for path, error in worst.items())
    print(
        f"{operator}: {configurations} configurations, {len(failures)} failures, worst error: {shown}; "
        f"{seconds:.1f} s, {cpu_seconds:.1f} s of CPU",
        flush=True,
    )
    return {
        "configurations": configurations,
        "seed": seed,
        "failures": failures,
        "worst_error": worst,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__},
    }


def save(path: Path, operator: str, result: dict[str, Any]) -> None:
    """Puts the result of an operator into the file, next to those of the others."""
    results = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    results[operator] = result
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(sorted(results.items())), indent=2) + "\n", encoding="utf-8")


def _module(operator: str) -> ModuleType:
    return importlib.import_module(OPERATORS[operator])


def _case(module: ModuleType, operator: str, seed: int, index: int) -> Any:
    return module.draw(random.Random(f"{seed} {operator} {index}"))
