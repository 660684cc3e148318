"""What the sparse pass works with: the dense pass's hidden states, kept, and the actor's own, made again."""

from collections.abc import Sized
from typing import cast

import torch
from torch import Tensor, nn

from sparrow.algorithms.distillation import TokenPair
from sparrow.kernels import PageScore
from sparrow.metrics.functional.quantiles import histogram, histogram_quantile, unit_centres, unit_edges
from sparrow.models.attention import SparsePass
from sparrow.modules.experience import Experience
from sparrow.modules.gradients import sum_over_ranks
from sparrow.modules.passes import decoder_body, hidden_states, predicting
from sparrow.rollout import lay_out_page_sets
from sparrow.schedule import BudgetSchedule


class DenseTarget:
    """Dense hidden states of the response tokens of a rollout, by sequence.

    Attributes:
        head_VE: the head they belong to where the current one has moved since, or None.
    """

    def __init__(self) -> None:
        self.head_VE: Tensor | None = None
        self._states: dict[int, Tensor] = {}

    def keep(self, rows: list[int], hidden_XE: Tensor, mask_BT: Tensor) -> None:
        """Keep the states of a micro-batch, without gradient.

        Args:
            rows: its sequences.
            hidden_XE: states that predict the masked tokens.
            mask_BT: its response tokens.
        """
        parts = hidden_XE.detach().split(mask_BT.sum(-1).tolist())
        self._states |= dict(zip(rows, parts, strict=True))

    def pair(
        self, rows: list[int], policy_logprobs_X: Tensor, target_logprobs_X: Tensor, states_XE: Tensor, head_VE: Tensor
    ) -> TokenPair:
        """Both sides of the response tokens of ``rows``; the dense states are None where none were kept."""
        kept_XE = torch.cat([self._states[row] for row in rows]) if self._states else None
        target_head_VE = head_VE if self.head_VE is None else self.head_VE
        return TokenPair(policy_logprobs_X, target_logprobs_X, states_XE, kept_XE, head_VE, target_head_VE)


def sparse_states(
    model: nn.Module, micro: Experience, schedule: BudgetSchedule, score: PageScore, *, replay: bool
) -> Tensor:
    """The actor's states [X, E] that predict the response tokens, under the sparse pass that is active.

    Args:
        model: the policy.
        micro: sequences of the micro-batch.
        schedule: the one that they were sampled under.
        score: the page score that they were sampled with.
        replay: read the recorded page sets.

    Raises:
        ValueError: ``replay`` without recorded page sets.
    """
    sparse = SparsePass(schedule, score, micro.prompt_len_B, micro.length_B)
    if replay and not schedule.is_dense:
        if micro.page_sets is None:
            raise ValueError("distill.replay needs page sets, but the rollout recorded none")
        count = len(cast(Sized, decoder_body(model).layers))
        layers = [i for i in range(count) if i not in schedule.dense_layers]
        sets = lay_out_page_sets(
            micro.page_sets,
            micro.prompt_len_B.tolist(),
            layers,
            page_size=schedule.page_size,
            width=micro.tokens_BT.shape[1],
        )
        on_device = {layer: chosen.to(micro.tokens_BT.device) for layer, chosen in sets.items()}
        sparse = SparsePass(schedule, score, micro.prompt_len_B, micro.length_B, page_sets=on_device)
    return predicting(hidden_states(model, micro.tokens_BT, sparse), micro.mask_BT)


def worst_share_threshold(alpha_BT: Tensor | None, mask_BT: Tensor, share: float) -> float:
    """The 1 - alpha beyond which the worst share of tokens lies, over all ranks; right to 0.00025.

    Raises:
        ValueError: alpha was not measured.
    """
    if alpha_BT is None:
        raise ValueError("the worst share of tokens needs alpha of every token: set rollout.alpha=exact")
    counts = sum_over_ranks(histogram(alpha_BT[mask_BT].clamp(0, 1), unit_edges())[0])
    return 1.0 - float(histogram_quantile(counts, share, unit_centres()))
