"""What a rollout costs under a schedule: floating point operations and bytes, added up through the GPU's intensity.

The unit is the study's (arXiv 2606.08446): ``total = compute + intensity * memory``, in floating point operations,
where intensity is peak operations per second over memory bandwidth (operations per byte). Letters in this module are
the study's and differ from :mod:`sparrow.shapes`: P parameters, N samples, D elements of keys and values of one token
over all layers and key/value heads (2 x layers x kv_heads x head_dim), r query heads per key/value head, t cached
tokens of a step, B tokens a step reads, reserved pages included. A rollout of L_out tokens takes L_out steps with
t = L_in + 1 .. L_in + L_out, for each of N samples; everything is stored in 2 bytes.

``convention="bytes"`` counts what a step computes and moves, and is the one to compare with measured times::

    compute = sum over t of  N (2 P + 2 r D_dense t + 2 r D_sparse B(t) + D_sparse ceil(t / page) [sparse at t])
    memory  = sum over t of  2 P + N (2 D_dense t + 2 D_sparse B(t) + D_sparse ceil(t / page) [sparse at t])

D_dense and D_sparse split D by the schedule's dense layers. B(t) is never more than the cache; where it is the whole
cache, nothing is scored. The last summand is scoring: a landmark is one key (D / 2 elements) per page, met by the
group's mean query, hence no r. Weights are read once per step for the whole batch; each sequence reads its own cache.

``convention="paper"`` reproduces the study's figures as printed: prompt read once for the batch, weights never read,
no dense layers, B as scheduled even where the cache is shorter, prompt scored without the division by the page::

    dense    compute = 2 P N L_out + r (2 L_in + L_out) L_out N D      memory = 2 L_in L_out D + N L_out^2 D
    sparse   compute = 2 P N L_out + 2 r N D sum B(t) + 2 N L_in D L_out + r N D L_out^2 / (2 page)
             memory  = 2 N D sum B(t) + 2 L_in D L_out + N D L_out^2 / (2 page)
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sparrow.schedule.budget import ALL_PAGES, BudgetSchedule

Convention = Literal["bytes", "paper"]

BYTES = 2
"""Bytes of a stored element: bf16."""

GPU_INTENSITY: dict[str, float] = {
    "a100": 312e12 / 2.039e12,
    "h100": 989e12 / 3.35e12,
    "h200": 989e12 / 4.8e12,
    "b200": 2250e12 / 8.0e12,
}
"""Dense bf16 operations per byte of the SXM boards (80 GB A100), from the vendor's data sheets."""


