"""A whole calibration, stage after stage, each with its time."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from torch import nn

from sparrow.calibration.choose import Choice, propose_from_constants
from sparrow.calibration.predict import shape_of, speedup
from sparrow.calibration.readings import Bins, TeacherForced
from sparrow.calibration.results import Calibration, Curve
from sparrow.calibration.segment import SegmentForward
from sparrow.calibration.settings import CalibrationSettings
from sparrow.calibration.stages import Stages
from sparrow.calibration.traces import (
    EndlessEngine,
    Trace,
    load_traces,
    mean_repetition,
    sample_traces,
    save_traces,
)
from sparrow.data import Prompt, PromptRow
from sparrow.kernels import get_page_score
from sparrow.schedule import ALL_PAGES, BudgetSchedule

FLOOR_ROUNDING = 1e-3
"""Exact alpha of a policy with itself may read so much less than 1 through rounding."""


class Calibrator:
    """Finds a schedule for a model.

    Args:
        model: the policy.
        eos_token_ids: ids that end a response.
        settings: the numbers.
        actor: the schedule that the first sequences are sampled under; also gives page size, reserved pages and dense
            layers.
        page_score: how pages are ranked.
        seed: of sampling and of the bootstrap.
        intensity: operations per byte of the machine that the speed-up is predicted for.
        samples: sequences decoded together there.
        origin: what the schedule's provenance says of model and data.
        say: takes progress, a line at a time.
    """

    def __init__(
        self,
        model: nn.Module,
        eos_token_ids: Sequence[int],
        settings: CalibrationSettings,
        actor: BudgetSchedule,
        *,
        page_score: str,
        seed: int,
        intensity: float,
        samples: int,
        origin: Mapping[str, Any],
        say: Callable[[str], None] = print,
    ) -> None:
        if settings.bin_tokens < actor.page_size:
            raise ValueError(
                f"calibration.bin_tokens={settings.bin_tokens}: must be at least the page size {actor.page_size}"
            )
        self.model, self.settings, self.actor, self.seed = model, settings, actor, seed
        self.eos_token_ids, self.page_score = tuple(eos_token_ids), page_score
        self.intensity, self.samples, self.origin, self.say = intensity, samples, dict(origin), say
        self.seconds: dict[str, float] = {}
        self.cpu_seconds = 0.0
        self.engine = EndlessEngine(model, actor, page_score=page_score, max_batch=settings.max_batch)
        self.engine.never = self.eos_token_ids if settings.suppress_eos else ()

    def run(
        self, prompts: Sequence[Prompt], held_out: Sequence[Prompt], run_dir: Path, traces: Path | None = None
    ) -> Calibration:
        """Calibrate on ``prompts``, check on ``held_out``; sampled sequences are kept in ``run_dir``.

        Args:
            prompts: to calibrate on.
            held_out: to check on, other ones.
            run_dir: the run folder.
            traces: sequences of an earlier calibration, to be used instead of sampling the first time.

        Raises:
            ValueError: the estimator cannot read tau at all: dense against dense lies below it.
        """
        stages = Stages(self.settings, self._bins([*prompts, *held_out]), self.seed)
        actor, rounds = self.actor, 0
        while True:
            if traces is not None and rounds == 0:
                sampled = load_traces(traces, prompts)
            else:
                sampled = self._sample(prompts, actor, rounds)
                save_traces(run_dir / f"traces_{rounds}.pt", sampled)
            rounds += 1
            reader = self._reader(sampled, stages.bins)
            if rounds == 1:
                floors = self._floors(stages, reader)
                with self._stage("constant budgets"):
                    constants = {pages: stages.curve(tail) for pages, tail in stages.constants(reader).items()}
            with self._stage("choosing bin by bin"):
                choice = stages.choose(reader)
            schedule = self._schedule(choice, stages, sampled, prompts, actor)
            if rounds == self.settings.rounds or schedule.table == actor.table:
                break
            actor = schedule
        with self._stage("schedules along the sequence"):
            chosen = stages.along(reader, choice.pages, every_prompt=True)
            proposed = self._proposed(stages, reader, constants, len(choice.pages))
        self.engine.set_schedule(schedule)
        with self._stage("held-out run"):
            checked = stages.held_out(self.engine, held_out, self.eos_token_ids, step=rounds)
        with self._stage("page sizes"):
            sweep = stages.sweep(reader, intensity=self.intensity, samples=self.samples)
        return Calibration(
            schedule=schedule,
            choice=choice,
            chosen=chosen,
            constants=constants,
            proposed=proposed,
            floors=floors,
            repetition=mean_repetition(sampled, self.settings.repeat_ngram),
            rounds=rounds,
            held_out=checked,
            predicted_speedup=self._speedup(schedule, prompts),
            sweep=sweep,
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
        )

    def _bins(self, prompts: Sequence[Prompt]) -> Bins:
        longest = max(len(prompt.token_ids) for prompt in prompts) + self.settings.max_new_tokens
        page_size, width = self.actor.page_size, self.settings.bin_tokens
        return Bins(page_size, width, -(-longest // page_size) * page_size // width + 1)

    def _sample(self, prompts: Sequence[Prompt], actor: BudgetSchedule, step: int) -> list[Trace]:
        self.engine.set_schedule(actor)
        with self._stage(f"sampling, round {step}"):
            return sample_traces(
                self.engine,
                prompts,
                samples=self.settings.samples,
                max_new_tokens=self.settings.max_new_tokens,
                temperature=self.settings.temperature,
                seed=self.seed,
                eos_token_ids=self.eos_token_ids,
                step=step,
            )

    def _reader(self, traces: Sequence[Trace], bins: Bins) -> TeacherForced:
        forward = SegmentForward(self.model, get_page_score(self.page_score))
        return TeacherForced(forward, traces, self.actor, bins, self.settings.temperature)

    def _floors(self, stages: Stages, reader: TeacherForced) -> dict[str, Curve]:
        with self._stage("dense passes"):
            floors = {name: stages.curve(tail) for name, tail in stages.floors(reader).items()}
        least = min((e.value for e in floors[self.settings.estimator] if e is not None), default=float("nan"))
        if least < self.settings.tau - FLOOR_ROUNDING:
            raise ValueError(
                f"calibration.tau={self.settings.tau} of estimator {self.settings.estimator!r} is out of reach: dense "
                f"against dense it reads {least:.3f}; allowed: a smaller tau, or estimator=exact, which reads 1"
            )
        return floors

    def _proposed(
        self, stages: Stages, reader: TeacherForced, constants: Mapping[int, Curve], num_bins: int
    ) -> dict[float, tuple[tuple[int, ...], Curve]]:
        found = {}
        for tau in sorted({*self.settings.other_taus, self.settings.tau}):
            path = propose_from_constants(constants, tau, num_bins)
            found[tau] = (path, stages.along(reader, path))
        return found

    def _schedule(
        self, choice: Choice, stages: Stages, traces: Sequence[Trace], prompts: Sequence[Prompt], actor: BudgetSchedule
    ) -> BudgetSchedule:
        settings, bins = self.settings, stages.bins
        covering = [bins.pages(index) for index in range(len(choice.pages))]
        covering[-1] = self.engine.context // bins.page_size
        pages = [
            max(covering[index] - self.actor.reserved, 0) if taken == ALL_PAGES else taken
            for index, taken in enumerate(choice.pages)
        ]
        rows = [prompt.row for prompt in prompts]
        provenance = {
            **self.origin,
            "date": date.today().isoformat(),
            "quantile": settings.quantile,
            "interval": f"lower end of a {settings.level:g} bootstrap interval over {len(prompts)} prompts",
            "grid": list(settings.grid),
            "actor": actor.provenance if actor is self.actor else list(actor.table),
            "page_score": self.page_score,
            "temperature": settings.temperature,
            "max_new_tokens": settings.max_new_tokens,
            "eos_suppressed": settings.suppress_eos,
            "repetition": round(mean_repetition(traces, settings.repeat_ngram), 4),
            "measured_up_to": (len(choice.pages)) * bins.bin_tokens,
            "prompts": [_name_of(row) for row in rows],
        }
        return self.actor.replace(
            pages=pages,
            bin_tokens=bins.bin_tokens,
            tau=settings.tau,
            estimator=settings.estimator,
            provenance=provenance,
        )

    def _speedup(self, schedule: BudgetSchedule, prompts: Sequence[Prompt]) -> float:
        return speedup(
            shape_of(self.model),
            schedule,
            samples=self.samples,
            prompt_len=round(sum(len(prompt.token_ids) for prompt in prompts) / len(prompts)),
            response_len=self.settings.max_new_tokens,
            intensity=self.intensity,
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started, worked = time.perf_counter(), time.process_time()
        yield
        wall, cpu = time.perf_counter() - started, time.process_time() - worked
        self.seconds[name] = self.seconds.get(name, 0.0) + wall
        self.cpu_seconds += cpu
        self.say(f"{name}: {wall:.0f} s, {cpu:.0f} s of CPU")


def _name_of(row: PromptRow) -> str:
    """A prompt as provenance names it: its set, split and index."""
    held = row.extra_info
    return f"{held.get('set', row.data_source)}:{held.get('split')}:{held.get('index')}"
