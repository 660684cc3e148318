"""Several processes: strategies, weights spread over ranks, work shared out by length, failures told to all."""

from sparrow.distributed.balance import assign, sequence_cost
from sparrow.distributed.collectives import (
    RankFailed,
    exchange_objects,
    failing_together,
    gather_objects,
    max_over_ranks,
    own_rank,
    world_size,
)
from sparrow.distributed.sharding import full_state, gathered, is_sharded, resharded, shard, whole
from sparrow.distributed.strategies import Replicated, Sharded

__all__ = [
    "RankFailed",
    "Replicated",
    "Sharded",
    "assign",
    "exchange_objects",
    "failing_together",
    "full_state",
    "gather_objects",
    "gathered",
    "is_sharded",
    "max_over_ranks",
    "own_rank",
    "resharded",
    "sequence_cost",
    "shard",
    "whole",
    "world_size",
]
