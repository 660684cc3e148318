"""Clipping by the total norm."""

import math

import pytest
import torch
from torch.nn import Parameter

from sparrow.modules.gradients import clip_gradients, global_sum


def parameters(*gradients: list[float] | None) -> list[Parameter]:
    made = []
    for gradient in gradients:
        parameter = Parameter(torch.zeros(2))
        parameter.grad = None if gradient is None else torch.tensor(gradient)
        made.append(parameter)
    return made


def test_norm_over_all_parameters_scales_each() -> None:
    # |(3, 0, 0, 4)| = 5, so a limit of 1 divides by 5; a parameter without gradient does not count.
    params = parameters([3.0, 0.0], [0.0, 4.0], None)
    assert clip_gradients(params, 1.0) == pytest.approx(5.0)
    torch.testing.assert_close(params[0].grad, torch.tensor([0.6, 0.0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(params[1].grad, torch.tensor([0.0, 0.8]), atol=1e-5, rtol=0)


def test_a_norm_below_the_limit_changes_nothing() -> None:
    params = parameters([0.3, 0.4])
    assert clip_gradients(params, 1.0) == pytest.approx(0.5)
    assert params[0].grad is not None
    assert params[0].grad.tolist() == pytest.approx([0.3, 0.4])


def test_a_non_finite_norm_leaves_the_gradients() -> None:
    params = parameters([math.nan, 1.0])
    assert math.isnan(clip_gradients(params, 1.0))
    assert params[0].grad is not None
    assert params[0].grad[1].item() == 1.0


def test_global_sum_of_one_process_is_the_value() -> None:
    assert global_sum(3.5, torch.device("cpu")) == 3.5
