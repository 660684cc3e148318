"""Closed-loop control of the tail: after each RL step the page budgets of the length bins move, if they must.

The rule is `sparrow.tail.control`; this callback feeds it with the step's agreement, summed over ranks so that all of
them decide alike, and hands the actor the schedule that comes out.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning
from torch import Tensor

from sparrow.callbacks.tail import ESTIMATES, LOGGED, Tail, page_end
from sparrow.data import PromptDataModule
from sparrow.modules import DensePolicy, Experience
from sparrow.modules.gradients import sum_over_ranks
from sparrow.schedule import BudgetSchedule
from sparrow.tail.control import BinState, ControlRule, Move, decide
from sparrow.tail.evidence import Evidence, count_below

MOVES_FILE = "controller.jsonl"
"""In the run folder: one line per move."""

SCHEDULE_FILE = "schedule_controlled.yaml"
"""In the run folder: the schedule as the last move left it."""

RECORDED_BY = {"exact": "exact", "top20": "exact", "bounds": "bounds"}
"""Estimator of alpha to the ``rollout.alpha`` that gives it."""


class AdaptiveBudget(lightning.Callback):
    """Keeps p5 of every length bin at tau, on top of the run's schedule and in the bins of its tail.

    A schedule with fewer bins than the tail measures (a constant or a dense one) is spread over the tail's bins. When
    another callback moves the schedule, control starts anew from it; a dense schedule set during a run is left alone.

    Args:
        tau: p5 to hold; null takes the schedule's.
        estimator: of alpha, ``exact``, ``top20`` or ``bounds`` (then the lower bound is held); null takes the
            schedule's. A tau belongs to its estimator.
        max_pages: largest budget of a bin; null: every page of the longest sequence the bin can hold.
        filled: tokens since the last move from which a bin is judged; null takes the tail's.

    The other arguments are those of `sparrow.tail.control.ControlRule`.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(
        self,
        tau: float | None = None,
        estimator: str | None = None,
        tolerance: float = 0.015,
        confidence: float = 0.95,
        least_design_effect: float = 2.0,
        filled: int | None = None,
        prompts: int = 4,
        patience: int = 3,
        window: int = 10,
        growth: float = 2.0,
        min_pages: int = 1,
        max_pages: int | None = None,
        monotone: bool = True,
        influence: float = 0.2,
        rest: int = 10,
        retest: int | None = 50,
    ) -> None:
        self.values: dict[str, Any] = {
            "tolerance": tolerance,
            "confidence": confidence,
            "least_design_effect": least_design_effect,
            "prompts": prompts,
            "patience": patience,
            "window": window,
            "growth": growth,
            "min_pages": min_pages,
            "monotone": monotone,
            "influence": influence,
            "rest": rest,
            "retest": retest,
        }
        ControlRule(tau=0.5 if tau is None else tau, filled=1 if filled is None else filled, **self.values)
        if max_pages is not None and max_pages < min_pages:
            raise ValueError(f"controller.max_pages={max_pages}: must be min_pages={min_pages} or more")
        self.tau, self.estimator, self.filled, self.max_pages = tau, estimator, filled, max_pages
        self.rule: ControlRule | None = None
        self.bins: tuple[BinState, ...] = ()
        self.schedule: BudgetSchedule | None = None
        self.longest = 0
        self._restored: dict[str, Any] | None = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Take over the run's schedule, or return to that of a checkpoint.

        Raises:
            ValueError: tau or its estimator is not known, the run does not measure it, or the bins differ.
        """
        assert isinstance(pl_module, DensePolicy)
        tail = _tail(trainer)
        self.longest = _longest(trainer, pl_module)
        self.rule = self._make_rule(pl_module, tail)
        if self._restored is None:
            self._take_over(pl_module, tail)
            return
        restored, self._restored = self._restored, None
        self.bins = tuple(BinState.from_dict(values) for values in restored["bins"])
        self.schedule = BudgetSchedule(**restored["schedule"]) if restored["schedule"] else None
        if self.schedule is not None:
            pl_module.schedule = tail.schedule = self.schedule  # what the tail pooled comes from its own state

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Judge every bin on what was just sampled, and move those that must."""
        assert isinstance(pl_module, DensePolicy)
        assert self.rule is not None
        tail = _tail(trainer)
        if pl_module.schedule != self.schedule:  # another callback has moved it: the step was sampled under that
            self._take_over(pl_module, tail)
        if self.schedule is None:
            return
        step = self._measure(pl_module, batch["experience"], self.rule)
        self.bins, moves = decide(self.rule, self.bins, step)
        pl_module.step_metrics |= self._metrics(step, moves)
        if not moves:
            return
        self.schedule = self.schedule.replace(pages=[state.pages for state in self.bins])
        pl_module.schedule = self.schedule
        tail.follow(self.schedule, [move.bin for move in moves])
        if trainer.is_global_zero:
            self._write(Path(trainer.default_root_dir), trainer.global_step, moves)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        schedule = None if self.schedule is None else {**self.schedule.to_dict(), "pages": list(self.schedule.table)}
        return {"bins": [state.to_dict() for state in self.bins], "schedule": schedule}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint, once the run starts."""
        self._restored = state_dict

    @property
    def name(self) -> str:
        """Logged name of the estimator that is held."""
        return LOGGED[self.estimator]

    def _make_rule(self, module: DensePolicy, tail: Tail) -> ControlRule:
        tau = module.schedule.tau if self.tau is None else self.tau
        if tau is None:
            raise ValueError("controller.tau=null: the schedule names no tau, so it must be given")
        self.estimator = module.schedule.estimator if self.estimator is None else self.estimator
        if self.estimator not in RECORDED_BY:
            raise ValueError(f"controller.estimator={self.estimator}: must be one of {', '.join(RECORDED_BY)}")
        needed = RECORDED_BY[self.estimator]
        if module.rollout.alpha != needed:
            raise ValueError(
                f"controller.estimator={self.estimator} needs rollout.alpha={needed}, not {module.rollout.alpha}"
            )
        filled = tail.filled if self.filled is None else self.filled
        return ControlRule(tau=tau, filled=filled, **self.values)

    def _take_over(self, module: DensePolicy, tail: Tail) -> None:
        """Start from the module's schedule: its budgets at the tail's bins."""
        assert self.rule is not None
        found = module.schedule
        if found.is_dense and self.bins:
            self.schedule, self.bins = None, ()
            return
        edges = range(0, tail.num_bins * tail.bin_tokens, tail.bin_tokens)
        most = [self._most(found, low, low + tail.bin_tokens, low == edges[-1]) for low in edges]
        pages = [min(max(found.pages(low), self.rule.min_pages), limit) for low, limit in zip(edges, most, strict=True)]
        self.bins = tuple(BinState(count, limit) for count, limit in zip(pages, most, strict=True))
        self.schedule = found.replace(
            pages=pages,
            bin_tokens=tail.bin_tokens,
            tau=self.rule.tau,
            estimator=self.estimator,
            provenance={"started_from": found.provenance, "controller": asdict(self.rule)},
        )
        module.schedule = self.schedule
        tail.schedule = self.schedule

    def _most(self, schedule: BudgetSchedule, low: int, high: int, last: bool) -> int:
        """Every page of the longest sequence in a bin, reserved ones not counted, or the given limit if less."""
        assert self.rule is not None
        tokens = self.longest if self.longest > low and (last or self.longest < high) else high
        every = max(schedule.num_pages(tokens) - schedule.reserved, self.rule.min_pages)
        return every if self.max_pages is None else min(every, self.max_pages)

    def _measure(self, module: DensePolicy, experience: Experience, rule: ControlRule) -> list[Evidence]:
        assert self.schedule is not None
        assert module.scores is not None
        alpha_BT: Tensor | None = getattr(module.scores, ESTIMATES[self.name])
        assert alpha_BT is not None
        sums = count_below(
            alpha_BT,
            page_end(experience.position_BT, self.schedule.page_size),
            experience.decoded_BT,
            experience.group_B,
            line=rule.line,
            bin_tokens=self.schedule.bin_tokens,
            num_bins=self.schedule.num_bins,
        )
        return [Evidence(*row) for row in sum_over_ranks(sums).tolist()]

    def _metrics(self, step: Sequence[Evidence], moves: Sequence[Move]) -> dict[str, float]:
        assert self.rule is not None
        metrics = {"controller/moves": float(len(moves))}
        judged = [state for state in self.bins if state.measured]
        metrics["controller/settled"] = float(sum(state.settled(self.rule.min_pages) for state in judged))
        metrics["controller/judged"] = float(len(judged))
        for index, sums in enumerate(step):
            if sums.tokens:
                metrics[f"controller/{self.name}_share_below/bin_{index}"] = sums.share
        return metrics

    def _write(self, folder: Path, step: int, moves: Sequence[Move]) -> None:
        assert self.schedule is not None
        with (folder / MOVES_FILE).open("a", encoding="utf-8") as file:
            for move in moves:
                file.write(json.dumps(self._line(step, move)) + "\n")
        self.schedule.to_yaml(folder / SCHEDULE_FILE)

    def _line(self, step: int, move: Move) -> dict[str, Any]:
        assert self.schedule is not None
        assert self.rule is not None
        sums = move.evidence
        width = self.schedule.bin_tokens
        line: dict[str, Any] = {
            "step": step,
            "bin": move.bin,
            "tokens_from": move.bin * width,
            "tokens_to": (move.bin + 1) * width,
            "pages": move.before,
            "pages_next": move.after,
            "reason": move.reason,
            "estimator": self.estimator,
            "line": self.rule.line,
            "tokens": int(sums.tokens),
            "prompts": int(sums.prompts),
        }
        if sums.prompts >= 2:
            low, high = sums.interval(self.rule.confidence, self.rule.least_design_effect)
            line |= {"share_below": sums.share, "share_low": low, "share_high": high}
        return line


def _tail(trainer: lightning.Trainer) -> Tail:
    callbacks: list[lightning.Callback] = trainer.callbacks  # type: ignore[attr-defined]  # missing in the stubs
    return next(callback for callback in callbacks if isinstance(callback, Tail))


def _longest(trainer: lightning.Trainer, module: DensePolicy) -> int:
    """Tokens of the longest sequence a run can sample, the same on every rank."""
    data = trainer.datamodule  # type: ignore[attr-defined]  # set by fit(datamodule=...), missing in the stubs
    assert isinstance(data, PromptDataModule)
    return max(len(prompt.token_ids) for prompt in data.train_prompts) + module.rollout.max_new_tokens
