"""``sparrow-cost``: what rollouts of a model cost under a schedule, by the cost model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from sparrow.config import build_schedule, run_command
from sparrow.schedule import BudgetSchedule
from sparrow.schedule.cost import GPU_INTENSITY, MODEL_SHAPES, ModelShape, attention_bound, rollout_cost

T = TypeVar("T")


def cost(cfg: DictConfig, run_dir: Path) -> None:
    """Print the costs, dense and sparse, over response lengths.

    Raises:
        ValueError: the model's shape or the GPU is unknown; the message lists the known ones.
    """
    shape = _known("shape", cfg.shape, MODEL_SHAPES)
    intensity = _known("gpu", cfg.gpu, GPU_INTENSITY)
    schedule = build_schedule(cfg.schedule)
    title = f"{cfg.shape} on {cfg.gpu}, {cfg.samples} samples, prompt {cfg.prompt_len}, convention {cfg.convention}"
    columns = ("response tokens", "dense eFLOPs", "sparse eFLOPs", "rollout speed-up", "attention bound")
    table = Table(*columns, title=title)
    for length in cfg.response_lens:
        table.add_row(*_row(shape, schedule, int(length), intensity, cfg))
    Console().print(table)


def _row(shape: ModelShape, schedule: BudgetSchedule, length: int, intensity: float, cfg: DictConfig) -> list[str]:
    costs = [
        rollout_cost(
            shape,
            samples=cfg.samples,
            prompt_len=cfg.prompt_len,
            response_len=length,
            schedule=choice,
            intensity=intensity,
            convention=cfg.convention,
        ).total
        for choice in (None, schedule)
    ]
    bound = attention_bound(cfg.prompt_len + length, schedule)
    return [str(length), f"{costs[0]:.3e}", f"{costs[1]:.3e}", f"{costs[0] / costs[1]:.2f}x", f"{bound:.2f}x"]


def _known(key: str, name: str, table: Mapping[str, T]) -> T:
    if name not in table:
        raise ValueError(f"{key}={name!r}: must be one of {', '.join(table)}")
    return table[name]


def main() -> None:
    """Entry point of ``sparrow-cost`` and ``python -m sparrow.cost``."""
    run_command("cost", cost)


if __name__ == "__main__":
    main()
