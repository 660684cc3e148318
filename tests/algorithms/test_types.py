"""The records refuse what does not fit, and means add up over micro-batches."""

import math
from dataclasses import FrozenInstanceError

import pytest
import torch

from sparrow.algorithms import GroupedRewards, Mean, PolicyInputs, add_metrics


def test_mean_adds_up_over_micro_batches_of_different_size():
    first = Mean.of(torch.tensor([1.0, 2.0, math.nan]), torch.tensor([True, True, False]))
    second = Mean.of(torch.tensor([6.0]), torch.tensor([True]))
    assert first.value == 1.5
    assert add_metrics([{"a": first}, {"a": second, "b": second}])["a"].value == 3.0
    assert add_metrics([{"a": first}, {"a": second, "b": second}])["b"].value == 6.0


def test_mean_of_nothing_is_nan():
    assert math.isnan(Mean.of(torch.ones(2), torch.zeros(2, dtype=torch.bool)).value)


def test_rewards_name_the_sample_that_is_not_finite():
    with pytest.raises(ValueError, match=r"sample 1 is nan"):
        GroupedRewards(torch.tensor([0.0, math.nan]), torch.tensor([0, 0]))


def test_rewards_refuse_fields_of_another_length():
    with pytest.raises(ValueError, match=r"group_B has shape \(3,\), rewards_B \(2,\)"):
        GroupedRewards(torch.zeros(2), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"mask_BT": torch.ones(2, 3)}, TypeError, "mask_BT has dtype torch.float32"),
        ({"mask_BT": torch.ones(6, dtype=torch.bool)}, ValueError, r"mask_BT has shape \(6,\)"),
        ({"alpha_BT": torch.ones(2, 4)}, ValueError, r"alpha_BT has shape \(2, 4\); mask_BT asks for \(2, 3\)"),
        ({"group_B": torch.ones(3)}, ValueError, r"group_B has shape \(3,\); mask_BT asks for \(2,\)"),
    ],
    ids=["float-mask", "flat-mask", "wide-alpha", "long-group"],
)
def test_inputs_refuse_wrong_shapes(change, error, message):
    fields = dict.fromkeys(
        ("dense_logprobs_BT", "old_logprobs_BT", "sparse_logprobs_BT", "advantages_BT"), torch.zeros(2, 3)
    )
    with pytest.raises(error, match=message):
        PolicyInputs(**(fields | {"mask_BT": torch.ones(2, 3, dtype=torch.bool)} | change))


def test_inputs_are_frozen_and_name_what_is_missing(make_inputs):
    inputs = make_inputs()
    with pytest.raises(FrozenInstanceError):
        inputs.alpha_BT = None
    with pytest.raises(ValueError, match=r"thing needs PolicyInputs\.entropy_BT"):
        inputs.need("entropy_BT", "thing")


def test_rows_takes_every_field_along(make_inputs):
    part = make_inputs().rows(slice(2, 4))
    assert part.mask_BT.sum(-1).tolist() == [5, 1]
    assert part.group_B.tolist() == [1, 1]
    assert part.entropy_BT is None
