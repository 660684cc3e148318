"""A causal forward over a piece of a sequence, on the keys of the pieces before it: what lets budgets share work.

A bin's pages change the keys and values that later bins read, so a candidate budget is tried on the cache that the
earlier choices left. Caches are tuples of immutable pieces: a fork costs nothing, and what candidates have in common
is computed once. Positions, page choice and attention are those of decode; only the order of sums differs.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparrow.kernels import PageScore, page_scores, select_pages
from sparrow.models.families import LayerWeights, decoder_weights
from sparrow.schedule import BudgetSchedule, BudgetTable

MASK_ENTRIES = 2**23
"""Entries of an attention mask that exist at a time: 32 MiB in fp32."""


@dataclass(frozen=True)
class Segment:
    """Keys (after RoPE) and values of consecutive tokens, [K, X, D] per layer."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the piece."""
        return self.keys[0].shape[1]


Past = tuple[Segment, ...]


class SegmentForward:
    """The forward; weights are read once, so make a new one after they change.

    Args:
        model: a Qwen3, Qwen2 or Llama causal LM.
        score: how pages are ranked.
        adapter: whether the LoRA adapter takes part.
    """

    def __init__(self, model: nn.Module, score: PageScore, *, adapter: bool = False) -> None:
        self.model, self.weights = model, decoder_weights(model)
        self.score, self.adapter = score, adapter

    @torch.no_grad()
    def extend(self, past: Past, tokens_X: Tensor, prompt_len: int, schedule: BudgetSchedule) -> tuple[Segment, Tensor]:
        """Run the tokens that follow ``past``.

        Args:
            past: pieces of the same sequence, from its start on.
            tokens_X: int64 token ids of the next piece.
            prompt_len: tokens of the prompt; queries in it read every page.
            schedule: budget at each later position.

        Returns:
            The piece to append to ``past``, and its final hidden states [X, E].
        """
        start = sum(segment.tokens for segment in past)
        x_XE = F.embedding(tokens_X, self.weights.embed_VE)
        position_1X = torch.arange(start, start + len(tokens_X), device=tokens_X.device).unsqueeze(0)
        cos_1XD, sin_1XD = self.weights.rotary(x_XE, position_1X)
        rows = _choosing(position_1X[0] + 1, prompt_len, schedule)
        keys, values = [], []
        for index, layer in enumerate(self.weights.layers):
            query_XHD, key_XKD, value_XKD = self._project(layer, x_XE, cos_1XD, sin_1XD)
            keys.append(key_XKD.transpose(0, 1).contiguous())
            values.append(value_XKD.transpose(0, 1).contiguous())
            key_KTD = torch.cat([*(segment.keys[index] for segment in past), keys[-1]], dim=1)
            value_KTD = torch.cat([*(segment.values[index] for segment in past), values[-1]], dim=1)
            sparse = rows is not None and index not in schedule.dense_layers
            chosen_KXN = self._choose(query_XHD, key_KTD, rows, schedule) if rows is not None and sparse else None
            mixed_XHD = self._attend(query_XHD, key_KTD, value_KTD, chosen_KXN, schedule.page_size)
            x_XE = self._finish(layer, x_XE, mixed_XHD)
        return Segment(tuple(keys), tuple(values)), self._norm(x_XE, self.weights.final_norm_E)

    def _project(
        self, layer: LayerWeights, x_XE: Tensor, cos_1XD: Tensor, sin_1XD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        normed_XE = self._norm(x_XE, layer.input_norm_E)
        size = (len(x_XE), -1, self.weights.head_dim)
        query, key, value = (part.apply(normed_XE, self.adapter).view(size) for part in (layer.q, layer.k, layer.v))
        if layer.q_norm_D is not None and layer.k_norm_D is not None:
            query, key = self._norm(query, layer.q_norm_D), self._norm(key, layer.k_norm_D)
        cos_X1D, sin_X1D = cos_1XD[0].unsqueeze(1), sin_1XD[0].unsqueeze(1)
        return _rotate(query, cos_X1D, sin_X1D), _rotate(key, cos_X1D, sin_X1D), value

    def _finish(self, layer: LayerWeights, x_XE: Tensor, mixed_XHD: Tensor) -> Tensor:
        x_XE = x_XE + layer.o.apply(mixed_XHD.flatten(1), self.adapter)
        normed_XE = self._norm(x_XE, layer.post_norm_E)
        inner = layer.activation(layer.gate.apply(normed_XE, self.adapter)) * layer.up.apply(normed_XE, self.adapter)
        return x_XE + layer.down.apply(inner, self.adapter)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.weights.eps)).to(x.dtype)

    def _choose(self, query_XHD: Tensor, key_KTD: Tensor, rows: "_Rows", schedule: BudgetSchedule) -> Tensor:
        """Pages each query may read, bool [K, X, N]; rows that do not choose may read all of them."""
        page_size, (kv_heads, length, head_size) = schedule.page_size, key_KTD.shape
        full, pages = length // page_size, -(-length // page_size)
        paged = key_KTD[:, : full * page_size].reshape(kv_heads, full, page_size, head_size).transpose(0, 1)
        landmarks = self.score.landmarks(paged.reshape(-1, page_size, head_size).float()).to(key_KTD.dtype)
        # The entry of a partly filled last page is never followed; it only has to exist.
        table_N = torch.arange(pages, dtype=torch.int32, device=key_KTD.device).clamp(max=full - 1)
        scores_XKN = page_scores(
            query_XHD[rows.index_X],
            landmarks.view(full, kv_heads, self.score.width, head_size),
            table_N.expand(len(rows.index_X), -1).contiguous(),
            rows.cached_X,
            self.score,
            page_size=page_size,
        )
        listed_XKS, _ = select_pages(
            scores_XKN,
            rows.cached_X,
            rows.budget_X,
            page_size=page_size,
            first=schedule.first,
            last=schedule.last,
            max_pages=rows.capacity,
        )
        # The padding of a list lands in one extra column, which is cut off again.
        slot_XKS = torch.where(listed_XKS < 0, pages, listed_XKS).long()
        read_XKN = torch.zeros(*listed_XKS.shape[:2], pages + 1, dtype=torch.bool, device=key_KTD.device)
        read_XKN.scatter_(-1, slot_XKS, True)
        chosen_XKN = torch.ones(len(query_XHD), kv_heads, pages, dtype=torch.bool, device=key_KTD.device)
        chosen_XKN[rows.index_X] = read_XKN[..., :pages]
        return chosen_XKN.transpose(0, 1)

    def _attend(
        self, query_XHD: Tensor, key_KTD: Tensor, value_KTD: Tensor, chosen_KXN: Tensor | None, page_size: int
    ) -> Tensor:
        """Softmax attention to earlier tokens, of the chosen pages where there is a choice; [X, H, D]."""
        (kv_heads, length, head_size), new = key_KTD.shape, len(query_XHD)
        query_KGXD = query_XHD.view(new, kv_heads, -1, head_size).permute(1, 2, 0, 3)
        group = query_KGXD.shape[1]
        key_T = torch.arange(length, device=key_KTD.device)
        row_X = key_T[length - new :]
        step = max(1, MASK_ENTRIES // (length * (1 if chosen_KXN is None else kv_heads)))
        parts = []
        for begin in range(0, new, step):
            rows = slice(begin, begin + step)
            seen_KXT = (key_T <= row_X[rows, None]).unsqueeze(0)
            if chosen_KXN is not None:
                seen_KXT = seen_KXT & chosen_KXN[:, rows].repeat_interleave(page_size, dim=-1)[..., :length]
            bias_KXT = torch.zeros_like(seen_KXT, dtype=query_XHD.dtype).masked_fill_(~seen_KXT, -torch.inf)
            parts.append(
                F.scaled_dot_product_attention(
                    query_KGXD[:, :, rows],
                    key_KTD.unsqueeze(1).expand(-1, group, -1, -1),
                    value_KTD.unsqueeze(1).expand(-1, group, -1, -1),
                    attn_mask=bias_KXT.unsqueeze(1),
                    scale=self.weights.scale,
                )
            )
        return torch.cat(parts, dim=2).permute(2, 0, 1, 3).reshape(new, -1, head_size)


@dataclass(frozen=True)
class _Rows:
    """Queries of a piece that have more pages than they may read."""

    index_X: Tensor
    cached_X: Tensor
    budget_X: Tensor
    capacity: int


def _choosing(cached_X: Tensor, prompt_len: int, schedule: BudgetSchedule) -> _Rows | None:
    budget_X = BudgetTable(schedule, cached_X.device).budget(cached_X)
    pages_X = (cached_X + schedule.page_size - 1) // schedule.page_size
    choosing_X = (budget_X + schedule.reserved < pages_X) & (cached_X > prompt_len)
    index_X = choosing_X.nonzero()[:, 0]
    if not len(index_X) or schedule.is_dense:
        return None
    capacity = int(budget_X[index_X].max()) + schedule.reserved
    return _Rows(index_X, cached_X[index_X], budget_X[index_X], capacity)


def _rotate(x_XHD: Tensor, cos_X1D: Tensor, sin_X1D: Tensor) -> Tensor:
    low, high = x_XHD.chunk(2, dim=-1)
    return x_XHD * cos_X1D + torch.cat((-high, low), dim=-1) * sin_X1D
