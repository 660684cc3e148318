"""The gated activation: values against double precision, and rows that do not know of each other."""

import math

import pytest
import torch
import torch.nn.functional as F

from sparrow.kernels.swiglu import swiglu


@pytest.mark.parametrize(("low", "high", "limit"), [(-1.0, 100.0, 1.5e-7), (-5.0, -1.0, 5e-7), (-80.0, -5.0, 8e-6)])
def test_values_are_those_of_the_formula(low: float, high: float, limit: float) -> None:
    gate_XI = torch.linspace(low, high, 30_000).view(10, -1)
    exact_XI = gate_XI.double() / (1 + (-gate_XI.double()).exp())
    found_XI = swiglu(gate_XI.clone(), torch.ones_like(gate_XI))
    torch.testing.assert_close(found_XI.double(), exact_XI, rtol=limit, atol=1e-30)


def test_the_gate_multiplies_what_comes_up() -> None:
    gate_XI, up_XI = torch.tensor([[1.0, -1.0], [0.0, 200.0]]), torch.tensor([[3.0, 2.0], [5.0, -1.5]])
    sigmoid = 1 / (1 + math.exp(-1))
    expected_XI = torch.tensor([[3 * sigmoid, -2 * (1 - sigmoid)], [0.0, -300.0]])
    torch.testing.assert_close(swiglu(gate_XI, up_XI), expected_XI)


def test_what_is_not_finite_stays_so() -> None:
    gate_XI = torch.tensor([[math.nan, math.inf, 1.0, 1.0]])
    up_XI = torch.tensor([[1.0, 1.0, math.nan, -math.inf]])
    torch.testing.assert_close(
        swiglu(gate_XI, up_XI), torch.tensor([[math.nan, math.inf, math.nan, -math.inf]]), equal_nan=True
    )


@pytest.mark.parametrize("inner", [1, 33, 4864])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_in_any_company(inner: int, threads: int) -> None:
    torch.manual_seed(inner)
    gate_XI, up_XI = torch.randn(31, inner), torch.randn(31, inner)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together_XI = swiglu(gate_XI.clone(), up_XI)
        for rows in ([0], [15], [30], [3, 4], list(range(16)), list(reversed(range(31)))):
            assert torch.equal(swiglu(gate_XI[rows], up_XI[rows]), together_XI[rows])
    finally:
        torch.set_num_threads(before)


def test_rows_with_gaps_between_them() -> None:
    torch.manual_seed(2)
    gate_XI, up_XI = torch.randn(4, 10)[:, ::2], torch.randn(5, 4).t()
    expected_XI = F.silu(gate_XI) * up_XI
    torch.testing.assert_close(swiglu(gate_XI, up_XI), expected_XI)


def test_other_dtypes_take_the_operations_of_torch() -> None:
    gate_XI, up_XI = torch.randn(3, 8).bfloat16(), torch.randn(3, 8).bfloat16()
    expected_XI = F.silu(gate_XI) * up_XI
    assert torch.equal(swiglu(gate_XI, up_XI), expected_XI)


def test_no_rows() -> None:
    assert swiglu(torch.empty(0, 8), torch.empty(0, 8)).shape == (0, 8)
