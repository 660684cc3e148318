"""``rollout=speculative`` in training: what is recorded is the dense policy's, so that corrections weigh 1."""

import csv

import pytest
import torch
from hydra import compose, initialize_config_dir

from sparrow.config import build, check_config
from sparrow.config_dir import config_dir
from sparrow.modules import RolloutSettings
from sparrow.train import train

OPTIONS = (
    "experiment=quickstart", "debug=default", "~callbacks.progress", "rollout.temperature=1.5",
    "rollout.max_new_tokens=60", "schedule.pages=[0,0]",
)  # fmt: skip


def composed(*overrides):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("train", overrides=list(overrides))
    check_config(cfg)
    return cfg


def rows_of(folder, *overrides):
    folder.mkdir()
    train(composed(*OPTIONS, *overrides, f"paths.run_dir={folder}"), folder)
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_corrections_weigh_one(tmp_path):
    for row in rows_of(tmp_path / "lossless", "rollout=speculative", "rollout.draft_tokens=3"):
        assert float(row["rollout_corr/weight_error_max"]) < 1e-4
        assert float(row["tail/alpha/min"]) > 1 - 1e-4
        assert 0.1 < float(row["perf/draft_acceptance"]) < 1.0
        assert 0.3 < float(row["perf/draft_accepted_length"]) < 3.0
    for row in rows_of(tmp_path / "sparse"):
        assert float(row["rollout_corr/weight_error_max"]) > 0.1
        assert float(row["tail/alpha/min"]) < 0.5
        assert row.get("perf/draft_acceptance") is None


def test_the_option_and_its_key(tmp_path):
    folder = f"paths.run_dir={tmp_path}"
    assert build(composed("rollout=speculative", folder).rollout).draft_tokens == 4
    assert build(composed(folder).rollout).draft_tokens == 0
    with pytest.raises(ValueError, match=r"rollout\.draft_tokens=-1: must be 0 or more"):
        RolloutSettings(draft_tokens=-1)


def test_distillation_needs_the_actor_itself(tmp_path):
    cfg = composed("experiment=distill-quickstart", "debug=default", "rollout=speculative", f"paths.run_dir={tmp_path}")
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"rollout\.draft_tokens=4 with distill\.enabled=true"):
        train(cfg, tmp_path)
    torch.set_rng_state(state)
