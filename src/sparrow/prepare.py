"""``sparrow-prepare``: what a run needs that is not in the package: a model's folder, a data set known to be sound."""

import json
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig
from transformers import AutoTokenizer

from sparrow.config import build, check_run, run_command
from sparrow.data import PromptCounts, PromptDataModule, PromptRow, Source
from sparrow.models.loading import TINY, resolve_model
from sparrow.models.pretrained import PRETRAINED, prepare_model
from sparrow.rewards import Scorer, check_routes


def prepare(cfg: DictConfig, run_dir: Path) -> None:
    """Obtain the model and the data; with ``check=true`` dry-run the data's rewards."""
    check_run(cfg)
    if cfg.model is None and cfg.data is None:
        raise ValueError("nothing to prepare; allowed: model=..., data=..., or both, and with data check=true")
    if cfg.model is not None:
        _obtain_model(cfg.model.name_or_path)
    if cfg.data is not None:
        rows = _obtain(cfg, run_dir)
        if cfg.check:
            _check(cfg, rows)
    elif cfg.check:
        raise ValueError("check=true needs data=...: the data set whose rows are to be checked")


def _obtain_model(name: str) -> None:
    if name in PRETRAINED:
        print(f"model '{name}' is in {prepare_model(name)}")
    else:
        print(f"model '{name}' is {'packaged' if name == TINY else resolve_model(name)}")


def _obtain(cfg: DictConfig, run_dir: Path) -> list[PromptRow]:
    """Reads the data set, filters it by length if a model's tokenizer is there to count, and writes what is left."""
    if cfg.model is None:
        source: Source = build(cfg.data.source)
        rows = {"train": source.train_rows(), "validation": source.validation_rows()}
        uncounted = "lengths not counted (model=... counts them)"
        counted = {split: f"{len(kept)} rows, {uncounted}" for split, kept in rows.items()}
    else:
        tokenizer = AutoTokenizer.from_pretrained(resolve_model(cfg.model.name_or_path))
        data: PromptDataModule = build(cfg.data, tokenizer=tokenizer)
        data.setup()
        prompts = {"train": data.train_prompts, "validation": data.validation_prompts}
        rows = {split: [prompt.row for prompt in kept] for split, kept in prompts.items()}
        counted = {split: _counted(counts, data.max_prompt_tokens) for split, counts in data.counts.items()}
    for split in (name for name in rows if rows[name]):
        path = run_dir / f"{split}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row.to_dict(), ensure_ascii=False) + "\n" for row in rows[split])
        print(f"{split}: {counted[split]}, in {path}")
    return [*rows["train"], *rows["validation"]]


def _counted(counts: PromptCounts, limit: int | None) -> str:
    filtered = "no length limit" if limit is None else f"{counts.too_long} left out over {limit} tokens"
    lengths = f"{counts.shortest} to {counts.longest} tokens"
    return f"{counts.kept} of {counts.rows} rows kept ({filtered}), prompts of {lengths}"


def _check(cfg: DictConfig, rows: Sequence[PromptRow]) -> None:
    scorer: Scorer = build(cfg.reward)
    with scorer:
        result = check_routes(rows, scorer, limit_per_source=cfg.check_rows)
    for source, count in result.rows.items():
        checked, no_gold, agreeing = (part.get(source, 0) for part in (result.checked, result.no_gold, result.agreeing))
        print(
            f"{source}: {count} rows route, {agreeing} prompts ask for what their checker looks for; "
            f"{checked} gold answers score 1, {no_gold} have none to write down"
        )


def main() -> None:
    """Entry point of ``sparrow-prepare`` and ``python -m sparrow.prepare``."""
    run_command("prepare", prepare)


if __name__ == "__main__":
    main()
