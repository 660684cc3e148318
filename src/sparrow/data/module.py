"""The LightningDataModule: rows of a source, tokenised, handed out rank by rank by loaders that resume exactly."""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import lightning

from sparrow.data.loader import Batch, EvaluationLoader, PromptLoader, refuse_other_layout
from sparrow.data.prompts import PromptCounts, Template, Tokenizer, make_prompts
from sparrow.data.schema import Prompt, PromptRow

logger = logging.getLogger(__name__)


class Source(Protocol):
    """Where rows come from. Both lists must be the same in every process."""

    def train_rows(self) -> Sequence[PromptRow]:
        """The training problems."""
        ...

    def validation_rows(self) -> Sequence[PromptRow]:
        """The held-out problems; may be empty."""
        ...


class PromptDataModule(lightning.LightningDataModule):
    """Prompts for training and validation; a batch is {"prompts": list[Prompt]}.

    Args:
        source: gives the rows.
        tokenizer: the policy's.
        prompts_per_step: prompts of one RL step, over all ranks.
        seed: of the training order.
        validation_prompts_per_step: prompts of one validation batch, over all ranks; None takes `prompts_per_step`.
        template: "chat" or "plain", see `make_prompts`.
        enable_thinking: the template's thinking mode; None leaves its default.
        max_prompt_tokens: longest prompt kept, in tokens; None keeps all.
        max_validation_prompts: take only the first ones; None takes all.

    Raises:
        ValueError: if a number is below 1; names it.
    """

    def __init__(
        self,
        source: Source,
        tokenizer: Tokenizer,
        prompts_per_step: int,
        seed: int,
        *,
        validation_prompts_per_step: int | None = None,
        template: Template = "chat",
        enable_thinking: bool | None = None,
        max_prompt_tokens: int | None = None,
        max_validation_prompts: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in (
            ("prompts_per_step", prompts_per_step),
            ("validation_prompts_per_step", validation_prompts_per_step),
            ("max_prompt_tokens", max_prompt_tokens),
            ("max_validation_prompts", max_validation_prompts),
        ):
            if value is not None and value < 1:
                raise ValueError(f"data.{name}={value} is not allowed; allowed: 1 or more")
        self.source = source
        self.tokenizer = tokenizer
        self.prompts_per_step = prompts_per_step
        self.seed = seed
        self.validation_prompts_per_step = validation_prompts_per_step or prompts_per_step
        self.template: Template = template
        self.enable_thinking = enable_thinking
        self.max_prompt_tokens = max_prompt_tokens
        self.max_validation_prompts = max_validation_prompts
        self.train_prompts: list[Prompt] = []
        self.validation_prompts: list[Prompt] = []
        self.counts: dict[str, PromptCounts] = {}

    def setup(self, stage: str | None = None) -> None:
        """Reads and tokenises what the stage needs; a second call reads nothing again."""
        if stage in (None, "fit") and not self.train_prompts:
            rows = self.source.train_rows()
            if not rows and stage == "fit":
                raise ValueError("data.source has no training rows; allowed for training: a source with at least one")
            self.train_prompts = self._make("train", rows) if rows else []
        if not self.validation_prompts:
            rows = self.source.validation_rows()[: self.max_validation_prompts]
            self.validation_prompts = self._make("validation", rows) if rows else []

    def train_dataloader(self) -> PromptLoader:
        """This rank's training batches."""
        rank, world_size = self._place()
        return PromptLoader(self.train_prompts, self.prompts_per_step, self.seed, rank, world_size)

    def val_dataloader(self) -> EvaluationLoader | list[Batch]:
        """This rank's validation batches; an empty list without held-out rows."""
        if not self.validation_prompts:
            return []
        rank, world_size = self._place()
        return EvaluationLoader(self.validation_prompts, self.validation_prompts_per_step, rank, world_size)

    def state_dict(self) -> dict[str, Any]:
        """What the order depends on. Lightning restores a loader only inside an epoch; this serves at its end."""
        return {"seed": self.seed, **self._layout()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the seed of the checkpoint.

        Raises:
            ValueError: if world size or batch size differ from the saved ones; names both.
        """
        refuse_other_layout(state_dict, self._layout())
        self.seed = state_dict["seed"]

    def _layout(self) -> dict[str, int]:
        return {"world_size": self._place()[1], "prompts_per_step": self.prompts_per_step}

    def _place(self) -> tuple[int, int]:
        if self.trainer is None:
            return 0, 1
        return self.trainer.global_rank, self.trainer.world_size

    def _make(self, split: str, rows: Sequence[PromptRow]) -> list[Prompt]:
        prompts, counts = make_prompts(
            rows,
            self.tokenizer,
            template=self.template,
            enable_thinking=self.enable_thinking,
            max_prompt_tokens=self.max_prompt_tokens,
        )
        self.counts[split] = counts
        if self._place()[0] == 0:
            logger.info("%s prompts: %s", split, counts)
        return prompts
