"""Rewards: verifiers that judge completions, routed by data source, hung or crashing ones in processes of their own."""

from sparrow.rewards.base import FunctionReward, Reward, RewardRow, as_reward, reward_row
from sparrow.rewards.check import RouteCheck, check_routes
from sparrow.rewards.outcome import LABELS, Label, Outcome
from sparrow.rewards.pool import RewardPool
from sparrow.rewards.registry import register_reward, registered, route
from sparrow.rewards.score import Sample, Scorer, score, shutdown

__all__ = [
    "LABELS",
    "FunctionReward",
    "Label",
    "Outcome",
    "Reward",
    "RewardPool",
    "RewardRow",
    "RouteCheck",
    "Sample",
    "Scorer",
    "as_reward",
    "check_routes",
    "register_reward",
    "registered",
    "reward_row",
    "route",
    "score",
    "shutdown",
]
