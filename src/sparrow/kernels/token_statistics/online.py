"""Reductions over the vocabulary that are fed one chunk of logits at a time."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class OnlineSoftmax:
    """Log-sum-exp and entropy of rows of logits (Milakov and Gimelshein, arXiv 1805.02867, with one more sum).

    With m the running maximum, s = sum exp(x - m) and w = sum exp(x - m) (x - m):
    logsumexp = m + log s and entropy = log s - w / s.
    """

    max_X: Tensor
    sum_X: Tensor
    weighted_X: Tensor

    @classmethod
    def empty(cls, rows: int, dtype: torch.dtype, device: torch.device) -> "OnlineSoftmax":
        """The state before the first chunk."""
        zeros = torch.zeros(rows, dtype=dtype, device=device)
        # A finite floor instead of -inf: a chunk of nothing but -inf logits must not give inf - inf.
        return cls(torch.full_like(zeros, torch.finfo(dtype).min / 4), zeros, zeros)

    def update(self, logits_XV: Tensor) -> None:
        """Adds a chunk of logits."""
        new_max_X = torch.maximum(self.max_X, logits_XV.amax(dim=1))
        step_X = self.max_X - new_max_X
        factor_X = step_X.exp()
        shifted_XV = logits_XV - new_max_X.unsqueeze(1)
        weight_XV = shifted_XV.exp()
        # 0 * -inf is NaN, but an impossible token adds nothing to the entropy.
        product_XV = shifted_XV.mul_(weight_XV).masked_fill_(weight_XV == 0, 0)
        self.weighted_X = factor_X * (self.weighted_X + step_X * self.sum_X) + product_XV.sum(dim=1)
        self.sum_X = factor_X * self.sum_X + weight_XV.sum(dim=1)
        self.max_X = new_max_X

    def logsumexp(self) -> Tensor:
        """[X], after the last chunk."""
        return self.max_X + self.sum_X.log()

    def entropy(self) -> Tensor:
        """[X] in nats, after the last chunk."""
        return self.sum_X.log() - self.weighted_X / self.sum_X


@dataclass
class OnlineTopK:
    """The k largest logits of each row and their ids, best first."""

    k: int
    values_XK: Tensor | None = None
    ids_XK: Tensor | None = None

    def update(self, logits_XV: Tensor, start: int) -> None:
        """Adds a chunk of logits whose first column is id `start`."""
        values, ids = logits_XV.topk(min(self.k, logits_XV.shape[1]), dim=1)
        ids = ids + start
        if self.values_XK is not None and self.ids_XK is not None:
            merged_values = torch.cat((self.values_XK, values), dim=1)
            merged_ids = torch.cat((self.ids_XK, ids), dim=1)
            values, place = merged_values.topk(min(self.k, merged_values.shape[1]), dim=1)
            ids = merged_ids.gather(1, place)
        self.values_XK, self.ids_XK = values, ids

    def result(self, logsumexp_X: Tensor) -> tuple[Tensor, Tensor]:
        """(ids, log-probs), after the last chunk."""
        assert self.values_XK is not None
        assert self.ids_XK is not None
        return self.ids_XK, self.values_XK - logsumexp_X.unsqueeze(1)


@dataclass
class OnlineGather:
    """The logits at given ids; -inf at negative ids, NaN at ids that no chunk holds."""

    ids_XC: Tensor
    values_XC: Tensor

    @classmethod
    def empty(cls, ids_XC: Tensor, dtype: torch.dtype) -> "OnlineGather":
        """The state before the first chunk."""
        values_XC = torch.full(ids_XC.shape, torch.nan, dtype=dtype, device=ids_XC.device)
        return cls(ids_XC.long(), values_XC.masked_fill_(ids_XC < 0, -torch.inf))

    def update(self, logits_XV: Tensor, start: int) -> None:
        """Adds a chunk of logits whose first column is id `start`."""
        local_XC = self.ids_XC - start
        inside_XC = (local_XC >= 0) & (local_XC < logits_XV.shape[1]) & (self.ids_XC >= 0)
        found_XC = logits_XV.gather(1, local_XC.clamp(0, logits_XV.shape[1] - 1))
        self.values_XC = torch.where(inside_XC, found_XC, self.values_XC)