@dataclass(frozen=True)
class ModelShape:
    """The figures of a model that the cost depends on.

    Args:
        parameters: weights that a decode step multiplies with.
        layers: decoder layers.
        heads: query heads.
        kv_heads: key/value heads; must divide ``heads``.
        head_dim: size of a head.

    Raises:
        ValueError: a figure is not positive, or ``kv_heads`` does not divide ``heads``.
    """

    parameters: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for key in ("parameters", "layers", "heads", "kv_heads", "head_dim"):
            if not getattr(self, key) > 0:
                raise ValueError(f"{key}={getattr(self, key)!r}: must be above 0")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads

    @property
    def layer_elements(self) -> int:
        """Elements of the keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim


MODEL_SHAPES: dict[str, ModelShape] = {
    "qwen3-0.6b": ModelShape(596_049_920, layers=28, heads=16, kv_heads=8, head_dim=128),
    "qwen3-1.7b": ModelShape(1_720_574_976, layers=28, heads=16, kv_heads=8, head_dim=128),
    "qwen3-4b": ModelShape(4_022_468_096, layers=36, heads=32, kv_heads=8, head_dim=128),
    "qwen3-8b": ModelShape(8_190_735_360, layers=36, heads=32, kv_heads=8, head_dim=128),
    "qwen3-14b": ModelShape(14_768_307_200, layers=40, heads=40, kv_heads=8, head_dim=128),
    "qwen3-32b": ModelShape(32_762_123_264, layers=64, heads=64, kv_heads=8, head_dim=128),
}
"""The published models, shared weights counted once. From 8B on, the input embedding (5 to 2 % of the total), which a
step only looks up, is included, as model cards do."""


@dataclass(frozen=True)
class Cost:
    """Cost of a rollout.

    Args:
        compute: floating point operations.
        memory: bytes moved.
        total: ``compute + intensity * memory``.
    """

    compute: float
    memory: float
    total: float


@dataclass(frozen=True)
class _Steps:
    """Sums over the decode steps of one sample: exact integers, so that no order of summation shows."""

    cached: int
    read: int
    scored_pages: int


def rollout_cost(
    shape: ModelShape,
    *,
    samples: int,
    prompt_len: int,
    response_len: int,
    schedule: BudgetSchedule | None,
    intensity: float,
    convention: Convention = "bytes",
) -> Cost:
    """Cost of sampling responses of equal length to one prompt; the prefill is not counted.

    Args:
        shape: the model.
        samples: sequences decoded together.
        prompt_len: tokens of the prompt.
        response_len: tokens of each response.
        schedule: page budgets; None is dense.
        intensity: operations per byte, see :data:`GPU_INTENSITY`.
        convention: ``bytes`` or ``paper``, see the module's docstring.

    Raises:
        ValueError: a number is out of range or the convention is unknown.
    """
    for key, value, least in (
        ("samples", samples, 1),
        ("prompt_len", prompt_len, 0),
        ("response_len", response_len, 1),
    ):
        if value < least:
            raise ValueError(f"{key}={value!r}: must be {least} or more")
    if not intensity >= 0:
        raise ValueError(f"intensity={intensity!r}: must be 0 or more operations per byte")
    schedule = BudgetSchedule.dense() if schedule is None else schedule
    if convention == "bytes":
        compute, memory = _bytes(shape, samples, prompt_len, response_len, schedule)
    elif convention == "paper":
        compute, memory = _paper(shape, samples, prompt_len, response_len, schedule)
    else:
        raise ValueError(f"convention={convention!r}: must be 'bytes' or 'paper'")
    return Cost(compute, memory, compute + intensity * memory)


def attention_bound(cached_tokens: int, schedule: BudgetSchedule) -> float:
    """Most that sparse attention can gain in one decode step of one sparse layer, by bytes moved.

    Dense reads keys and values of T tokens; sparse reads one landmark per page and S pages of size p, so the bound is
    2T / (T/p + 2pS). Where the budget covers the whole cache it is 1.

    Args:
        cached_tokens: T, the tokens in the cache.
        schedule: gives p and S, reserved pages included.
    """
    total = schedule.total_pages(cached_tokens)
    if total == schedule.num_pages(cached_tokens):
        return 1.0
    page = schedule.page_size
    return 2 * cached_tokens / (cached_tokens / page + 2 * page * total)


def _bytes(
    shape: ModelShape, samples: int, prompt: int, response: int, schedule: BudgetSchedule
) -> tuple[float, float]:
    dense_layers = sum(layer < shape.layers for layer in schedule.dense_layers)
    dense_elements = dense_layers * shape.layer_elements
    sparse_elements = (shape.layers - dense_layers) * shape.layer_elements
    steps = _sum_steps(prompt, response, schedule)
    elements_read = dense_elements * steps.cached + sparse_elements * steps.read
    landmark_elements = sparse_elements // 2 * steps.scored_pages
    compute = samples * (2 * shape.parameters * response + 2 * shape.group * elements_read + 2 * landmark_elements)
    memory = BYTES * (shape.parameters * response + samples * (elements_read + landmark_elements))
    return float(compute), float(memory)


def _paper(
    shape: ModelShape, samples: int, prompt: int, response: int, schedule: BudgetSchedule
) -> tuple[float, float]:
    elements = shape.layers * shape.layer_elements
    weights = 2 * shape.parameters * samples * response
    if schedule.is_dense:
        attention = shape.group * (2 * prompt + response) * response * samples * elements
        return float(weights + attention), float(2 * prompt * response * elements + samples * response**2 * elements)
    budget = _scheduled_tokens(prompt, response, schedule)
    score_response = samples * elements * response**2 / (2 * schedule.page_size)
    core = 2 * samples * elements * budget
    score_prompt = 2 * prompt * elements * response
    compute = weights + shape.group * core + samples * score_prompt + shape.group * score_response
    return compute, core + score_prompt + score_response


def _lengths(prompt: int, response: int, schedule: BudgetSchedule) -> tuple[npt.NDArray[np.int64], ...]:
    """Cached tokens, pages and scheduled pages (reserved ones included) of each decode step."""
    cached = np.arange(prompt + 1, prompt + response + 1, dtype=np.int64)
    pages = -(-cached // schedule.page_size)
    bins = np.minimum(pages * schedule.page_size // schedule.bin_tokens, schedule.num_bins - 1)
    return cached, pages, np.asarray(schedule.table, dtype=np.int64)[bins] + schedule.reserved


def _sum_steps(prompt: int, response: int, schedule: BudgetSchedule) -> _Steps:
    cached, pages, budget = _lengths(prompt, response, schedule)
    left_out = np.maximum(pages - budget, 0)  # never the last page, so these are all full
    read = cached - left_out * schedule.page_size
    return _Steps(int(cached.sum()), int(read.sum()), int(pages[left_out > 0].sum()))


def _scheduled_tokens(prompt: int, response: int, schedule: BudgetSchedule) -> int:
    """Sum of B(t) as printed, in tokens; a bin that reads all pages reads the cache."""
    cached, _, budget = _lengths(prompt, response, schedule)
    return int(np.where(budget >= ALL_PAGES, cached, budget * schedule.page_size).sum())
