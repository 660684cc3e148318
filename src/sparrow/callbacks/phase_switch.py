"""A second phase under another schedule: by the number of examples seen, or once the tail has room."""

from pathlib import Path
from typing import Any

import lightning

from sparrow.callbacks.tail import Tail
from sparrow.modules import DensePolicy
from sparrow.schedule import BudgetSchedule, derive_schedule
from sparrow.schedule.derive import ScheduleSpec


class PhaseSwitch(lightning.Callback):
    """Moves the actor to a second schedule between two RL steps, once; works for any policy.

    The tail is measured against the new schedule from then on, and its pool of steps starts anew. The new schedule is
    written beside the run's own as ``schedule_phase_2.yaml``.

    Args:
        schedule: a schedule's name or path, or the fields in which it differs from the run's, ``scale`` among them
            (see `derive_schedule`).
        after_examples: prompts seen, over all ranks, before the switch; null switches by the tail instead.
        above: switch once the least p5 over filled bins, pooled over the last steps, is at least this.
        patience: RL steps in a row on which that must hold.
        estimate: the estimator of alpha that ``above`` is stated in, by its logged name.

    Raises:
        ValueError: not exactly one of ``after_examples`` and ``above``, or a value out of range.
    """

    def __init__(
        self,
        schedule: ScheduleSpec,
        after_examples: int | None = None,
        above: float | None = None,
        patience: int = 3,
        estimate: str = "alpha",
    ) -> None:
        if (after_examples is None) == (above is None):
            raise ValueError(f"after_examples={after_examples}, above={above}: give exactly one of the two")
        if after_examples is not None and after_examples < 1:
            raise ValueError(f"after_examples={after_examples}: must be 1 or more")
        if above is not None and not 0 < above <= 1:
            raise ValueError(f"above={above}: must be above 0 and at most 1")
        if patience < 1:
            raise ValueError(f"patience={patience}: must be 1 or more")
        self.spec = schedule
        self.after_examples, self.above = after_examples, above
        self.patience, self.estimate = patience, estimate
        self.second: BudgetSchedule | None = None
        self.examples = 0
        self.steps_above = 0
        self.switched = False

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Work out the second schedule, and return to it where a checkpoint says so.

        Raises:
            ValueError: the schedule is wrong, or the tail is to decide and is not measured.
        """
        assert isinstance(pl_module, DensePolicy)
        self.second = derive_schedule(pl_module.schedule, self.spec, "callbacks.phase_switch.schedule")
        if self.above is not None and _tail(trainer) is None:
            raise ValueError(f"callbacks.phase_switch.above={self.above}: the run measures no tail")
        if self.switched:
            pl_module.schedule = self.second
            tail = _tail(trainer)
            if tail is not None:
                tail.schedule = self.second  # what it pooled comes from its own state

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the phase of the step just done, and switch if the next one belongs to the second."""
        assert isinstance(pl_module, DensePolicy)
        pl_module.step_metrics["schedule/phase"] = 2.0 if self.switched else 1.0
        self.examples += len(batch["prompts"]) * trainer.world_size
        if not self.switched and self._due(trainer):
            self._switch(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"examples": self.examples, "steps_above": self.steps_above, "switched": self.switched}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.examples, self.steps_above = state_dict["examples"], state_dict["steps_above"]
        self.switched = state_dict["switched"]

    def _due(self, trainer: lightning.Trainer) -> bool:
        if self.after_examples is not None:
            return self.examples >= self.after_examples
        tail = _tail(trainer)
        assert tail is not None
        assert self.above is not None
        bins = tail.filled_bins(self.estimate)
        holds = bool(bins) and min(p5 for *_, p5, _ in bins) >= self.above
        self.steps_above = self.steps_above + 1 if holds else 0
        return self.steps_above >= self.patience

    def _switch(self, trainer: lightning.Trainer, module: DensePolicy) -> None:
        assert self.second is not None
        self.switched = True
        module.schedule = self.second
        tail = _tail(trainer)
        if tail is not None:
            tail.follow(self.second)
        if trainer.is_global_zero:
            self.second.to_yaml(Path(trainer.default_root_dir) / "schedule_phase_2.yaml")
        trainer.print(f"RL step {trainer.global_step}: the second schedule holds from the next step on")


def _tail(trainer: lightning.Trainer) -> Tail | None:
    callbacks: list[lightning.Callback] = trainer.callbacks  # type: ignore[attr-defined]  # missing in the stubs
    return next((callback for callback in callbacks if isinstance(callback, Tail)), None)
