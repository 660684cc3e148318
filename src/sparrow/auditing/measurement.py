"""Sequences of an actor and everything the dense policy says of their tokens, from one chunked pass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sparrow.auditing.settings import AuditSettings
from sparrow.data import Prompt
from sparrow.evaluation.prompt_tail import PromptTail
from sparrow.kernels import token_statistics
from sparrow.modules import Experience, collect_unjudged
from sparrow.modules.microbatches import microbatches
from sparrow.modules.passes import dense_pass, head_weight, hidden_states, predicting
from sparrow.modules.scoring import scatter
from sparrow.rollout import Completion, RolloutEngine

SHOWN = 3
"""Likeliest tokens of either side that are kept for showing."""

READINGS = ("exact", "bounds", "bounds_high", "top20")
"""Estimators side by side; ``bounds`` is the lower one, as a threshold of that name means it."""


@dataclass(frozen=True)
class Measured:
    """An actor against the dense policy; per-token values stand at the index of the predicted token, [B, T].

    Attributes:
        experience: the sequences; rewards and advantages are those of the caller.
        alphas: estimator -> [B, T].
        dense_logprobs_BT: of the sampled token under the dense policy.
        entropy_BT: of the dense policy, nats.
        dense_ids: [B, T, 3] likeliest tokens of the dense policy.
        dense_top: [B, T, 3] their log-probs.
        sparse_ids: the same of the actor.
        sparse_top: the same of the actor.
    """

    experience: Experience
    alphas: dict[str, Tensor]
    dense_logprobs_BT: Tensor
    entropy_BT: Tensor
    dense_ids: Tensor
    dense_top: Tensor
    sparse_ids: Tensor
    sparse_top: Tensor

    def tail(self, estimator: str, page_size: int, bin_tokens: int, num_bins: int) -> PromptTail:
        """Alpha of the decoded tokens per prompt and length bin."""
        group_B, decoded_BT = self.experience.group_B, self.experience.decoded_BT
        tail = PromptTail(int(group_B.max()) + 1, bin_tokens, num_bins)
        position_BT = (self.experience.position_BT + page_size - 1) // page_size * page_size
        for row, prompt in enumerate(group_B.tolist()):
            tail.add(prompt, self.alphas[estimator][row][decoded_BT[row]], position_BT[row][decoded_BT[row]])
        return tail

    @property
    def weight_error_max(self) -> float:
        """Largest distance of exp(dense - actor) from 1 over the sampled tokens."""
        mask_BT = self.experience.mask_BT
        gap_X = (self.dense_logprobs_BT - self.experience.sparse_logprobs_BT)[mask_BT].double()
        return float(gap_X.expm1().abs().max())


def sample(
    engine: RolloutEngine, prompts: Sequence[Prompt], settings: AuditSettings, seed: int, eos: Sequence[int]
) -> tuple[list[Completion], float]:
    """All batches of an actor (``prompt_index`` counts within a batch), and tokens read / tokens cached."""
    completions: list[Completion] = []
    read, cached = 0, 0
    for batch in range(settings.batches):
        part = prompts[batch * settings.prompts : (batch + 1) * settings.prompts]
        completions += engine.generate(
            [prompt.token_ids for prompt in part],
            n=settings.samples,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            seed=seed,
            step=batch,
            prompt_keys=[prompt.key for prompt in part],
            eos_token_ids=tuple(eos),
            record=("hidden", "topk"),
        )
        assert engine.last_stats is not None
        read, cached = read + engine.last_stats.tokens_read, cached + engine.last_stats.tokens_cached
    return completions, read / cached if cached else 1.0


def lay_out(prompts: Sequence[Prompt], completions: Sequence[Completion], settings: AuditSettings) -> Experience:
    """Completions of :func:`sample` as one batch, without rewards; groups count through ``prompts``."""
    per_batch = settings.prompts * settings.samples
    numbered = [
        replace(c, prompt_index=c.prompt_index + place // per_batch * settings.prompts)
        for place, c in enumerate(completions)
    ]
    return collect_unjudged([prompt.token_ids for prompt in prompts], numbered)


@torch.no_grad()
def measure(model: nn.Module, experience: Experience, settings: AuditSettings) -> Measured:
    """The dense pass over an actor's sequences, against what the actor recorded (hidden states and top-k)."""
    device, shape = head_weight(model).device, experience.tokens_BT.shape
    assert experience.sparse_topk is not None
    values = {name: torch.zeros(shape) for name in (*READINGS, "logprobs", "entropy")}
    ids, top = torch.zeros(*shape, SHOWN, dtype=torch.long), torch.zeros(*shape, SHOWN)
    with dense_pass(model):
        lengths = experience.length_B.tolist()
        for rows in microbatches(lengths, range(len(experience)), settings.micro_batch_tokens):
            part = experience.select(rows).to(device)
            mask_BT, width = part.mask_BT, part.tokens_BT.shape[1]
            assert part.sparse_hidden is not None
            assert part.sparse_topk is not None
            hidden_XE = predicting(hidden_states(model, part.tokens_BT), mask_BT)
            found = token_statistics(
                hidden_XE,
                head_weight(model),
                part.tokens_BT[mask_BT],
                temperature=settings.temperature,
                topk=SHOWN,
                other_hidden_XE=torch.cat(part.sparse_hidden).to(hidden_XE),
                candidate_ids_XC=torch.cat([ids for ids, _ in part.sparse_topk]).to(device),
                candidate_logprobs_XC=torch.cat([logprobs for _, logprobs in part.sparse_topk]).to(device),
            )
            fields = (found.alpha_X, found.alpha_low_X, found.alpha_high_X, found.alpha_top20_X)
            for name, field in zip(values, (*fields, found.logprobs_X, found.entropy_X), strict=True):
                values[name][rows, :width] = _scattered(field, mask_BT)
            ids[rows, :width] = _scattered_rows(found.topk_ids, mask_BT)
            top[rows, :width] = _scattered_rows(found.topk_logprobs, mask_BT)
    sparse_ids, sparse_top = (
        _scattered_rows(torch.cat([pair[side][:, :SHOWN] for pair in experience.sparse_topk]), experience.mask_BT)
        for side in (0, 1)
    )
    alphas = {name: values[name].clamp(max=1.0) for name in READINGS}
    return Measured(experience, alphas, values["logprobs"], values["entropy"], ids, top, sparse_ids, sparse_top)


def _scattered(values_X: Tensor | None, mask_BT: Tensor) -> Tensor:
    found_BT = scatter(values_X, mask_BT)
    assert found_BT is not None
    return found_BT.cpu()


def _scattered_rows(values: Tensor | None, mask_BT: Tensor) -> Tensor:
    assert values is not None
    laid_out = values.new_zeros(*mask_BT.shape, values.shape[-1])
    laid_out[mask_BT] = values
    return laid_out.cpu()
