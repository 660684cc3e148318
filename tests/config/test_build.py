"""What a constructor refuses is said of the key that the user wrote, wherever the node lies."""

import doctest
import importlib

import pytest
from omegaconf import OmegaConf

from sparrow.config import ConfigError, build

SPARROW = "sparrow.algorithms.corrections"


def test_examples() -> None:
    result = doctest.testmod(importlib.import_module("sparrow.config.build"))
    assert (result.attempted, result.failed) == (4, 0)


def test_an_argument_gets_the_key_of_its_node() -> None:
    cfg = OmegaConf.create(
        {
            "correction": {"_target_": f"{SPARROW}.TokenTIS", "floor": 3, "cap": 2},
            "chain": {"_target_": f"{SPARROW}.Chain", "rules": [{"_target_": f"{SPARROW}.TokenMask", "low": 5}]},
            "data": {"source": {"_target_": "sparrow.data.sources.packaged.RunningSum", "numbers": 1}},
            "rollout": {"_target_": "sparrow.modules.RolloutSettings", "samples": 0},
        }
    )
    for node, message in (
        (cfg.correction, f"{SPARROW}.TokenTIS: correction.floor=3, cap=2; allowed: 0 <= floor < cap"),
        (cfg.chain, f"{SPARROW}.Chain: chain.rules[0].low=5, high=2.0; allowed: 0 <= low < high"),
        (
            cfg.data.source,
            "sparrow.data.sources.packaged.RunningSum: data.source.numbers=1 is not allowed; it must be 2 or more",
        ),
        (cfg.rollout, "sparrow.modules.RolloutSettings: rollout.samples=0: must be 1 or more"),
    ):
        with pytest.raises(ConfigError) as refused:
            build(node)
        assert str(refused.value) == message


def test_a_call_with_further_arguments_is_named_too() -> None:
    cfg = OmegaConf.create({"callbacks": {"mine": {"_target_": "sparrow.callbacks.PhaseSwitch", "patience": 0}}})
    with pytest.raises(ConfigError, match=r"^callbacks.mine.patience=0: must be 1 or more$"):
        build(cfg.callbacks.mine, schedule="tiny", after_examples=1)
