"""``sparrow-benchmark``: what operators, rollouts and memory cost on this machine, one suite at a time."""

from pathlib import Path
from typing import Protocol

import torch
from omegaconf import DictConfig

from sparrow.config import build, check_run, run_command


class Suite(Protocol):
    """What ``suite=`` selects."""

    def run(self, run_dir: Path) -> None:
        """Measure or work out, print, and write the results into the run folder."""
        ...


def benchmark(cfg: DictConfig, run_dir: Path) -> None:
    """Run the chosen suite."""
    check_run(cfg)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    suite: Suite = build(cfg.suite)
    suite.run(run_dir)


def main() -> None:
    """Entry point of ``sparrow-benchmark`` and ``python -m sparrow.benchmark``."""
    run_command("benchmark", benchmark)


if __name__ == "__main__":
    main()
