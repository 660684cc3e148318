"""Sampling from the policy with sparse attention, over the very weights that are trained."""

from sparrow.rollout.completion import Completion, RolloutStats
from sparrow.rollout.engine import RolloutEngine
from sparrow.rollout.replay import lay_out_page_sets, replay_page_sets

__all__ = ["Completion", "RolloutEngine", "RolloutStats", "lay_out_page_sets", "replay_page_sets"]
