"""Exact match on held-out prompts, dense and greedy, before and after training."""

from collections.abc import Sequence

import lightning

from sparrow.data import Prompt, PromptDataModule
from sparrow.distributed import gathered
from sparrow.evaluation.reading import Decoder, read_samples
from sparrow.modules import DensePolicy
from sparrow.rewards import Scorer
from sparrow.rollout import RolloutEngine


def exact_match(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    tokenizer: Decoder,
    scorer: Scorer,
    *,
    max_new_tokens: int,
    eos_token_ids: Sequence[int],
) -> float:
    """Share of prompts whose greedy completion is judged correct.

    Args:
        engine: decodes; its schedule decides whether densely.
        prompts: the problems.
        tokenizer: reads completions.
        scorer: judges them.
        max_new_tokens: longest completion.
        eos_token_ids: ids that end a completion.
    """
    completions = engine.generate(
        [prompt.token_ids for prompt in prompts],
        n=1,
        max_new_tokens=max_new_tokens,
        temperature=0.0,
        seed=0,
        prompt_keys=[prompt.key for prompt in prompts],
        eos_token_ids=tuple(eos_token_ids),
    )
    outcomes = scorer.score(read_samples(prompts, completions, tokenizer))
    return sum(outcome.label == "correct" for outcome in outcomes) / len(outcomes)


class HeldOut(lightning.Callback):
    """Evaluates the dense policy on the validation prompts at the start and the end of a fit.

    Args:
        tokenizer: reads completions.
        scorer: judges them; the answer counts, not partial credit.
        eos_token_ids: ids that end a completion.
        max_batch: sequences decoded at a time.
    """

    def __init__(self, tokenizer: Decoder, scorer: Scorer, eos_token_ids: Sequence[int], max_batch: int = 256) -> None:
        self.tokenizer = tokenizer
        self.scorer = scorer
        self.eos_token_ids = tuple(eos_token_ids)
        self.max_batch = max_batch
        self.before: float | None = None
        self.after: float | None = None

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Evaluate the policy as it was loaded; a resumed run keeps what its checkpoint says."""
        if self.before is None:
            self.before = self._evaluate(trainer, pl_module)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Evaluate the trained policy."""
        self.after = self._evaluate(trainer, pl_module)

    def state_dict(self) -> dict[str, float | None]:
        """What a checkpoint keeps."""
        return {"before": self.before}

    def load_state_dict(self, state_dict: dict[str, float | None]) -> None:
        """Continue from a checkpoint."""
        self.before = state_dict["before"]

    def _evaluate(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> float:
        assert isinstance(module, DensePolicy)
        data = trainer.datamodule  # type: ignore[attr-defined]  # set by fit(datamodule=...), missing in the stubs
        assert isinstance(data, PromptDataModule)
        with gathered(module.model):
            return exact_match(
                RolloutEngine(module.model, None, max_batch=self.max_batch),
                data.validation_prompts,
                self.tokenizer,
                self.scorer,
                max_new_tokens=module.rollout.max_new_tokens,
                eos_token_ids=self.eos_token_ids,
            )
