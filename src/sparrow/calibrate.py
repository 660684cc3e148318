"""``sparrow-calibrate``: the cheapest schedule that holds the tail of a model on a set of prompts."""

from pathlib import Path

import torch
from omegaconf import DictConfig
from rich.console import Console

from sparrow.benchmarks.results import write_results
from sparrow.calibration import CalibrationSettings
from sparrow.calibration.plots import plot_calibration
from sparrow.calibration.predict import pareto_front
from sparrow.calibration.report import bin_table, details, held_out_curve, summary, sweep_table
from sparrow.calibration.run import Calibrator
from sparrow.config import build, build_schedule, check_run, run_command
from sparrow.data import Prompt, PromptDataModule
from sparrow.models.loading import eos_token_ids, load_policy
from sparrow.schedule import load_schedule
from sparrow.schedule.cost import GPU_INTENSITY

WIDTH = 150
"""Columns of the table, on a narrower terminal too."""


def calibrate(cfg: DictConfig, run_dir: Path) -> None:
    """Calibrate what ``cfg`` names; leaves ``schedule.yaml``, ``summary.json``, ``calibration.json`` and plots.

    Raises:
        ValueError: too few prompts, or a GPU that the cost model does not know.
    """
    check_run(cfg)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    if cfg.gpu not in GPU_INTENSITY:
        raise ValueError(f"gpu={cfg.gpu!r}: must be one of {', '.join(GPU_INTENSITY)}")
    settings: CalibrationSettings = build(cfg.calibration)
    model, tokenizer = load_policy(cfg.model.name_or_path)
    model.to(cfg.device)
    data: PromptDataModule = build(cfg.data, tokenizer=tokenizer)
    data.setup("fit")
    prompts, held_out = split_prompts(data, settings)
    calibrator = Calibrator(
        model,
        eos_token_ids(model, tokenizer),
        settings,
        build_schedule(cfg.schedule),
        page_score=cfg.page_score,
        seed=cfg.seed,
        intensity=GPU_INTENSITY[cfg.gpu],
        samples=cfg.cost_samples,
        origin={"made_by": "sparrow-calibrate", "model": cfg.model.name_or_path, "data": cfg.data.source._target_},
    )
    found = calibrator.run(prompts, held_out, run_dir, None if cfg.traces is None else Path(cfg.traces))
    found.schedule.to_yaml(run_dir / "schedule.yaml")
    write_results(run_dir, "calibration", dict(summary(found, settings)), details(found, settings))
    others = {name: load_schedule(name) for name in cfg.compare}
    plot_calibration(run_dir, found, held_out_curve(found, settings), settings, others)
    console = Console()
    console = Console(width=max(console.width, WIDTH))
    console.print(bin_table(found, settings))
    if found.sweep:
        front = pareto_front([(point.speedup, point.tail) for point in found.sweep])
        console.print(sweep_table(found, front))
    if not found.choice.holds:
        print(f"tau {settings.tau:g} is not held in every bin, not even with all pages: see calibration.json")
    print(f"use it by: schedule.name={run_dir / 'schedule.yaml'}")


def split_prompts(data: PromptDataModule, settings: CalibrationSettings) -> tuple[list[Prompt], list[Prompt]]:
    """Prompts to calibrate on, and others to check on: held-out ones if the set has some, else the next ones.

    Raises:
        ValueError: there are not enough.
    """
    prompts = data.train_prompts[: settings.prompts]
    rest = data.validation_prompts or data.train_prompts[settings.prompts :]
    held_out = rest[: settings.held_out]
    for key, wanted, there in (("prompts", settings.prompts, prompts), ("held_out", settings.held_out, held_out)):
        if len(there) < wanted:
            raise ValueError(
                f"calibration.{key}={wanted}, but the data set has {len(there)}: give more rows or ask less"
            )
    return prompts, held_out


def main() -> None:
    """Entry point of ``sparrow-calibrate`` and ``python -m sparrow.calibrate``."""
    run_command("calibrate", calibrate)


if __name__ == "__main__":
    main()
