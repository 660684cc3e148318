"""``suite=rollout``: decode steps of this engine and of transformers' ``generate``, on the same weights.

All start from the same synthetic cache, in one process, in turns. A step is everything that a decoded token costs as a
user runs it: forward pass, sampling, and the loop around them. Names of results: ``a_over_b`` is how many times faster
a is than b; only ``sparse_step_over_empty_step`` and ``slope_*`` compare times.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from sparrow.benchmarks.plots import plot_steps
from sparrow.benchmarks.results import write_results
from sparrow.benchmarks.synthetic import Context, Decoded, Generate, SyntheticEngine
from sparrow.benchmarks.timing import rotated
from sparrow.models.loading import load_policy
from sparrow.models.random_model import random_model
from sparrow.schedule import BudgetSchedule, load_schedule

Steps = dict[str, list[float]]
"""Seconds per step of each call, by system."""

SYSTEMS = ("sparse", "dense", "generate_dynamic", "generate_static")


@dataclass(frozen=True)
class RolloutSuite:
    """Settings of the suite.

    Attributes:
        model: the policy, as `sparrow.models.loading.load_policy` takes it, or with ``random_weights`` a name of
            `sparrow.models.architecture.ARCHITECTURES`.
        device: ``cpu`` or ``cuda``.
        dtype: ``float32`` or ``bfloat16``; of weights, cache and computation.
        batch: sequences decoded together.
        pages: page budget, reserved pages not counted; null: that of ``schedule``.
        page_size: tokens per page.
        dense_layers: layers that read everything.
        contexts: tokens in the cache before the first step, ascending; the last one is the headline.
        generate_contexts: those of them at which ``generate`` is timed too; empty: nowhere, else the last among them.
        empty: tokens of an almost empty cache.
        steps: decode steps of a call.
        repeats: calls that count.
        temperature: of sampling; 0: greedy.
        seed: of the cache.
        random_weights: whether the model is made by its sizes alone.
        schedule: name or path of a schedule, where ``pages`` is null.
        graphs: whether the engine captures its steps as CUDA graphs; null: as it does by default.

    Raises:
        ValueError: a value is out of range; the message names the key.
    """

    model: str
    device: str
    dtype: str
    batch: int
    pages: int | None
    page_size: int
    dense_layers: list[int]
    contexts: list[int]
    generate_contexts: list[int]
    empty: int = 16
    steps: int = 24
    repeats: int = 5
    temperature: float = 0.0
    seed: int = 0
    random_weights: bool = False
    schedule: str | None = None
    graphs: bool | None = None

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"suite.device={self.device!r}: must be cpu or cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("suite.device='cuda': there is no CUDA device; must be cpu here")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"suite.dtype={self.dtype!r}: must be float32 or bfloat16")
        for key in ("batch", "steps", "repeats", "empty"):
            if getattr(self, key) < 1:
                raise ValueError(f"suite.{key}={getattr(self, key)}: must be 1 or more")
        if (self.pages is None) == (self.schedule is None):
            raise ValueError(f"suite.pages={self.pages} and suite.schedule={self.schedule}: must be one of them")
        if len(self.contexts) < 2 or self.contexts != sorted(set(self.contexts)) or self.contexts[0] <= self.empty:
            raise ValueError(
                f"suite.contexts={self.contexts}: must be two or more ascending lengths above empty={self.empty}"
            )
        named = set(self.generate_contexts)
        if not named <= set(self.contexts) or (named and self.contexts[-1] not in named):
            raise ValueError(
                f"suite.generate_contexts={self.generate_contexts}: must be empty, or some of contexts="
                f"{self.contexts}, the last one among them"
            )

    @torch.no_grad()
    def run(self, run_dir: Path) -> None:
        """Measure, print a table, write ``rollout.json``, ``summary.json`` and ``steps.png``."""
        dtype = torch.float32 if self.dtype == "float32" else torch.bfloat16
        if self.random_weights:
            model = random_model(self.model, dtype, self.device)
        else:
            model, _ = load_policy(self.model, dtype)
        model.to(self.device)  # type: ignore[arg-type]  # transformers annotates the method away
        # Nothing may end a call early, neither the model's stop tokens nor its own sampling defaults.
        model.generation_config = type(model.generation_config)()
        schedules = self._schedules()
        engine = SyntheticEngine(model, schedules["dense"], max_batch=self.batch, graphs=self.graphs)
        contexts = {size: Context.random(model, self.batch, size, self.seed) for size in (self.empty, *self.contexts)}
        calls = {tokens: self._calls(model, engine, contexts, tokens) for tokens in self.contexts}
        measured, agreement = self._measure(calls)
        summary = self.summary(measured, agreement)
        show(
            f"{self.model}, batch {self.batch}, {self.schedule or self.pages} pages and "
            f"{schedules['sparse'].reserved} reserved",
            measured,
        )
        plot_steps(run_dir / "steps.png", {tokens: medians(steps) for tokens, steps in measured.items()})
        details = {"settings": asdict(self), "seconds_per_step": measured, "tokens_equal_to_generate": agreement}
        write_results(run_dir, "rollout", summary, details)

    def summary(self, measured: dict[int, Steps], agreement: dict[int, float | None]) -> dict[str, float | None]:
        """The ratios that matter, flat, at the longest context."""
        at = {tokens: medians(steps) for tokens, steps in measured.items()}
        longest = at[self.contexts[-1]]
        sparse, dense = longest["sparse"], longest["dense"]
        slopes = {name: slope({tokens: steps[name] for tokens, steps in at.items()}) for name in ("sparse", "dense")}
        ours = {"sparse": sparse, "dense": dense}
        peers = [peer for peer in SYSTEMS if peer.startswith("generate") and peer in longest]
        return {
            "context": float(self.contexts[-1]),
            **{f"{own}_over_{peer}": longest[peer] / ours[own] for own in ours for peer in peers},
            "sparse_over_dense": dense / sparse,
            "rollout_sparse_over_dense": whole(at, "dense") / whole(at, "sparse"),
            "sparse_step_over_empty_step": sparse / longest["empty"],
            "slope_sparse_s_per_token": slopes["sparse"],
            "slope_dense_s_per_token": slopes["dense"],
            "slope_sparse_over_dense": slopes["sparse"] / slopes["dense"] if slopes["dense"] else None,
            "dense_tokens_equal_to_generate": agreement[self.contexts[-1]],
            **{f"{name}_step_s": seconds for name, seconds in longest.items()},
        }

    def _schedules(self) -> dict[str, BudgetSchedule]:
        fields: dict[str, Any] = {"page_size": self.page_size, "dense_layers": self.dense_layers}
        if self.schedule is not None:
            sparse = load_schedule(self.schedule).replace(**fields)
        else:
            assert self.pages is not None
            sparse = BudgetSchedule.constant(self.pages, **fields)
        return {
            "sparse": sparse,
            "dense": BudgetSchedule.dense(**fields),
        }

    def _calls(
        self, model: Any, engine: SyntheticEngine, contexts: dict[int, Context], tokens: int
    ) -> dict[str, Callable[[], Decoded]]:
        """The systems to time at one length, by name."""

        def own(schedule: BudgetSchedule, context: Context) -> Callable[[], Decoded]:
            return lambda: engine.decode(context, schedule, self.steps, self.temperature)

        schedules = self._schedules()
        calls = {name: own(schedule, contexts[tokens]) for name, schedule in schedules.items()}
        calls["empty"] = own(schedules["sparse"], contexts[self.empty])
        if tokens in self.generate_contexts:
            for name, static in (("generate_dynamic", False), ("generate_static", True)):
                calls[name] = Generate(
                    model, contexts[tokens], steps=self.steps, static=static, temperature=self.temperature
                ).decode
        return calls

    def _measure(
        self, calls: dict[int, dict[str, Callable[[], Decoded]]]
    ) -> tuple[dict[int, Steps], dict[int, float | None]]:
        """Seconds per step, and the share of greedy tokens that dense engine and ``generate`` have in common.

        The lengths take turns as the systems do: a slope between lengths that were measured minutes apart would be one
        of the machine's moods.
        """
        # The longest first: the cache is allocated once, and large enough for all.
        lengths = sorted(calls, reverse=True)
        agreement = {
            tokens: self._agreement({name: call() for name, call in calls[tokens].items()}) for tokens in lengths
        }
        found: dict[int, Steps] = {tokens: {name: [] for name in calls[tokens]} for tokens in self.contexts}
        for turn in range(self.repeats):
            for tokens in rotated(lengths, turn):
                for name in rotated(list(calls[tokens]), turn):
                    found[tokens][name].append(calls[tokens][name]().seconds_per_step)
        return found, agreement

    def _agreement(self, decoded: dict[str, Decoded]) -> float | None:
        if "generate_dynamic" not in decoded or self.temperature > 0:
            return None
        ours, theirs = (np.array(decoded[name].token_ids) for name in ("dense", "generate_dynamic"))
        return float((ours == theirs).mean())


def medians(steps: Steps) -> dict[str, float]:
    """Median seconds per step by system."""
    return {name: median(seconds) for name, seconds in steps.items()}


def whole(at: dict[int, dict[str, float]], name: str) -> float:
    """Seconds of all steps of a rollout from an almost empty cache to the longest context, by the trapezoid rule.

    It stands for tens of thousands of steps: between the measured lengths a step's time is taken to be linear.
    """
    lengths = sorted(at)
    times = [at[lengths[0]]["empty"], *(at[tokens][name] for tokens in lengths)]
    return float(np.trapezoid(times, [0, *lengths]))


def slope(seconds: dict[int, float]) -> float:
    """Least-squares growth of the step time with the context, in seconds per token."""
    return float(np.polyfit(list(seconds), list(seconds.values()), 1)[0])


def show(title: str, measured: dict[int, Steps]) -> None:
    """Print milliseconds per step; a dash is what was not timed."""
    table = Table("context", "empty", *SYSTEMS, title=f"ms per step, {title}")
    for tokens, steps in measured.items():
        found = medians(steps)
        cells = [f"{found[name] * 1000:.2f}" if name in found else "-" for name in ("empty", *SYSTEMS)]
        table.add_row(str(tokens), *cells)
    Console().print(table)
