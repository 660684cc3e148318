"""`row_linear`: against the product in fp64, and each row bit for bit as in another batch and on other threads.

It serves decode steps on the CPU; a GPU takes torch's own product.
"""

import random
from dataclasses import dataclass

import torch

from sparrow.kernels import row_linear
from tests.fuzz.caches import hold


@dataclass(frozen=True)
class Case:
    seed: int
    rows: int
    inner: int
    outputs: int
    bias: bool
    threads: int
    sliced: bool
    """Rows and weight are slices of larger matrices."""
    magnitude: float


def draw(random: random.Random) -> Case:
    return Case(
        seed=random.getrandbits(32),
        rows=random.choice([1, 2, 3, 8, 15, 16, 17, 33, 64, random.randint(1, 100)]),
        inner=random.choice([1, 7, 8, 31, 64, 65, 128, 576, random.randint(1, 700)]),
        outputs=random.choice([1, 3, 4, 5, 63, 64, 65, 192, random.randint(1, 700)]),
        bias=random.random() < 0.3,
        threads=random.choice([1, 2, 3]),
        sliced=random.random() < 0.3,
        magnitude=random.choice([1e-20, 1.0, 1.0, 1e15]),
    )


def check(case: Case) -> dict[str, float]:
    torch.manual_seed(case.seed)
    extra = 3 if case.sliced else 0
    x = torch.randn(case.rows, case.inner + extra)[:, extra:] * case.magnitude
    weight = torch.randn(case.outputs, case.inner + extra)[:, : case.inner]
    bias = torch.randn(case.outputs) * case.magnitude if case.bias else None
    before = torch.get_num_threads()
    torch.set_num_threads(case.threads)
    try:
        got = row_linear(x, weight, bias)
    finally:
        torch.set_num_threads(before)
    some = torch.randperm(case.rows)[: max(1, case.rows // 3)]
    assert torch.equal(row_linear(x[some], weight, bias), got[some]), "a row depends on its batch"
    want = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    # A sum may cancel; its error is measured against the size of its terms.
    size = x.double().abs() @ weight.double().abs().T + (0 if bias is None else bias.double().abs())
    return hold({"cpu": float(((got.double() - want).abs() / size).max())}, 1e-6)
