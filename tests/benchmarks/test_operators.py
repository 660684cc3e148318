"""What is timed side by side computes the same."""

import pytest
import torch

from sparrow.benchmarks.decode_operators import DecodeInputs, decode_operators
from sparrow.benchmarks.traffic import DecodeShape, TrainingShape
from sparrow.benchmarks.training_operators import (
    StatisticsInputs,
    TrainingInputs,
    attention_operators,
    statistics_operators,
)
from sparrow.kernels import paged_attention

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def inputs() -> DecodeInputs:
    shape = DecodeShape(batch=3, heads=6, kv_heads=2, head_dim=8, page_size=4, tokens=42, element=4)
    return DecodeInputs(shape, CPU, torch.float32, seed=0)


def test_decode_operators_equal_their_references(inputs: DecodeInputs) -> None:
    for operator in decode_operators(inputs, [5, 20]):
        assert operator.reference is not None
        ours, theirs = operator.run(), operator.reference()
        if ours is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5, msg=operator.name)


def test_dense_attention_and_a_full_budget_equal_sdpa(inputs: DecodeInputs) -> None:
    expected = inputs.sdpa().flatten(1, 2)
    torch.testing.assert_close(inputs.attend(paged_attention, None), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(inputs.step(11), expected, atol=1e-5, rtol=1e-5)
    assert (inputs.step(5) - expected).abs().max() > 0.01


def test_appending_writes_a_full_page_and_its_landmark(inputs: DecodeInputs) -> None:
    page = int(inputs.page_table_BN[1, 9])
    inputs.landmarks[page] = 7.0
    next(op for op in decode_operators(inputs, [5]) if op.name == "page_landmarks/append").run()
    torch.testing.assert_close(inputs.landmarks[page, :, 0], inputs.key_pages[page].mean(dim=1))


def test_training_operators_equal_their_references() -> None:
    shape = TrainingShape(batch=2, heads=4, kv_heads=2, head_dim=8, page_size=4, tokens=45, element=4)
    inputs = TrainingInputs(shape, 4, CPU, torch.float32, seed=0)
    for operator in attention_operators(inputs):
        assert operator.reference is not None
        for _ in range(2):  # a backward pass must run more than once
            torch.testing.assert_close(operator.run(), operator.reference(), atol=1e-4, rtol=1e-4, msg=operator.name)


def test_training_rows_read_the_pages_they_may() -> None:
    shape = TrainingShape(batch=1, heads=2, kv_heads=1, head_dim=8, page_size=4, tokens=40, element=4)
    inputs = TrainingInputs(shape, 4, CPU, torch.float32, seed=0)
    counts = [bin(int(word) & 0xFFFFFFFF).count("1") for word in inputs.chosen_BKTM.flatten()]
    assert counts == [min(4, -(-t // 4)) for t in range(1, 41)]


def test_statistics_operators_equal_their_references() -> None:
    inputs = StatisticsInputs(tokens=7, hidden=6, vocab=50, device=CPU, dtype=torch.float32, seed=0)
    for operator in statistics_operators(inputs):
        assert operator.reference is not None
        for _ in range(2):
            torch.testing.assert_close(operator.run(), operator.reference(), atol=1e-5, rtol=1e-5, msg=operator.name)
