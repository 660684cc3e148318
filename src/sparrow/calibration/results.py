"""What a calibration finds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparrow.calibration.choose import Choice, Path
from sparrow.evaluation.intervals import Estimate
from sparrow.evaluation.prompt_tail import PromptTail
from sparrow.schedule import BudgetSchedule

Curve = list[Estimate | None]
"""The tail statistic per bin; None where the bin is not filled."""


@dataclass(frozen=True)
class SweepPoint:
    """A constant budget at one page size.

    Attributes:
        page_size: tokens per page.
        tokens: tokens read per step, reserved pages included.
        tail: least tail statistic of a filled bin.
        speedup: predicted rollout speed-up.
    """

    page_size: int
    tokens: int
    tail: float
    speedup: float


@dataclass(frozen=True)
class HeldOut:
    """The run under the schedule itself, on prompts that were not used for it.

    Attributes:
        tail: exact, bounds and top20, by name.
        teacher_forcing_gap: mean |alpha recorded - alpha by teacher forcing| of one of its sequences.
        mean_pages: pages read per decode step and KV head of a sparse layer, reserved ones included.
        kv_fraction: tokens read / tokens cached, over all layers.
        repetition: share of tokens that repeat an n-gram of their response.
        tokens: sampled tokens.
        stopped: share of sequences that ended by themselves.
    """

    tail: Mapping[str, PromptTail]
    teacher_forcing_gap: float
    mean_pages: float
    kv_fraction: float
    repetition: float
    tokens: int
    stopped: float


@dataclass(frozen=True)
class Calibration:
    """Everything a report shows.

    Attributes:
        schedule: what was found, with its provenance.
        choice: how its table came about.
        chosen: its tail on the calibration traces, teacher-forced.
        constants: pages -> tail under a constant budget, teacher-forced.
        proposed: tau -> (table, tail) for the other thresholds, and for the schedule's own tau what constants propose.
        floors: estimator -> its statistic per bin, dense against dense.
        repetition: of the calibration traces.
        rounds: samplings that were made.
        held_out: the final run.
        sweep: page sizes against cost.
        predicted_speedup: of the schedule, by the cost model.
        seconds: wall time by stage.
        cpu_seconds: processor time of all stages, over all threads.
    """

    schedule: BudgetSchedule
    choice: Choice
    chosen: Curve
    constants: Mapping[int, Curve]
    proposed: Mapping[float, tuple[Path, Curve]]
    floors: Mapping[str, Curve]
    repetition: float
    rounds: int
    held_out: HeldOut
    predicted_speedup: float
    sweep: Sequence[SweepPoint] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0
