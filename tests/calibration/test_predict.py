"""Shapes of loaded models, a speed-up by hand, and the Pareto front."""

import pytest
from transformers import AutoModelForCausalLM

from sparrow.calibration.predict import pareto_front, shape_of, speedup
from sparrow.models.tiny import tiny_path
from sparrow.schedule import BudgetSchedule
from sparrow.schedule.cost import ModelShape


def test_a_tied_embedding_counts_once():
    model = AutoModelForCausalLM.from_pretrained(tiny_path())
    shape = shape_of(model)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    config = model.config
    assert (shape.layers, shape.heads, shape.kv_heads) == (
        config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads,
    )  # fmt: skip
    assert shape.head_dim == config.head_dim


def test_speedup_by_hand():
    """One step at t = 8 cached tokens, pages of 2, 1 + 1 + 1 pages read of 4, one layer, one head of size 1, no scoring
    bound: dense moves P + 2 D 8 elements, sparse P + 2 D 6 + 4 landmarks."""
    shape = ModelShape(parameters=10, layers=1, heads=1, kv_heads=1, head_dim=1)
    schedule = BudgetSchedule([1], page_size=2, first=1, last=1, dense_layers=())
    gain = speedup(shape, schedule, samples=1, prompt_len=7, response_len=1, intensity=0.0)
    # Operations: 2 x 10 + 2 x (2 x 8) dense; 2 x 10 + 2 x (2 x 6) + 2 x 4 sparse.
    assert gain == pytest.approx((20 + 32) / (20 + 24 + 8))


def test_pareto_front():
    points = [(1.0, 0.9), (2.0, 0.8), (1.5, 0.95), (3.0, 0.1), (2.0, 0.8), (0.5, 0.95)]
    assert pareto_front(points) == [2, 1, 3]
    assert pareto_front([]) == []
