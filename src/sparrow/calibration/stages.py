"""The stages of a calibration: sample with an actor, read under budgets, choose, and run under the schedule itself."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparrow.calibration.agreement import Alphas, agreement
from sparrow.calibration.choose import Choice, Path, choose_bin_by_bin
from sparrow.calibration.predict import shape_of, speedup
from sparrow.calibration.readings import Bins, TeacherForced
from sparrow.calibration.results import Curve, HeldOut, SweepPoint
from sparrow.calibration.segment import SegmentForward
from sparrow.calibration.settings import CalibrationSettings
from sparrow.calibration.traces import EndlessEngine, Trace, mean_repetition, sample_traces
from sparrow.data import Prompt
from sparrow.evaluation.intervals import Estimate
from sparrow.evaluation.prompt_tail import PromptTail, quantile_of
from sparrow.modules.passes import dense_pass, head_weight, hidden_states
from sparrow.schedule import ALL_PAGES, ESTIMATORS


class Stages:
    """Reads alpha off traces by the settings' rules.

    Args:
        settings: the numbers.
        bins: length bins.
        seed: of sampling and of the bootstrap.
    """

    def __init__(self, settings: CalibrationSettings, bins: Bins, seed: int) -> None:
        self.settings, self.bins, self.seed = settings, bins, seed

    def curve(self, tail: PromptTail) -> Curve:
        """The statistic of every filled bin with its interval."""
        return [self.estimate(tail, index) for index in range(self.bins.num_bins)]

    def estimate(self, tail: PromptTail, index: int) -> Estimate | None:
        """The statistic of a bin; None where it is not filled."""
        if not tail.filled(self.settings.filled)[index]:
            return None
        return tail.interval(
            index,
            quantile_of(self.settings.quantile),
            level=self.settings.level,
            resamples=self.settings.resamples,
            seed=self.seed,
        )

    def empty(self, prompts: int | None = None) -> PromptTail:
        """A tail of as many prompts as there are, in these bins."""
        return PromptTail(prompts or self.settings.prompts, self.bins.bin_tokens, self.bins.num_bins)

    def constants(self, reader: TeacherForced) -> dict[int, PromptTail]:
        """Alpha under every budget of the grid held from start to end, on the first ``grid_prompts``."""
        grid, estimator = self.settings.grid, self.settings.estimator
        tails = {pages: self.empty() for pages in grid}
        for trace in self._grid_traces(reader):
            for index in range(self.bins.num_bins):
                found = reader.alphas(trace, [(pages,) * (index + 1) for pages in grid])
                for pages, alphas in zip(grid, found, strict=True):
                    _add(tails[pages], reader, trace, index, alphas[estimator])
            reader.keep_only([], [trace])
        return tails

    def floors(self, reader: TeacherForced) -> dict[str, PromptTail]:
        """Every estimator of the dense policy against itself: what it would read if nothing were wrong."""
        dense = (ALL_PAGES,) * self.bins.num_bins
        tails = {estimator: self.empty() for estimator in ESTIMATORS}
        for trace in self._grid_traces(reader):
            for index in range(self.bins.num_bins):
                (alphas,) = reader.alphas(trace, [dense[: index + 1]])
                for estimator, tail in tails.items():
                    _add(tail, reader, trace, index, alphas[estimator])
        return tails

    def choose(self, reader: TeacherForced) -> Choice:
        """The cheapest schedule, bin by bin, on all traces."""

        def read(path: Path) -> Estimate | None:
            index, tail = len(path) - 1, self.empty()
            reader.keep_only([path[:-1]])
            for trace in range(len(reader.traces)):
                if len(reader.positions(trace, index)):
                    (alphas,) = reader.alphas(trace, [path])
                    _add(tail, reader, trace, index, alphas[self.settings.estimator])
            return self.estimate(tail, index)

        return choose_bin_by_bin(read, self.settings.grid, self.bins.num_bins, self.settings.tau)

    def along(self, reader: TeacherForced, path: Path, *, every_prompt: bool = False) -> Curve:
        """The tail under a schedule, on the traces of the grid or on all; later bins keep its last budget."""
        path = path + path[-1:] * (self.bins.num_bins - len(path))
        tail = self.empty()
        for trace in range(len(reader.traces)) if every_prompt else self._grid_traces(reader):
            reader.keep_only([path], [trace])
            for index in range(self.bins.num_bins):
                (alphas,) = reader.alphas(trace, [path[: index + 1]])
                _add(tail, reader, trace, index, alphas[self.settings.estimator])
            reader.keep_only([], [trace])
        return self.curve(tail)

    def held_out(
        self, engine: EndlessEngine, prompts: Sequence[Prompt], eos_token_ids: Sequence[int], step: int
    ) -> HeldOut:
        """Sample under the engine's schedule and compare what was recorded with the trainer's dense pass."""
        settings = self.settings
        traces = sample_traces(
            engine,
            prompts,
            samples=settings.samples,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            seed=self.seed,
            eos_token_ids=eos_token_ids,
            step=step,
            record=("hidden",),
        )
        tails = {estimator: self.empty(len(prompts)) for estimator in ESTIMATORS}
        for trace in traces:
            alphas = recorded_alphas(engine.model, trace, settings.temperature)
            position_X = self.bins.position(trace.prompt_len, len(trace.tokens_T) - 1)
            for estimator, tail in tails.items():
                tail.add(trace.prompt, alphas[estimator], position_X)
        assert engine.last_stats is not None
        read_X = torch.cat([trace.pages_read for trace in traces if trace.pages_read is not None])
        return HeldOut(
            tails,
            self.gap(engine, traces[0]),
            float(read_X.double().mean()),
            engine.last_stats.kv_fraction,
            mean_repetition(traces, settings.repeat_ngram),
            sum(len(trace.response) for trace in traces),
            sum(trace.stopped for trace in traces) / len(traces),
        )

    def gap(self, engine: EndlessEngine, trace: Trace) -> float:
        """Mean |alpha recorded while sampling - alpha by teacher forcing| of a trace under the engine's schedule.

        The calibration rests on teacher forcing being what the actor does; they differ by rounding, which may also
        swap pages of nearly equal score.
        """
        reader = TeacherForced(
            SegmentForward(engine.model, engine.score), [trace], engine.schedule, self.bins, self.settings.temperature
        )
        table = engine.schedule.table
        path = table + table[-1:] * (self.bins.num_bins - len(table))
        parts = [reader.alphas(0, [path[: index + 1]])[0]["exact"] for index in range(self.bins.num_bins)]
        recorded = recorded_alphas(engine.model, trace, self.settings.temperature)["exact"]
        return float((torch.cat(parts) - recorded).abs().mean())

    def sweep(self, reader: TeacherForced, *, intensity: float, samples: int) -> list[SweepPoint]:
        """Constant budgets of equal tokens at every page size, on the first prompts of the sweep."""
        swept, model = self.settings.sweep, reader.forward.model
        prompt_len = round(sum(trace.prompt_len for trace in reader.traces) / len(reader.traces))
        points = []
        for page_size in swept.page_sizes:
            for tokens in swept.tokens:
                pages = tokens // page_size - reader.geometry.reserved
                if pages < 1:
                    continue
                geometry = reader.geometry.replace(page_size=page_size, pages=[pages])
                gain = speedup(
                    shape_of(model),
                    geometry,
                    samples=samples,
                    prompt_len=prompt_len,
                    response_len=self.settings.max_new_tokens,
                    intensity=intensity,
                )
                tail = self._constant(reader.under(geometry), pages, swept.prompts)
                values = [estimate.value for estimate in self.curve(tail) if estimate is not None]
                points.append(SweepPoint(page_size, tokens, min(values, default=float("nan")), gain))
        return points

    def _constant(self, reader: TeacherForced, pages: int, prompts: int) -> PromptTail:
        tail = self.empty()
        for trace in [place for place, held in enumerate(reader.traces) if held.prompt < prompts]:
            for index in range(self.bins.num_bins):
                (alphas,) = reader.alphas(trace, [(pages,) * (index + 1)])
                _add(tail, reader, trace, index, alphas[self.settings.estimator])
            reader.keep_only([], [trace])
        return tail

    def _grid_traces(self, reader: TeacherForced) -> list[int]:
        prompts = self.settings.grid_prompts or self.settings.prompts
        return [place for place, trace in enumerate(reader.traces) if trace.prompt < prompts]


@torch.no_grad()
def recorded_alphas(model: nn.Module, trace: Trace, temperature: float) -> Alphas:
    """Alpha of a trace's decoded tokens from the states that the actor recorded, against the trainer's dense pass."""
    assert trace.hidden_XE is not None
    with dense_pass(model):
        head_VE = head_weight(model)
        dense_TE = hidden_states(model, trace.tokens_T[None].to(head_VE.device))[0]
    (alphas,) = agreement(dense_TE[trace.prompt_len : -1], [trace.hidden_XE[1:].to(dense_TE)], head_VE, temperature)
    return alphas


def _add(tail: PromptTail, reader: TeacherForced, trace: int, index: int, alpha_X: Tensor) -> None:
    tail.add(reader.traces[trace].prompt, alpha_X, reader.positions(trace, index))
