"""``sparrow-evaluate``: a policy on held-out problems, dense and sparse side by side."""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from sparrow.config import build, build_schedule, check_run, run_command
from sparrow.data import PromptDataModule
from sparrow.evaluation import EvaluationSettings, Problem, make_report
from sparrow.evaluation import evaluate as sample_and_judge
from sparrow.models.loading import eos_token_ids, load_policy
from sparrow.rewards import Scorer
from sparrow.rollout import RolloutEngine

WIDTH = 140
"""Columns of the table, on a narrower terminal too: wrapped cells could not be compared."""


def evaluate(cfg: DictConfig, run_dir: Path) -> None:
    """Evaluate the model that ``cfg`` names; leaves ``evaluation.json`` and ``samples.jsonl`` in ``run_dir``.

    Raises:
        ValueError: the data set has no held-out problems.
    """
    check_run(cfg)
    settings: EvaluationSettings = build(cfg.evaluation)
    model, tokenizer = load_policy(cfg.model.name_or_path)
    model.to(cfg.device)
    reader: Any = tokenizer  # of one sequence it gives one text; its annotations allow for several
    data: PromptDataModule = build(cfg.data, tokenizer=tokenizer)
    data.setup("validate")
    prompts = data.validation_prompts[: settings.max_problems]
    if not prompts:
        raise ValueError("data.source has no validation rows; allowed for evaluation: a set with held-out problems")
    print(f"prompts: {data.counts['validation']}")
    scorer: Scorer = build(cfg.reward)
    eos = eos_token_ids(model, tokenizer)
    arms: dict[str, list[Problem]] = {}
    with scorer:
        for arm in settings.arms:
            schedule = build_schedule(cfg.schedule) if arm == "sparse" else None
            engine = RolloutEngine(model, schedule, page_score=cfg.page_score, max_batch=settings.max_batch)
            arms[arm] = sample_and_judge(engine, prompts, reader, scorer, settings, eos_token_ids=eos)
    report = make_report(arms, settings)
    found = {"model": cfg.model.name_or_path, "samples": settings.samples, **report.to_dict()}
    (run_dir / "evaluation.json").write_text(json.dumps(found, indent=1) + "\n")
    _write_samples(run_dir / "samples.jsonl", arms)
    console = Console()
    Console(width=max(console.width, WIDTH)).print(report.table())


def _write_samples(path: Path, arms: dict[str, list[Problem]]) -> None:
    """A line per arm and problem: what the estimates are made of."""
    with path.open("w", encoding="utf-8") as file:
        for arm, problems in arms.items():
            for problem in problems:
                line = {
                    "arm": arm,
                    "data_source": problem.data_source,
                    "index": problem.index,
                    "key": problem.key,
                    "labels": [sample.label for sample in problem.samples],
                    "scores": [sample.score for sample in problem.samples],
                    "tokens": [sample.tokens for sample in problem.samples],
                    "answers": [sample.answer for sample in problem.samples],
                }
                file.write(json.dumps(line) + "\n")


def main() -> None:
    """Entry point of ``sparrow-evaluate`` and ``python -m sparrow.evaluate``."""
    run_command("evaluate", evaluate)


if __name__ == "__main__":
    main()
