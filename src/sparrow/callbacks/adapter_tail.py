"""What the adapter is worth: the tail of held-out traces under cheaper schedules, with the adapter and without it.

The traces are sampled densely by the final policy, and the same tokens are read every time. Without the adapter the
actor chooses its pages; with it, it reads the very same pages, so that the adapter alone makes the difference. A third
reading lets the adapted actor choose pages for itself, as it does in a rollout.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import lightning
import torch
from torch import Tensor

from sparrow.callbacks.plots import plot_adapter_tail
from sparrow.callbacks.rollout import Rollout
from sparrow.callbacks.tail import Tail, page_end
from sparrow.data import Prompt, PromptDataModule
from sparrow.distributed import gathered
from sparrow.kernels import token_statistics
from sparrow.metrics import TailAcceptance
from sparrow.models.attention import SparsePass
from sparrow.modules import DistillSparse, Experience, collect_unjudged
from sparrow.modules.microbatches import microbatches
from sparrow.modules.passes import dense_pass, head_weight, hidden_states, predicting, sparse_pass
from sparrow.modules.scoring import scatter
from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule, derive_schedule
from sparrow.schedule.derive import ScheduleSpec
from sparrow.schedule.search import check_way, first_at_most

READINGS = ("adapter_off", "adapter_on", "adapter_on_own_pages")
"""How a schedule is read; see the module."""

Bins = list[tuple[int, int, float, int]]
"""First token, end, p5 and tokens of each filled bin."""


class AdapterTail(lightning.Callback):
    """Measures p5 of exact alpha per length bin at the end of a run, under several schedules.

    Leaves ``adapter_tail.json`` and ``adapter_tail.png`` in the run folder. The least p5 over filled bins goes to the
    summary: ``tail_p05_min_adapter_off``, ``_on`` and ``_on_own_pages`` of the reported schedule, and
    ``tail_p05_min_<name>_<reading>`` of all of them.

    Args:
        schedules: by name, each a schedule's name or path or the fields in which it differs from the run's first
            schedule, ``scale`` among them (see `derive_schedule`).
        reported: the one of them that stands for the run.
        level: null reads the reported schedule as it is given. A number looks for one between the run's first schedule
            and it: the one of most pages whose least p5 without the adapter is at most this. How much agreement a page
            count costs differs from one trained policy to the next, and where nothing is lost nothing can be won. It is
            left in the run folder as ``adapter_schedule.yaml``.
        prompts: held-out prompts to sample a trace of.

    Raises:
        ValueError: ``reported`` is none of the schedules, ``level`` is no agreement, or ``prompts`` is below 1.
    """

    def __init__(
        self, schedules: Mapping[str, ScheduleSpec], reported: str, level: float | None = None, prompts: int = 64
    ) -> None:
        if reported not in schedules:
            raise ValueError(f"reported={reported!r}: must be one of {', '.join(schedules)}")
        if level is not None and not 0 < level < 1:
            raise ValueError(f"level={level}: must be between 0 and 1, or null")
        if prompts < 1:
            raise ValueError(f"prompts={prompts}: must be 1 or more")
        self.specs = dict(schedules)
        self.reported = reported
        self.level = level
        self.prompts = prompts
        self.schedules: dict[str, BudgetSchedule] = {}

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Work out the schedules, before anything can move the run's own.

        Raises:
            ValueError: the policy has no adapter, or a schedule is wrong.
        """
        if not isinstance(pl_module, DistillSparse):
            raise ValueError("callbacks.adapter_tail measures an adapter, and this run has none: set distill=lora")
        key = "callbacks.adapter_tail.schedules"
        for name, spec in self.specs.items():
            self.schedules[name] = derive_schedule(pl_module.schedule, spec, f"{key}.{name}")
        self.first = pl_module.schedule
        if self.level is not None:
            try:
                check_way(self.first, self.schedules[self.reported])
            except ValueError as error:
                raise ValueError(f"{key}.{self.reported} with level={self.level}: {error}") from error

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Sample, read and write, on the first process; others only help to put sharded weights together for it."""
        assert isinstance(pl_module, DistillSparse)
        with gathered(pl_module.model):
            if trainer.is_global_zero:
                self._measure(trainer, pl_module)

    def _measure(self, trainer: lightning.Trainer, pl_module: DistillSparse) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]  # set by fit(datamodule=...), missing in the stubs
        assert isinstance(data, PromptDataModule)
        callbacks: list[lightning.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        rollout = next(callback for callback in callbacks if isinstance(callback, Rollout))
        tail = next(callback for callback in callbacks if isinstance(callback, Tail))
        experience = dense_traces(pl_module, data.validation_prompts[: self.prompts], rollout)
        folder = Path(trainer.default_root_dir)
        schedules = dict(self.schedules)
        if self.level is not None:
            schedules[self.reported] = self._at_level(pl_module, experience, tail)
            schedules[self.reported].to_yaml(folder / "adapter_schedule.yaml")
        found = measure(pl_module, experience, schedules, tail)
        (folder / "adapter_tail.json").write_text(json.dumps(found, indent=1) + "\n")
        plot_adapter_tail(folder / "adapter_tail.png", found, pl_module.schedule)
        pl_module.results |= self._least(found)

    def _at_level(self, module: DistillSparse, experience: Experience, bins: Tail) -> BudgetSchedule:
        assert self.level is not None

        def read(schedule: BudgetSchedule) -> float:
            found = measure(module, experience, {"": schedule}, bins, ("adapter_off",))[""]["adapter_off"]
            return min((p5 for *_, p5, _ in found), default=math.nan)

        return first_at_most(self.level, self.first, self.schedules[self.reported], read)

    def _least(self, found: dict[str, dict[str, Bins]]) -> dict[str, float]:
        least = {
            (name, reading): min((p5 for *_, p5, _ in bins), default=math.nan)
            for name, readings in found.items()
            for reading, bins in readings.items()
        }
        named = {f"tail_p05_min_{name}_{reading}": value for (name, reading), value in least.items()}
        return {f"tail_p05_min_{reading}": least[self.reported, reading] for reading in READINGS} | named


def dense_traces(module: DistillSparse, prompts: list[Prompt], rollout: Rollout) -> Experience:
    """One trace of each prompt, sampled densely without the adapter at the run's temperature."""
    settings = module.rollout
    engine = RolloutEngine(module.model, None, max_batch=settings.max_batch)
    completions = engine.generate(
        [prompt.token_ids for prompt in prompts],
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        seed=rollout.seed,
        prompt_keys=[prompt.key for prompt in prompts],
        eos_token_ids=rollout.eos_token_ids,
    )
    return collect_unjudged([prompt.token_ids for prompt in prompts], completions).to(module.device)


