"""A run folder that holds a run is not overwritten; one that goes on, or found nothing yet, is no obstacle."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from sparrow.config import ConfigError
from sparrow.config.folders import check_unused, result_in


def config(folder: Path, **keys: str | None) -> object:
    return OmegaConf.create({"paths": {"run_dir": str(folder)}, **keys})


@pytest.mark.parametrize(
    "name", ["summary.json", "metrics.csv", "evaluation.json", "train.jsonl", "validation.jsonl", "checkpoints/a.ckpt"]
)
def test_results_are_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    assert result_in(tmp_path) is None
    assert not check_unused(config(tmp_path))
    (tmp_path / name).write_text("")
    assert result_in(tmp_path) == tmp_path / name
    told = rf"paths.run_dir={tmp_path}: holds a run already \({Path(name).name}\), which is not overwritten; allowed: "
    with pytest.raises(ConfigError, match=told + "another folder$"):
        check_unused(config(tmp_path))
    with pytest.raises(ConfigError, match=told + "another folder, or resume=auto to go on with it$"):
        check_unused(config(tmp_path, resume=None))


def test_a_run_goes_on_in_its_own_folder_only(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "metrics.csv").write_text("step\n")
    for resume in ("auto", str(own), str(own / "checkpoints" / "step_1.ckpt")):
        assert check_unused(config(own, resume=resume))
    with pytest.raises(ConfigError, match=f"paths.run_dir={own}: holds a run already"):
        check_unused(config(own, resume=str(other / "checkpoints" / "step_1.ckpt")))


def test_a_folder_that_is_named_by_the_time_is_new(tmp_path: Path) -> None:
    assert not check_unused(OmegaConf.create({"paths": {"run_dir": "${hydra:job.name}/run"}}))
    assert not check_unused(OmegaConf.create({"paths": {}}))
    assert not check_unused(config(tmp_path / "new", resume="auto"))
