"""What a call draws at each position, and what it keeps of it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparrow.rollout.decoder import Decoder
from sparrow.rollout.sampler import Sampled, SamplingParams, sample


@dataclass(frozen=True)
class Draw:
    """How the tokens of one call are drawn and what is recorded of each. Equal ones give equal fields.

    Attributes:
        sampling: temperature and filters.
        topk: C, candidates recorded; 0: none.
        hidden: whether final hidden states are recorded.
        page_sets: (L_sparse, K, M) of the recorded page sets, M the words of the longest possible sequence; None: not
            recorded.
    """

    sampling: SamplingParams
    topk: int
    hidden: bool
    page_sets: tuple[int, int, int] | None

    def fields(
        self, decoder: Decoder, hidden_BE: Tensor, uniform_B: Tensor, page_bits: list[Tensor] | None
    ) -> dict[str, Tensor]:
        """Draw a token per row; what is kept, [B, ...] by name, on the device.

        Args:
            decoder: its head makes the logits.
            hidden_BE: [B, E] final hidden states.
            uniform_B: [B] float64 random numbers.
            page_bits: one [B, K, M'] int32 tensor per sparse layer; None or empty for the prefill, whose sets are zero.
        """
        drawn = sample(decoder.logits(hidden_BE), uniform_B, self.sampling, self.topk)
        return self.kept(drawn, hidden_BE, page_bits)

    def kept(self, drawn: Sampled, hidden_BE: Tensor, page_bits: list[Tensor] | None) -> dict[str, Tensor]:
        """What is kept of rows that are drawn already."""
        fields = {"token": drawn.token_B, "logprob": drawn.logprob_B}
        if drawn.topk_ids_BC is not None and drawn.topk_logprobs_BC is not None:
            fields |= {"topk_ids": drawn.topk_ids_BC, "topk_logprobs": drawn.topk_logprobs_BC}
        if self.hidden:
            fields["hidden"] = hidden_BE
        if self.page_sets is not None:
            fields["page_sets"] = _stacked(page_bits, (len(hidden_BE), *self.page_sets), hidden_BE.device)
        return fields


def _stacked(page_bits: list[Tensor] | None, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """[B, L_sparse, K, M]; the words behind those at hand are zero."""
    stacked = torch.zeros(shape, dtype=torch.int32, device=device)
    if page_bits:
        bits = torch.stack(page_bits, dim=1)
        words = min(bits.shape[-1], shape[-1])  # a step may be laid out for longer sequences than the call has
        stacked[..., :words] = bits[..., :words]
    return stacked
