"""Samples a policy on problems and judges every completion.

Draws depend on (seed, problem, sample, position) alone: no global random state is read or written, so an evaluation
during training leaves the training stream as it is, and dense and sparse see the same random numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sparrow.data import Prompt
from sparrow.evaluation.reading import Decoder, read_samples
from sparrow.evaluation.settings import EvaluationSettings
from sparrow.rewards import Label, Outcome, Sample, Scorer, reward_row
from sparrow.rollout import Completion, RolloutEngine


@dataclass(frozen=True)
class Judged:
    """One sample.

    Attributes:
        label: the outcome; "correct" is what counts.
        score: the reward.
        tokens: length of the completion.
        truncated: cut by the length limit.
        answer: what it votes for, or None.
    """

    label: Label
    score: float
    tokens: int
    truncated: bool
    answer: str | None

    @property
    def correct(self) -> bool:
        """Whether it is right."""
        return self.label == "correct"


@dataclass(frozen=True)
class Problem:
    """One problem with its samples.

    Attributes:
        key: the prompt's key.
        data_source: its set.
        index: the row's own index, if it has one.
        samples: in the order drawn.
    """

    key: int
    data_source: str
    index: int | str | None
    samples: tuple[Judged, ...]


def evaluate(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    tokenizer: Decoder,
    scorer: Scorer,
    settings: EvaluationSettings,
    *,
    eos_token_ids: Sequence[int],
    adapter: bool = False,
) -> list[Problem]:
    """Samples and judges every problem.

    Args:
        engine: decodes; its schedule decides whether densely.
        prompts: the problems.
        tokenizer: reads completions.
        scorer: judges them.
        settings: how to sample.
        eos_token_ids: ids that end a completion.
        adapter: whether the LoRA adapter takes part.

    Returns:
        The problems in the order of the prompts.
    """
    found: list[Problem] = []
    for start in range(0, len(prompts), settings.problems_at_once):
        part = prompts[start : start + settings.problems_at_once]
        completions = _sample(engine, part, tokenizer, settings, tuple(eos_token_ids), adapter)
        samples = read_samples(part, completions, tokenizer)
        outcomes = scorer.score(samples)
        judged = [_judged(scorer, *parts) for parts in zip(samples, completions, outcomes, strict=True)]
        for place, prompt in enumerate(part):
            own = tuple(judged[place * settings.samples : (place + 1) * settings.samples])
            found.append(Problem(prompt.key, prompt.row.data_source, prompt.row.extra_info.get("index"), own))
    return found


def _sample(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    tokenizer: Decoder,
    settings: EvaluationSettings,
    eos: tuple[int, ...],
    adapter: bool,
) -> list[Completion]:
    return engine.generate(
        [prompt.token_ids for prompt in prompts],
        n=settings.samples,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        seed=settings.seed,
        prompt_keys=[prompt.key for prompt in prompts],
        eos_token_ids=eos,
        adapter=adapter,
        stop=tuple(settings.stop),
        tokenizer=tokenizer,
    )


def _judged(scorer: Scorer, sample: Sample, completion: Completion, outcome: Outcome) -> Judged:
    truncated = completion.finish_reason == "length"
    answer = None
    if outcome.label in ("correct", "wrong"):
        answer = scorer.reward_of(sample.row).answer(sample.completion, reward_row(sample.row))
    return Judged(outcome.label, outcome.score, len(completion.token_ids), truncated, answer)
