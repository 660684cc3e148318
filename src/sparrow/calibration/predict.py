"""What the cost model says of a schedule on a model at hand, and the front of tail against cost."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from sparrow.models.adapter import base_model
from sparrow.schedule import BudgetSchedule
from sparrow.schedule.cost import ModelShape, rollout_cost


def shape_of(model: nn.Module) -> ModelShape:
    """The figures of a loaded model that its cost depends on; an input embedding of its own is only looked up."""
    inner: Any = base_model(model)
    config = inner.config
    held = {id(parameter): parameter.numel() for parameter in inner.parameters()}
    embedding, head = inner.get_input_embeddings().weight, inner.get_output_embeddings().weight
    looked_up = 0 if embedding is head else embedding.numel()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelShape(
        sum(held.values()) - looked_up,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=size,
    )


def speedup(
    shape: ModelShape, schedule: BudgetSchedule, *, samples: int, prompt_len: int, response_len: int, intensity: float
) -> float:
    """Cost of the dense rollout over that of the scheduled one, by what a step computes and moves.

    Args:
        shape: the model.
        schedule: page budgets.
        samples: sequences decoded together.
        prompt_len: tokens of the prompt.
        response_len: tokens of each response.
        intensity: operations per byte of the machine.
    """
    dense, sparse = (
        rollout_cost(
            shape,
            samples=samples,
            prompt_len=prompt_len,
            response_len=response_len,
            schedule=choice,
            intensity=intensity,
        ).total
        for choice in (None, schedule)
    )
    return dense / sparse


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other one beats in both numbers, by ascending first number.

    Args:
        points: (gain, tail), more of either is better; of equal points the first counts.

    >>> pareto_front([(2.0, 0.8), (1.0, 0.9), (1.5, 0.7)])
    [1, 0]
    """
    front: list[int] = []
    order = sorted(range(len(points)), key=lambda place: (-points[place][0], -points[place][1], place))
    best = float("-inf")
    for place in order:
        if points[place][1] > best:
            front.append(place)
            best = points[place][1]
    return front[::-1]
