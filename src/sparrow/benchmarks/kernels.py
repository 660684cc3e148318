"""``suite=kernels``: every operator against its plain reference, torch's attention and the speed of a copy, in one run.

Names of results: ``a_over_b`` is how many times faster a is than b.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from sparrow.benchmarks.decode_operators import FIRST, LAST, DecodeInputs, layered_operators
from sparrow.benchmarks.operator import COPY, Operator, candidates, row
from sparrow.benchmarks.results import write_results
from sparrow.benchmarks.timing import Clock, interleave
from sparrow.benchmarks.traffic import DecodeShape, TrainingShape
from sparrow.benchmarks.training_operators import (
    StatisticsInputs,
    TrainingInputs,
    attention_operators,
    statistics_operators,
)
from sparrow.schedule import BudgetSchedule
from sparrow.schedule.cost import attention_bound

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class KernelSuite:
    """Shapes and settings of the suite.

    Attributes:
        device: ``cpu`` or ``cuda``.
        dtype: ``float32`` or ``bfloat16``.
        batch: sequences of a decode step.
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: head size.
        page_size: tokens per page.
        tokens: cached tokens of a decode step; one table each.
        pages: page budgets, reserved pages included. The first one, at the longest of ``tokens``, is the suite's
            headline.
        layers: caches that a decode operator goes through in turn, as the layers of a model; its time is that of one.
        train_batch: sequences of the training pass.
        train_tokens: tokens of each of them.
        statistics_tokens: tokens scored at a time.
        hidden: hidden size.
        vocab: vocabulary.
        repeats: calls that count.
        budget_s: time for the calls of one operator; a slow one is called fewer times, at least three.
        warmup: calls before.
        flush_mib: buffer read before each call; must exceed the last cache.
        copy_mib: size of the copy whose rate is the yardstick.
        seed: of all random numbers.

    Raises:
        ValueError: a value is out of range; the message names the key.
    """

    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    tokens: list[int]
    pages: list[int]
    train_batch: int
    train_tokens: int
    statistics_tokens: int
    hidden: int
    vocab: int
    repeats: int = 20
    budget_s: float = 10.0
    layers: int = 1
    warmup: int = 2
    flush_mib: int = 128
    copy_mib: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"suite.device={self.device!r}: must be cpu or cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("suite.device='cuda': there is no CUDA device; must be cpu here")
        if self.dtype not in DTYPES:
            raise ValueError(f"suite.dtype={self.dtype!r}: must be one of {', '.join(DTYPES)}")
        for key in (
            "repeats",
            "warmup",
            "layers",
            "copy_mib",
            "batch",
            "train_batch",
            "train_tokens",
            "statistics_tokens",
        ):
            if getattr(self, key) < 1:
                raise ValueError(f"suite.{key}={getattr(self, key)}: must be 1 or more")
        for key, least in (("tokens", 1), ("pages", FIRST + LAST)):
            values = getattr(self, key)
            if not values or min(values) < least:
                raise ValueError(f"suite.{key}={values}: must be a list of whole numbers from {least}")

    def run(self, run_dir: Path) -> None:
        """Measure, print a table per length, write ``kernels.json`` and ``summary.json``."""
        tables = {f"decode, {tokens} tokens": self._measure(self._decode(tokens)) for tokens in self.tokens}
        tables["training"] = self._measure(self._training())
        for title, rows in tables.items():
            show(f"{title} ({self.device}, {self.dtype}, medians of up to {self.repeats} calls)", rows)
        write_results(run_dir, "kernels", self.summary(tables), {"settings": asdict(self), "tables": tables})

    def summary(self, tables: dict[str, Rows]) -> dict[str, float | None]:
        """The ratios that matter, flat; those of the headline shape without a suffix."""
        found: dict[str, float | None] = {}
        for tokens in self.tokens:
            by_name = {entry["operator"]: entry for entry in tables[f"decode, {tokens} tokens"]}
            found[f"copy_gb_per_s_t{tokens}"] = by_name[COPY]["gb_per_s"]
            for pages in self.pages:
                values = self._ratios(by_name, tokens, pages)
                found |= {f"{key}_t{tokens}_p{pages}": value for key, value in values.items()}
                if tokens == max(self.tokens) and pages == self.pages[0]:
                    found = {**values, **found}
        training = {entry["operator"]: entry for entry in tables["training"]}
        for name in ("forward", "backward"):
            entry = training[f"block_sparse_attention/{name}"]
            found[f"block_sparse_{name}_over_sdpa_dense"] = entry["speed_over_sdpa"]
        return found

    def _ratios(self, by_name: dict[str, dict[str, Any]], tokens: int, pages: int) -> dict[str, float | None]:
        speed: float | None = by_name[f"sparse_step/{pages}"]["speed_over_sdpa"]
        own, dense = (by_name[name]["seconds"] for name in (f"sparse_step/{pages}", "paged_attention/dense"))
        bound = attention_bound(tokens, BudgetSchedule.constant(pages - FIRST - LAST, page_size=self.page_size))
        return {
            "decode_sparse_over_sdpa_dense": speed,
            "decode_sparse_over_own_dense": dense / own if own and dense else None,
            "bound": bound,
            "share_of_bound": speed / bound if speed else None,
        }

    def _measure(self, operators: Sequence[Operator]) -> Rows:
        device = torch.device(self.device)
        source = torch.ones(self.copy_mib << 20, dtype=torch.uint8, device=device)
        target = torch.zeros_like(source)
        calls = candidates(operators, lambda: target.copy_(source))
        clock = Clock(device, self.flush_mib)
        measured = interleave(calls, clock, repeats=self.repeats, warmup=self.warmup, budget_s=self.budget_s)
        missing = {"sdpa": "it is the yardstick", "reference": "it is the yardstick"}
        copy = Operator(COPY, calls[COPY], 2 * source.numel(), missing=missing)
        rate = copy.bytes_moved / measured.timings[COPY].median
        return [row(operator, measured, rate) for operator in (copy, *operators)]

    def _decode(self, tokens: int) -> list[Operator]:
        dtype = DTYPES[self.dtype]
        sizes = (self.batch, self.heads, self.kv_heads, self.head_dim, self.page_size)
        shape = DecodeShape(*sizes, tokens, dtype.itemsize)
        device = torch.device(self.device)
        layers = [DecodeInputs(shape, device, dtype, self.seed + layer) for layer in range(self.layers)]
        for inputs in layers[1:]:
            inputs.__dict__.pop("rows_XKD")  # another copy of the cache, which only the first layer needs again
        return layered_operators(layers, self.pages)

    def _training(self) -> list[Operator]:
        device, dtype = torch.device(self.device), DTYPES[self.dtype]
        sizes = (self.train_batch, self.heads, self.kv_heads, self.head_dim, self.page_size)
        shape = TrainingShape(*sizes, self.train_tokens, dtype.itemsize)
        attention = TrainingInputs(shape, self.pages[0], device, dtype, self.seed)
        statistics = StatisticsInputs(self.statistics_tokens, self.hidden, self.vocab, device, dtype, self.seed)
        return attention_operators(attention) + statistics_operators(statistics)


def show(title: str, rows: Rows) -> None:
    """Print one table; a dash is what was not measured."""
    table = Table(title=title)
    table.add_column("operator", no_wrap=True)
    for heading in ("ms", "GB/s", "of a copy", "over plain", "over SDPA"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in rows:
        table.add_row(
            entry["operator"],
            _cell(entry["seconds"], 1000, ".3f"),
            _cell(entry["gb_per_s"], 1, ".2f"),
            _cell(entry["share_of_copy"], 100, ".0f", "%"),
            _cell(entry["speed_over_reference"], 1, ".2f", "x"),
            _cell(entry["speed_over_sdpa"], 1, ".2f", "x"),
        )
    Console().print(table)
    for entry in rows:
        for what, why in entry["not_measured"].items():
            if "memory" in why:
                print(f"{entry['operator']}: {what} not measured, {why}")


def _cell(value: float | None, factor: float, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value * factor:{form}}{unit}"
