"""Settings of an optimizer are refused by key before there is a model."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from sparrow.config import ConfigError
from sparrow.config.optimizer import check_optimizer

ADAMW = {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8}
SGD = {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 1e-3}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ADAMW | {"betas": 0.9}, "optimizer.betas=0.9: must be two numbers, each 0 or more and below 1; it has one"),
        (
            ADAMW | {"betas": [0.9]},
            r"optimizer.betas=\[0.9\]: must be two numbers.*; it has 1 values, and 2 are needed",
        ),
        (ADAMW | {"betas": [0.9, 0.9, 0.9]}, "it has 3 values, and 2 are needed"),
        (ADAMW | {"betas": [0.9, 1.0]}, r"optimizer.betas=\[0.9, 1.0\]: .*AdamW: Invalid beta parameter at index 1"),
        (ADAMW | {"eps": -1}, "optimizer.eps=-1: must be a finite number, 0 or more; AdamW: Invalid epsilon value: -1"),
        (ADAMW | {"weight_decay": -1}, "optimizer.weight_decay=-1: must be a finite number, 0 or more; AdamW: Invalid"),
        (ADAMW | {"weight_decay": float("inf")}, "optimizer.weight_decay=inf: .*; it is not finite"),
        (ADAMW | {"eps": -1, "weight_decay": -1}, "optimizer.eps=-1"),
        (ADAMW | {"momentum": 0.9}, "optimizer.momentum=0.9: .* unexpected keyword argument 'momentum'"),
        (SGD | {"nesterov": True}, "optimizer.nesterov=True: must be what SGD takes, by default False; SGD: Nesterov"),
        (SGD | {"nesterov": True, "momentum": -1}, "optimizer.momentum=-1: must be a finite number, 0 or more; SGD"),
    ],
)
def test_an_argument_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_optimizer(OmegaConf.create(settings))


@pytest.mark.parametrize(
    "settings",
    [
        ADAMW,
        ADAMW | {"weight_decay": 0.1, "fused": True, "foreach": False},
        ADAMW | {"fused": None, "capturable": True},
        SGD | {"nesterov": True, "momentum": 0.9},
        {"_target_": "functools.partial", "_partial_": True, "anything": -1},  # a factory is left to itself
    ],
)
def test_what_can_be_had_passes(settings: dict[str, Any]) -> None:
    check_optimizer(OmegaConf.create(settings))
