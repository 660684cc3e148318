"""What the summary works out from the rows of a run."""

import pytest

from sparrow.callbacks.summary import distill_cost


def test_the_cost_of_an_adapter_counts_steps_without_it_and_old_logprobs() -> None:
    rows = [
        {"timing_s/dense_pass": 3.0, "timing_s/old_logprobs": 1.0, "timing_s/sparse_pass": 5.0},
        {"timing_s/dense_pass": 5.0, "timing_s/old_logprobs": 1.0},
    ]
    assert distill_cost(rows) == {"distill_cost_ratio_all_steps": pytest.approx(0.5)}
    assert distill_cost([{"timing_s/dense_pass": 3.0}]) == {}
    assert distill_cost([]) == {}