@torch.no_grad()
def measure(
    module: DistillSparse,
    experience: Experience,
    schedules: Mapping[str, BudgetSchedule],
    bins: Tail,
    readings: Sequence[str] = READINGS,
) -> dict[str, dict[str, Bins]]:
    """P5 of exact alpha per filled bin, by schedule and reading.

    Args:
        module: the policy with its adapter.
        experience: traces to read.
        schedules: by name.
        bins: gives width and number of bins, and the tokens from which one is filled.
        readings: the first so many of all.
    """
    empty = {
        name: {reading: TailAcceptance(bin_tokens=bins.bin_tokens, num_bins=bins.num_bins) for reading in readings}
        for name in schedules
    }
    cuts = microbatches(experience.length_B.tolist(), range(len(experience)), module.update.micro_batch_tokens)
    for rows in cuts:
        micro = experience.select(rows)
        with dense_pass(module.model):
            dense_XE = predicting(hidden_states(module.model, micro.tokens_BT), micro.mask_BT)
        for name, schedule in schedules.items():
            position_BT = page_end(micro.position_BT, schedule.page_size).cpu()
            for reading, alpha_BT in _readings(module, micro, schedule, dense_XE, readings).items():
                empty[name][reading].update(alpha_BT.cpu(), position_BT, micro.decoded_BT.cpu())
    return {name: {reading: _filled(tail, bins.filled) for reading, tail in of.items()} for name, of in empty.items()}


def _readings(
    module: DistillSparse,
    micro: Experience,
    schedule: BudgetSchedule,
    dense_XE: Tensor,
    readings: Sequence[str] = READINGS,
) -> dict[str, Tensor]:
    pages: dict[int, Tensor] = {}
    lengths = micro.prompt_len_B, micro.length_B
    passes = {
        "adapter_off": SparsePass(schedule, module.page_score, *lengths, record=pages),
        "adapter_on": SparsePass(schedule, module.page_score, *lengths, page_sets=pages),
        "adapter_on_own_pages": SparsePass(schedule, module.page_score, *lengths),
    }
    head_VE, token_X = head_weight(module.model), micro.tokens_BT[micro.mask_BT]
    found: dict[str, Tensor] = {}
    for reading in readings:
        with sparse_pass(module.model, with_adapter=reading != "adapter_off"):
            sparse_XE = predicting(hidden_states(module.model, micro.tokens_BT, passes[reading]), micro.mask_BT)
        temperature = module.rollout.temperature
        read = token_statistics(dense_XE, head_VE, token_X, temperature=temperature, other_hidden_XE=sparse_XE)
        alpha_BT = scatter(read.alpha_X, micro.mask_BT)
        assert alpha_BT is not None
        found[reading] = alpha_BT
    return found


def _filled(tail: TailAcceptance, minimum: int) -> Bins:
    rows = zip(tail.quantile_bins().tolist(), tail.count_bins().tolist(), strict=True)
    width = tail.bin_tokens
    return [(i * width, (i + 1) * width, p5, count) for i, (p5, count) in enumerate(rows) if count >= minimum]
