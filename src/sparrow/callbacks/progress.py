"""Progress of a rollout inside the trainer's own progress bar."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import lightning
from lightning.pytorch.callbacks import RichProgressBar

ReportProgress = Callable[[int, int, int], None]
"""``(sequences done, sequences in all, tokens so far)``."""


class StepProgress(RichProgressBar):
    """Lightning's Rich bar, counting RL steps: the number of epochs is open and says nothing here."""

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
