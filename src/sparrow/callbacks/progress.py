"""Progress on the terminal: Rich's bar with the rollout inside it, or a plain line per step where nobody watches."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning
from lightning.pytorch.callbacks import RichProgressBar

ReportProgress = Callable[[int, int, int], None]
"""``(sequences done, sequences in all, tokens so far)``."""

SHOWN = {
    "reward": ("critic/score/mean", ".3f"),
    "p5": ("tail/alpha/p05", ".3f"),
    "tok/s": ("perf/rollout_tokens_per_s", ".0f"),
}
"""Name on the terminal, the key shown under it, and its format."""


def step_line(step: int, steps: int, metrics: Mapping[str, float]) -> str:
    """The main numbers of a step; what it did not measure is left out.

    >>> step_line(3, 16, {"critic/score/mean": 0.25, "perf/rollout_tokens_per_s": 4006.4})
    'step 3/16  reward 0.250  tok/s 4006'
    """
    of = f"/{steps}" if steps > 0 else ""
    shown = [f"{name} {metrics[key]:{form}}" for name, (key, form) in SHOWN.items() if key in metrics]
    return "  ".join([f"step {step}{of}", *shown])


class StepProgress(RichProgressBar):
    """Lightning's Rich bar, counting RL steps; where the output is no terminal, a plain line per step instead.

    A bar in a file or a batch system's log would be one long line of control characters, or nothing until the end.
    The number of epochs and the logger's version say nothing here and are not shown.
    """

    @property
    def is_enabled(self) -> bool:
        """Whether the bar is drawn."""
        return super().is_enabled and sys.stdout.isatty()

    def say(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """Print a finished step's line, on the first process and where there is no bar."""
        if super().is_enabled and not sys.stdout.isatty():
            print(step_line(step, steps, metrics), flush=True)

    def get_metrics(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> dict[str, Any]:
        """What stands beside the bar: only what the run itself shows."""
        items: dict[str, Any] = super().get_metrics(trainer, pl_module)
        items.pop("v_num", None)
        return items

    def _get_train_description(self, current_epoch: int) -> str:
        return "RL steps"


@contextmanager
def rollout_progress(trainer: lightning.Trainer, sequences: int) -> Iterator[ReportProgress | None]:
    """Report a rollout of ``sequences`` sequences as a sub-task of the Rich bar; None where no such bar is live.

    The bar does not refresh by itself during a callback, so every report refreshes it: the engine reports a few times
    a second at most.
    """
    bar = trainer.progress_bar_callback
    live = bar.progress if isinstance(bar, RichProgressBar) and bar.is_enabled else None
    if live is None:
        yield None
        return
    task = live.add_task("rollout", total=sequences)

    def report(done: int, total: int, tokens: int) -> None:
        live.update(task, completed=done, total=total, description=f"rollout, {tokens} tokens")
        live.refresh()

    try:
        yield report
    finally:
        live.remove_task(task)
        live.refresh()
