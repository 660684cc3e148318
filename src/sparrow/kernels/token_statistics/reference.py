"""Reference of `token_statistics`: all logits at once. The operator's docstring holds the definition.

Plain torch, any device, differentiable by autograd; memory grows with X * V, so it is for tests.
"""

import torch
from torch import Tensor

from sparrow.kernels.checks import accumulation_dtype
from sparrow.kernels.token_statistics.types import TOP20, Request, TokenStatistics, bounds, overlap_top20


def token_statistics(hidden_XE: Tensor, head_VE: Tensor, request: Request) -> TokenStatistics:
    """Computes every statistic from the full [X, V] table of log-probs."""
    logprobs_XV, logsumexp_X = _log_softmax(hidden_XE, head_VE, request.temperature)
    plogp_XV = torch.where(logprobs_XV == -torch.inf, 0, logprobs_XV.exp() * logprobs_XV)
    frozen_XV = logprobs_XV.detach()
    topk_ids = topk_logprobs = alpha_X = low_X = high_X = top20_X = None
    if request.topk:
        topk_logprobs, topk_ids = frozen_XV.topk(min(request.topk, frozen_XV.shape[1]))
    if request.candidate_ids_XC is not None and request.candidate_logprobs_XC is not None:
        absent_XC = request.candidate_ids_XC < 0
        own_XC = frozen_XV.gather(1, request.candidate_ids_XC.long().clamp(min=0))
        recorded_XC = request.candidate_logprobs_XC.to(own_XC.dtype)
        low_X, high_X = bounds(*(x.masked_fill(absent_XC, -torch.inf) for x in (own_XC, recorded_XC)))
    if request.other_hidden_XE is not None:
        other_XV = _log_softmax(request.other_hidden_XE, head_VE, request.temperature)[0].detach()
        alpha_X = torch.minimum(frozen_XV, other_XV).exp().sum(dim=1)
        best, other_best = (x.topk(min(TOP20, x.shape[1])) for x in (frozen_XV, other_XV))
        top20_X = overlap_top20(best.indices, best.values, other_best.indices, other_best.values)
    return TokenStatistics(
        logprobs_X=logprobs_XV.gather(1, request.token_X.long().unsqueeze(1)).squeeze(1),
        entropy_X=-plogp_XV.sum(dim=1),
        logsumexp_X=logsumexp_X.detach(),
        topk_ids=topk_ids,
        topk_logprobs=topk_logprobs,
        alpha_X=alpha_X,
        alpha_low_X=low_X,
        alpha_high_X=high_X,
        alpha_top20_X=top20_X,
    )


def _log_softmax(hidden_XE: Tensor, head_VE: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    dtype = accumulation_dtype(hidden_XE)
    logits_XV = hidden_XE.to(dtype) @ head_VE.to(dtype).T / temperature
    logsumexp_X = logits_XV.logsumexp(dim=1)
    return logits_XV - logsumexp_X.unsqueeze(1), logsumexp_X
