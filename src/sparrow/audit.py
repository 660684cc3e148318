"""``sparrow-audit``: whether the gap between sparse actor and dense policy is healthy, before anything is trained."""

from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console

from sparrow.auditing import AuditSettings
from sparrow.auditing.page import write_page
from sparrow.auditing.plots import plot_audit
from sparrow.auditing.report import correction_grid, number_grid, tail_grids, token_grid, weight_grid
from sparrow.auditing.run import Auditor
from sparrow.auditing.tokens import most_disagreeing
from sparrow.benchmarks.results import write_results
from sparrow.config import build, build_schedule, check_run, run_command
from sparrow.data import Prompt, PromptDataModule
from sparrow.models.loading import eos_token_ids, load_policy

WIDTH = 170
"""Columns of the tables, on a narrower terminal too."""


def audit(cfg: DictConfig, run_dir: Path) -> None:
    """Audit what ``cfg`` names; leaves ``summary.json``, ``audit.json``, ``audit.html`` and PNGs.

    Raises:
        ValueError: too few prompts.
    """
    check_run(cfg)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    settings: AuditSettings = build(cfg.audit)
    model, tokenizer = load_policy(cfg.model.name_or_path)
    model.to(cfg.device)
    reader: Any = tokenizer  # of one sequence it gives one text; its annotations allow for several
    data: PromptDataModule = build(cfg.data, tokenizer=tokenizer)
    data.setup("fit")
    auditor = Auditor(
        model,
        reader,
        eos_token_ids(model, tokenizer),
        build_schedule(cfg.schedule),
        settings,
        page_score=cfg.page_score,
        seed=cfg.seed,
    )
    scorer = build(cfg.reward) if settings.judge else None
    rules = {str(name): build(node) for name, node in cfg.corrections.items()}
    found, measured = auditor.run(audited_prompts(data, settings), scorer, rules)
    write_results(run_dir, "audit", dict(found.summary()), found.details())
    images = plot_audit(run_dir, found, measured, settings.block_tokens)
    grids = [*tail_grids(found), number_grid(found), weight_grid(found), correction_grid(found), token_grid(found)]
    title = f"Audit of {cfg.model.name_or_path}"
    row = most_disagreeing(measured)
    write_page(run_dir / "audit.html", title, found.verdict, grids, images, measured, reader, row)
    console = Console(width=max(Console().width, WIDTH))
    for grid in grids:
        console.print(grid.rich(), markup=False)
    print(f"Verdict: {found.verdict.word}. {found.verdict.text}")


def audited_prompts(data: PromptDataModule, settings: AuditSettings) -> list[Prompt]:
    """The first training prompts: the audit asks about what training would see.

    Raises:
        ValueError: there are not enough.
    """
    wanted = settings.prompts * settings.batches
    if len(data.train_prompts) < wanted:
        raise ValueError(
            f"audit.prompts={settings.prompts} x audit.batches={settings.batches}: the data set has only "
            f"{len(data.train_prompts)} training prompts; ask for fewer"
        )
    return data.train_prompts[:wanted]


def main() -> None:
    """Entry point of ``sparrow-audit`` and ``python -m sparrow.audit``."""
    run_command("audit", audit)


if __name__ == "__main__":
    main()
