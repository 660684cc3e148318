"""A configuration that cannot run is refused before anything is built, with the nearest right key."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from sparrow.config import ConfigError, build_schedule, check_config, check_overrides
from sparrow.config.command import split_arguments
from sparrow.config_dir import config_dir
from sparrow.schedule import BudgetSchedule


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return compose("train", overrides=[*overrides, "paths.run_dir=out"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.smaples=3", "unknown key 'rollout.smaples': did you mean 'samples'?"),
        ("shedule=dense", "unknown key 'shedule': did you mean 'schedule'?"),
        ("+stepps=3", "unknown key 'stepps': did you mean 'steps'?"),
        ("schedule=densee", "schedule=densee: no such option; did you mean 'dense'?"),
        ("model=tinny", "model=tinny: no such option; did you mean 'tiny'?"),
        ("trainer.max_step=3", "unknown key 'trainer.max_step': did you mean 'max_steps'?"),
        ("stepps", "'stepps' cannot be read: must be key=value, group=option or ~key"),
        ("schedule.pages=[1", "'schedule.pages=[1' cannot be read"),
    ],
)
def test_unknown_override_names_the_nearest(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_overrides(config_dir(), "train", [override])
    assert message in str(error.value)


def test_good_overrides_pass() -> None:
    check_overrides(config_dir(), "train", ["experiment=quickstart", "algorithm=grpo", "correction=none", "seed=3"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=abc", "optimizer.lr='abc': must be"),
        ("rollout.samples=2.5", "rollout.samples=2.5: must be int, not float"),
        ("rollout.samples=true", "rollout.samples=True: must be int, not bool"),
        (
            "+rollout.sample=2",
            "unknown key 'rollout.sample' for sparrow.modules.RolloutSettings: did you mean 'samples'?",
        ),
        ("loss._target_=sparrow.algorithms.losses.nothing", "loss._target_='sparrow.algorithms.losses.nothing' cannot"),
        ("seed=???", "mandatory value missing: seed"),
        ("seed=abc", "seed='abc': must be int, not str"),
        ("name=3", "name=3: must be str, not int"),
        ("rollout.samples=null", "rollout.samples=null: must be int, not null"),
        ("loss.clip_high=nan", "loss.clip_high=nan: must be a finite number"),
        ("optimizer.lr=nan", "optimizer.lr=nan: must be a finite number"),
    ],
)
def test_wrong_values_are_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_config(composed(override))
    assert message in str(error.value)


def test_command_line_wins_over_algorithm() -> None:
    cfg = composed("algorithm=grpo", "correction=none")
    assert cfg.correction._target_ == "sparrow.algorithms.corrections.NoCorrection"


def test_default_schedule_is_the_models() -> None:
    schedule = build_schedule(composed("model=qwen3-1.7b").schedule)
    assert schedule.table[:4] == (29, 61, 93, 93)
    assert (schedule.tau, schedule.estimator) == (0.86, "top20")


def test_schedule_fields_can_be_overridden() -> None:
    assert build_schedule(composed("schedule=constant", "schedule.pages=29").schedule).table == (29,)
    assert build_schedule(composed("schedule=dense").schedule).is_dense


def test_model_without_default_lists_the_options() -> None:
    with pytest.raises(ConfigError, match=r"names no default schedule.*qwen3-1.7b-0.86"):
        build_schedule(composed("model=smollm2-135m").schedule)


def test_named_schedule_takes_overrides() -> None:
    node = OmegaConf.create({"name": "qwen3-1.7b-0.86", "dense_layers": [0]})
    assert build_schedule(node) == BudgetSchedule(
        pages=build_schedule(OmegaConf.create({"name": "qwen3-1.7b-0.86"})).table,
        dense_layers=[0],
        tau=0.86,
        estimator="top20",
        provenance="published, arXiv 2606.08446, model qwen3-1.7b; changed in dense_layers",
    )


def test_a_folder_of_the_user_joins_the_groups(tmp_path: Path) -> None:
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss" / "mine.yaml").write_text("_target_: sparrow.algorithms.losses.reinforce\n_partial_: true\n")
    check_overrides(config_dir(), "train", ["loss=mine", "seed=1"], tmp_path)
    with pytest.raises(ConfigError, match=r"loss=mein: no such option; did you mean 'mine'\?"):
        check_overrides(config_dir(), "train", ["loss=mein"], tmp_path)
    with pytest.raises(ConfigError, match=r"--config-dir=/nowhere: there is no such folder"):
        check_overrides(config_dir(), "train", [], Path("/nowhere"))


def test_options_of_the_command_line_are_no_overrides() -> None:
    overrides = ["seed=1", "loss=mine"]
    assert split_arguments(["--config-dir=conf", *overrides]) == (overrides, Path("conf"))
    assert split_arguments(["seed=1", "--config-dir", "conf", "-m", "loss=mine"]) == (overrides, Path("conf"))
    assert split_arguments(["--cfg=job", *overrides]) == (overrides, None)


def test_a_wrong_value_is_named_by_the_key_that_was_written() -> None:
    with pytest.raises(ConfigError) as error:
        check_config(composed("seed=abc"))
    assert "data.seed" not in str(error.value)
