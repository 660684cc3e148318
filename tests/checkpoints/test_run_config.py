"""Which changes of the configuration a resumed run takes, names or refuses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from sparrow.checkpoints import RunConfig, changed_keys

CONFIG = {"seed": 0, "steps": 10, "model": {"name": "tiny"}, "optimizer": {"lr": 0.1}, "paths": {"run_dir": "a"}}


def test_changed_keys_are_dotted_and_sorted() -> None:
    now = {**CONFIG, "steps": 20, "optimizer": {"lr": 0.2, "eps": 1e-8}, "paths": {"run_dir": "b"}}
    assert changed_keys(CONFIG, now) == [
        ("optimizer.eps", "not there", 1e-8),
        ("optimizer.lr", 0.1, 0.2),
        ("steps", 10, 20),
    ]
    assert changed_keys({"a": {}}, {"a": {"b": 1}}) == [("a", {}, "not there"), ("a.b", "not there", 1)]


def test_the_file_is_written_when_training_starts_on_the_first_rank(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("seed: 7\n")
    module: Any = None
    for first, expected in ((False, {"seed": 7}), (True, CONFIG)):
        trainer: Any = SimpleNamespace(is_global_zero=first)
        RunConfig(CONFIG, path).on_train_start(trainer, module)
        assert OmegaConf.to_container(OmegaConf.load(path)) == expected


def test_an_equal_configuration_says_nothing(recwarn: pytest.WarningsRecorder) -> None:
    RunConfig({**CONFIG, "paths": {"run_dir": "elsewhere"}}).load_state_dict(RunConfig(CONFIG).state_dict())
    assert not recwarn.list


def test_a_changed_value_is_named() -> None:
    with pytest.warns(UserWarning, match=r"optimizer.lr=0.2: it was 0.1 before this checkpoint"):
        RunConfig({**CONFIG, "optimizer": {"lr": 0.2}}).load_state_dict({"config": CONFIG})


@pytest.mark.parametrize("change", [{"seed": 1}, {"model": {"name": "other"}}])
def test_what_must_stay_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="the checkpoint was made with"):
        RunConfig({**CONFIG, **change}).load_state_dict({"config": CONFIG})
