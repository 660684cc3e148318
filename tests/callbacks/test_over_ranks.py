"""A step's metrics over ranks, and advantages over ranks, with what the other rank would have sent."""

from functools import partial
from typing import Any

import pytest
import torch

import sparrow.callbacks.baseline as baseline
import sparrow.callbacks.over_ranks as module
from sparrow.algorithms import GroupedRewards, advantages
from sparrow.rewards import Outcome

OWN = {"critic/score/mean": 0.25, "response_length/max": 9.0, "response_length/min": 4.0, "timing_s/gen": 2.0}
OTHER = {"critic/score/mean": 0.75, "response_length/max": 7.0, "response_length/min": 3.0, "timing_s/gen": 5.0}


def test_one_process_keeps_its_numbers() -> None:
    assert module.over_ranks(OWN) == OWN


def test_two_ranks_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {**OWN, "perf/throughput": 100.0, "rollout_corr/weight_error_max": 0.1, "tail/alpha_p05/bin_0_64": 0.9}
    other = {**OTHER, "perf/throughput": 40.0, "rollout_corr/weight_error_max": 0.3}
    monkeypatch.setattr(module, "world_size", lambda: 2)
    monkeypatch.setattr(module, "gather_objects", lambda mine: [mine, other])
    assert module.over_ranks(own) == {
        "critic/score/mean": 0.5,
        "response_length/max": 9.0,
        "response_length/min": 3.0,
        "timing_s/gen": 5.0,
        "perf/throughput": 140.0,
        "rollout_corr/weight_error_max": 0.3,
        "tail/alpha_p05/bin_0_64": 0.9,  # only this rank had tokens in that bin
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_an_estimator_that_looks_at_the_whole_batch_sees_all_ranks(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = torch.tensor([1.0, 0.0, 4.0, 2.0, 3.0, 3.0])
    groups, lengths = torch.tensor([0, 0, 1, 1, 2, 2]), torch.arange(1, 7)
    whole = GroupedRewards(rewards, groups, lengths)
    told = [Outcome(score, "correct") for score in rewards.tolist()]
    cuts = [slice(0, 2), slice(2, 6)]
    parts = [GroupedRewards(rewards[cut], groups[cut], lengths[cut]) for cut in cuts]

    def gather(mine: Any) -> list[Any]:
        sent = [([p.rewards_B, p.group_B, p.length_B, p.baseline_B], told[cut]) for p, cut in zip(parts, cuts)]
        assert [str(value) for value in mine[0]] == [str(value) for value in sent[rank][0]]
        return sent

    monkeypatch.setattr(baseline, "world_size", lambda: 2)
    monkeypatch.setattr(baseline, "own_rank", lambda: rank)
    monkeypatch.setattr(baseline, "gather_objects", gather)
    estimator = partial(advantages.reinforce_plus_plus)
    found = baseline.advantages_of_all_ranks(estimator, parts[rank], told[cuts[rank]], "baseline")
    assert torch.equal(found, estimator(whole)[cuts[rank]])
    assert not torch.allclose(found, estimator(parts[rank]))  # each rank by itself would be another estimator
