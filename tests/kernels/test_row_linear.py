"""The product of few rows: values against double precision, and rows that do not know of each other."""

import pytest
import torch
import torch.nn.functional as F

from sparrow.kernels import row_linear


@pytest.mark.parametrize(("outputs", "inner"), [(1, 1), (3, 5), (4, 32), (63, 33), (64, 128), (65, 100), (577, 576)])
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 16, 19])
def test_values_are_those_of_the_product(outputs: int, inner: int, rows: int) -> None:
    torch.manual_seed(outputs + rows)
    x_XI, weight_OI, bias_O = torch.randn(rows, inner), torch.randn(outputs, inner), torch.randn(outputs)
    exact_XO = F.linear(x_XI.double(), weight_OI.double(), bias_O.double())
    limit = 2e-7 * (inner**0.5 + 1) * float(exact_XO.abs().max() + 1)
    torch.testing.assert_close(row_linear(x_XI, weight_OI, bias_O).double(), exact_XO, atol=limit, rtol=0)
    without_XO = row_linear(x_XI, weight_OI).double()
    torch.testing.assert_close(without_XO, exact_XO - bias_O.double(), atol=limit, rtol=0)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_bits_in_any_company(threads: int) -> None:
    torch.manual_seed(1)
    weight_OI, x_XI = torch.randn(201, 77), torch.randn(16, 77)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together_XO = row_linear(x_XI, weight_OI)
        for rows in ([0], [15], [3, 4], [4, 3, 9], list(range(7)), list(reversed(range(16)))):
            assert torch.equal(row_linear(x_XI[rows], weight_OI), together_XO[rows])
    finally:
        torch.set_num_threads(before)


def test_rows_and_weights_with_gaps_between_them() -> None:
    torch.manual_seed(2)
    x_XI, weight_OI = torch.randn(4, 10)[:, ::2], torch.randn(5, 6).t()[:, :5]
    torch.testing.assert_close(row_linear(x_XI, weight_OI), x_XI @ weight_OI.t())


def test_other_dtypes_take_the_product_of_torch() -> None:
    x_XI, weight_OI = torch.randn(3, 8).bfloat16(), torch.randn(5, 8).bfloat16()
    assert torch.equal(row_linear(x_XI, weight_OI), F.linear(x_XI, weight_OI))


def test_no_rows() -> None:
    assert row_linear(torch.empty(0, 8), torch.randn(5, 8)).shape == (0, 5)


def test_inner_sizes_must_agree() -> None:
    with pytest.raises(ValueError, match="rows of 7 numbers, weight_OI of 8: must be equal"):
        row_linear(torch.zeros(2, 7), torch.zeros(3, 8))
