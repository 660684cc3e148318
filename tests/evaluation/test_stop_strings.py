"""``evaluation.stop``: completions end at a text, in both arms, and count as ended."""

import json

import pytest
from hydra import compose, initialize_config_dir

from sparrow.config import check_config
from sparrow.config_dir import config_dir
from sparrow.evaluate import evaluate
from sparrow.evaluation import EvaluationSettings

SMALL = (
    "evaluation.samples=2", "evaluation.ks=[1,2]", "evaluation.max_problems=3", "evaluation.max_new_tokens=24",
    "data.source.numbers=6", "evaluation.resamples=20",
)  # fmt: skip


def tokens_of(run_dir, *overrides):
    """Completion lengths per line, and the share of truncated completions per arm."""
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("evaluate", overrides=[*SMALL, *overrides, f"paths.run_dir={run_dir}"])
    check_config(cfg)
    run_dir.mkdir()
    evaluate(cfg, run_dir)
    lines = [json.loads(line) for line in (run_dir / "samples.jsonl").read_text().splitlines()]
    found = json.loads((run_dir / "evaluation.json").read_text())["arms"]
    truncated = {arm: found[arm]["sparrow/running_sum"]["truncated"]["value"] for arm in found}
    return [count for line in lines for count in line["tokens"]], truncated


def test_completions_end_at_the_text(tmp_path, capsys):
    free, _ = tokens_of(tmp_path / "free")
    # The tiny policy writes running sums, so "=" comes within a few tokens.
    stopped, truncated = tokens_of(tmp_path / "stopped", 'evaluation.stop=["="]')
    assert truncated == {"dense": 0.0, "sparse": 0.0}
    assert len(stopped) == 12
    assert all(short < long for short, long in zip(stopped, free, strict=True))


@pytest.mark.parametrize("stop", ["=", [""], ["a", 3]])
def test_only_lists_of_texts(stop):
    with pytest.raises(ValueError, match=r"evaluation\.stop=.*: must be a list of texts"):
        EvaluationSettings(stop=stop)
