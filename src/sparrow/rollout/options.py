"""Checks of an engine's own arguments, and how they and the device decide the pace of its rollouts."""

from dataclasses import dataclass

from sparrow.kernels import PageScore
from sparrow.kernels.page_score import has_kernels

POLL_EVERY = 8
"""Decode steps between two looks of the host on a GPU, unless it is told otherwise."""


def check_options(
    *,
    max_batch: int,
    topk: int,
    draft_tokens: int,
    prefill_tokens: int,
    max_cached_tokens: int | None,
    reserve: float,
) -> None:
    """Check numbers of `sparrow.rollout.RolloutEngine` that need no model.

    Raises:
        ValueError: one is out of range; the message names it, its value and what is allowed.
    """
    for key, value, least in (
        ("max_batch", max_batch, 1),
        ("topk", topk, 0),
        ("draft_tokens", draft_tokens, 0),
        ("prefill_tokens", prefill_tokens, 1),
    ):
        if value < least:
            raise ValueError(f"{key}={value}: must be {least} or more")
    if max_cached_tokens is not None and max_cached_tokens < 1:
        raise ValueError(f"max_cached_tokens={max_cached_tokens}: must be 1 or more, or None")
    if not 0.0 <= reserve <= 1.0:
        raise ValueError(f"reserve={reserve}: must be from 0 to 1")


@dataclass(frozen=True)
class Pace:
    """How often the host looks at running sequences, and whether CUDA graphs hold the steps in between.

    Attributes:
        poll_every: decode steps between two looks; None: 8 on a GPU, 1 elsewhere.
        graphs: None: on a GPU, with a page score that has kernels.

    Raises:
        ValueError: ``poll_every`` is below 1.
    """

    poll_every: int | None
    graphs: bool | None

    def __post_init__(self) -> None:
        if self.poll_every is not None and self.poll_every < 1:
            raise ValueError(f"poll_every={self.poll_every}: must be 1 or more, or None")

    def resolve(self, device: str, score: PageScore, draft_tokens: int) -> tuple[int, bool]:
        """Steps between two looks, and whether they are captured.

        Args:
            device: type of device that the model is on.
            score: how pages are ranked.
            draft_tokens: tokens of a draft; a draft is checked by the host, so there it looks at every step.

        Raises:
            ValueError: graphs or blocks are asked for where there can be none; the message says why.
        """
        if draft_tokens and (self.graphs or (self.poll_every or 1) > 1):
            raise ValueError(
                f"draft_tokens={draft_tokens}: the host checks every draft, so poll_every must be 1 or None (it is "
                f"{self.poll_every}) and graphs False or None (it is {self.graphs})"
            )
        if self.graphs and device != "cuda":
            raise ValueError(
                f"graphs=True: the model is on {device}, CUDA graphs need a CUDA device; must be False or None"
            )
        if self.graphs and not has_kernels(score):
            raise ValueError(
                f"graphs=True: page score {score.name!r} runs by its torch formulas, which ask the host: no graph can "
                "hold them; must be False or None, or the score mean or minmax"
            )
        on_gpu = device == "cuda" and not draft_tokens
        captured = on_gpu and has_kernels(score) if self.graphs is None else self.graphs
        return self.poll_every or (POLL_EVERY if on_gpu else 1), captured
