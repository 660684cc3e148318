"""``sparrow-prepare``: what a run needs that is not in the package: a model's folder, a data set known to be sound."""

from pathlib import Path

from omegaconf import DictConfig

from sparrow.config import build, run_command
from sparrow.data import PromptDataModule
from sparrow.models.loading import TINY, load_policy, resolve_model
from sparrow.models.pretrained import PRETRAINED, prepare_model
from sparrow.rewards import Scorer, check_routes


def prepare(cfg: DictConfig, run_dir: Path) -> None:
    """Obtain the model, and with ``check=true`` dry-run the data's rewards."""
    name = cfg.model.name_or_path
    if name in PRETRAINED:
        print(f"model '{name}' is in {prepare_model(name)}")
    else:
        print(f"model '{name}' is {'packaged' if name == TINY else resolve_model(name)}")
    if cfg.check:
        _check(cfg)


def _check(cfg: DictConfig) -> None:
    if cfg.data is None:
        raise ValueError("check=true needs data=...: the data set whose rows are to be checked")
    _, tokenizer = load_policy(cfg.model.name_or_path)
    data: PromptDataModule = build(cfg.data, tokenizer=tokenizer)
    data.setup("fit")
    rows = [prompt.row for prompt in (*data.train_prompts, *data.validation_prompts)]
    scorer: Scorer = build(cfg.reward)
    with scorer:
        result = check_routes(rows, scorer)
    for source, count in result.rows.items():
        checked, no_gold = result.checked.get(source, 0), result.no_gold.get(source, 0)
        print(f"{source}: {count} rows route; {checked} gold answers score 1, {no_gold} have none to write down")
    print(f"prompt tokens: {data.counts}")


def main() -> None:
    """Entry point of ``sparrow-prepare`` and ``python -m sparrow.prepare``."""
    run_command("prepare", prepare)


if __name__ == "__main__":
    main()
