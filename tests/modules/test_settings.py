"""What training refuses, with the key in the message."""

import pytest

from sparrow.modules import RolloutSettings, UpdateSettings
from sparrow.modules.settings import rate_factor


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("top_p", 0.9), ("top_k", 5), ("min_p", 0.1), ("temperature", 0.0), ("samples", 0)),
        *(("temperature", float("inf")), ("max_cached_tokens", 0), ("poll_every", 0)),
    ],
)
def test_rollout_key_is_named(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"rollout\.{key}={value}"):
        RolloutSettings(**{key: value})


def test_unknown_alpha_lists_the_options() -> None:
    with pytest.raises(ValueError, match=r"rollout.alpha='top': must be exact, bounds or off"):
        RolloutSettings(alpha="top")  # type: ignore[arg-type]


def test_alpha_decides_what_is_recorded() -> None:
    assert RolloutSettings(alpha="exact").record == ("hidden",)
    assert RolloutSettings(alpha="bounds").record == ("topk",)
    assert RolloutSettings(alpha="off").record == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("minibatches", 0),
        ("epochs", 0),
        ("micro_batch_tokens", 0),
        ("max_grad_norm", 0.0),
        ("entropy_bonus", float("inf")),
        ("warmup_steps", -1),
        ("cooldown_steps", -1),
    ],
)
def test_update_key_is_named(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"update\.{key}={value}"):
        UpdateSettings(**{key: value})


def test_single_step_is_one_minibatch_and_one_epoch() -> None:
    assert UpdateSettings().single
    assert not UpdateSettings(minibatches=2).single
    assert not UpdateSettings(epochs=2).single


def test_learning_rate_rises_and_falls() -> None:
    # 10 steps, 2 up, 3 down: the last ones take 3/4, 2/4 and 1/4.
    factors = [rate_factor(step, 2, 3, 10) for step in range(10)]
    assert factors == [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert [rate_factor(step, 0, 3, -1) for step in (0, 50)] == [1, 1]
