"""Settings of the trainer are refused by key: devices that are not there, keys without effect, runs without a step."""

from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from sparrow.config import ConfigError
from sparrow.config.trainer import check_device, check_trainer, named_settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gradient_clip_val": 1.0}, r"trainer.gradient_clip_val=1.0: must be null: .*; use update.max_grad_norm"),
        ({"gradient_clip_algorithm": "value"}, r"trainer.gradient_clip_algorithm=value: must be null: .*max_grad_norm"),
        ({"accumulate_grad_batches": 4}, r"trainer.accumulate_grad_batches=4: must be 1: .*data.prompts_per_step"),
        ({"limit_train_batches": 0}, r"trainer.limit_train_batches=0: must be a whole number, 1 or more, or a share"),
        ({"limit_train_batches": 0.0}, r"trainer.limit_train_batches=0.0: must be"),
        ({"limit_train_batches": -1}, r"trainer.limit_train_batches=-1: must be"),
        ({"limit_train_batches": 1.5}, r"trainer.limit_train_batches=1.5: must be"),
        ({"limit_train_batches": False}, r"trainer.limit_train_batches=False: must be"),
        ({"max_steps": 0}, r"trainer.max_steps=0: must be a whole number, 1 or more, or -1 for no limit"),
        ({"max_epochs": 0}, r"trainer.max_epochs=0: must be a whole number, 1 or more, or -1 for no limit"),
        ({"max_epochs": 0.5}, r"trainer.max_epochs=0.5: must be"),
        ({"max_time": "00:00:00:00"}, r"trainer.max_time=00:00:00:00: must be more than no time"),
        ({"max_time": {"hours": 0}}, r"trainer.max_time=.*: must be more than no time"),
    ],
)
def test_a_key_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_trainer(OmegaConf.create(settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_clip_val": None, "accumulate_grad_batches": 1, "accelerator": "cpu"},
        {"gradient_clip_val": 0},
        {"limit_train_batches": 0.25},
        {"limit_train_batches": 3.0, "max_steps": -1, "max_epochs": None, "max_time": "00:00:10:00"},
    ],
)
def test_what_trains_passes(settings: dict[str, Any]) -> None:
    check_trainer(OmegaConf.create(settings))


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for accelerator in ("gpu", "cuda"):
        with pytest.raises(ConfigError, match=f"trainer.accelerator={accelerator}: there is no GPU here; must be cpu"):
            check_trainer(OmegaConf.create({"accelerator": accelerator}))
    with pytest.raises(ConfigError, match="device=cuda: there are 0 CUDA devices here; must be cpu"):
        check_device("device", "cuda")
    with pytest.raises(ConfigError, match="device=gpu0: must be cpu or cuda"):
        check_device("device", "gpu0")
    check_device("device", "cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device("device", "cuda:1")
    with pytest.raises(ConfigError, match="device=cuda:2: there are 2 CUDA devices here"):
        check_device("device", "cuda:2")


def test_a_message_of_lightning_gets_its_keys() -> None:
    settings = {"accelerator": "gpu", "devices": [0, 1], "enable_progress_bar": False, "strategy": {"_target_": "x.Y"}}
    assert named_settings(settings, "You requested gpu: [0, 1]\n But your machine only has: [0]") == (
        "trainer.accelerator=gpu, trainer.devices=[0, 1], trainer.strategy=x.Y: You requested gpu: [0, 1] But your "
        "machine only has: [0]"
    )
    assert named_settings(settings, "configured with `enable_progress_bar=False`") == (
        "trainer.enable_progress_bar=False: configured with `enable_progress_bar=False`; leave the callback out by "
        "~callbacks.progress"
    )
