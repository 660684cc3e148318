"""The forward pass of the rollout: dense prefill of packed prompts, and one decode step of many sequences.

Both are written out over plain tensors, without modules or hooks. A decode step writes the new key and value first, so
a token attends to itself; sparse layers then score the full pages, choose, and attend to the chosen ones.

Rows are independent of each other in every operation, so a row's bits do not depend on the batch. On CPU in fp32 a
decode step multiplies by `row_linear`, whose rows are independent by themselves. A prefill leaves that to the BLAS,
which picks other kernels for fewer than about 12 rows and for odd remainders, but gives each row the same bits for
every multiple of 16 (measured for fp32 with 1 to 16 threads): its rows are padded to a multiple of `ROW_BLOCK`. Torch's
elementwise loops compute what their vectors leave over by other code; additions and products are rounded exactly there
too, and the one activation is left to `swiglu`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparrow.kernels import PageScore, decode_attention, page_landmarks, paged_attention, row_linear
from sparrow.kernels.page_bits import pack_lists
from sparrow.kernels.paged_attention.reference import every_page
from sparrow.kernels.row_linear import serves
from sparrow.kernels.swiglu import swiglu
from sparrow.models.families import DecoderWeights, LayerWeights, Linear
from sparrow.rollout.pool import PagePool

ROW_BLOCK = 16
"""Rows of a forward pass are padded to a multiple of this."""

ALIGNED = 64
"""Bytes: torch's own tensors start at a multiple of this."""

PREFILL_ROWS = 2048
"""Rows of a prefill that go through projections and MLP at a time: enough for full speed, and what these hold at their
peak, several times the state between layers, does not grow with the prompts."""


def padded_rows(rows: int, block: int = ROW_BLOCK) -> int:
    """``rows`` rounded up to a multiple of ``block``."""
    return -(-rows // block) * block


def decode_block(weights: DecoderWeights) -> int:
    """The multiple that the rows of a decode step over such weights are padded to: 1 where `row_linear` serves them."""
    return 1 if serves(weights.embed_VE) else ROW_BLOCK


@dataclass(frozen=True)
class Choice:
    """How many pages to read in the sparse layers of one decode step.

    Attributes:
        budget_B: [B] int32 pages besides the reserved ones.
        first: reserved pages at the start.
        last: reserved pages at the end.
        max_pages: S, room for the longest list of the batch.
    """

    budget_B: Tensor
    first: int
    last: int
    max_pages: int


@dataclass(frozen=True)
class DecodeRows:
    """The rows of one decode step, padded; padding has cached 0 and page -1.

    Attributes:
        token_B: [B] int64 token to decode.
        position_B: [B] int64 its index in the sequence.
        page_B: [B] int64 physical page to write its key and value to.
        offset_B: [B] int64 slot in that page.
        cached_B: [B] int32 cached tokens, this one included.
        page_table_BN: [B, N] int32.
        choice: None when no row has more pages than it may read: then every layer is dense.
    """

    token_B: Tensor
    position_B: Tensor
    page_B: Tensor
    offset_B: Tensor
    cached_B: Tensor
    page_table_BN: Tensor
    choice: Choice | None


class Decoder:
    """A causal language model over paged caches.

    Args:
        weights: what to compute with.
        score: how pages are summarised and ranked.
        adapter: whether LoRA branches take part.
        max_tokens: longest sequence; RoPE is tabulated up to here.
    """

    def __init__(self, weights: DecoderWeights, score: PageScore, *, adapter: bool, max_tokens: int) -> None:
        self.weights, self.score, self.adapter = weights, score, adapter
        # The model's own module makes the table, so every RoPE variant is the model's.
        position_1T = torch.arange(max_tokens, device=weights.embed_VE.device).unsqueeze(0)
        cos, sin = weights.rotary(weights.embed_VE, position_1T)
        self._cos_TD: Tensor = cos[0]
        half = weights.head_dim // 2
        # rotate_half(x) * sin = roll(x, D/2) * (sin with its first half negated)
        self._sin_TD: Tensor = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)

    def logits(self, hidden_BE: Tensor) -> Tensor:
        """[B, E] final hidden states -> [B, V] logits in fp32, computed in the dtype of the head."""
        head_VE = self.weights.head_VE
        return row_linear(hidden_BE.to(head_VE.dtype), head_VE).float()

    def padded_rows(self, rows: int) -> int:
        """Rows of a decode step that carries ``rows`` of them."""
        return padded_rows(rows, decode_block(self.weights))

    def prefill(self, token_X: Tensor, page_X: Tensor, offset_X: Tensor, lengths: list[int], pool: PagePool) -> Tensor:
        """Dense causal forward of prompts laid end to end; fills their pages.

        Args:
            token_X: [X] int64, padded to a multiple of :data:`ROW_BLOCK`.
            page_X: [X] int64 physical page of each token, -1 for padding.
            offset_X: [X] int64 slot in that page.
            lengths: tokens per prompt.
            pool: cache to write.

        Returns:
            [prompts padded to ROW_BLOCK, E] final hidden state of each prompt's last token.
        """
        position_X = torch.zeros_like(token_X)
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        for start, length in zip(starts, lengths):
            position_X[start : start + length] = torch.arange(length, device=token_X.device)
        x_XE = F.embedding(token_X, self.weights.embed_VE)
        query_XHD = x_XE.new_empty(len(x_XE), self.weights.heads, self.weights.head_dim)
        key_XKD = x_XE.new_empty(len(x_XE), self.weights.kv_heads, self.weights.head_dim)
        value_XKD = torch.empty_like(key_XKD)
        chunks = [slice(start, start + PREFILL_ROWS) for start in range(0, len(x_XE), PREFILL_ROWS)]
        for index, layer in enumerate(self.weights.layers):
            for rows in chunks:
                projected = self._project(layer, x_XE[rows], *self._rope(position_X[rows]), F.linear)
                query_XHD[rows], key_XKD[rows], value_XKD[rows] = projected
                del projected
            self._write(pool, index, key_XKD, value_XKD, page_X, offset_X)
            for start, length in zip(starts, lengths):
                rows = slice(start, start + length)
                # In place of the query, which nobody needs any more; padding keeps its own.
                query_XHD[rows] = _causal_attention(query_XHD[rows], key_XKD[rows], value_XKD[rows], self.weights.scale)
            for rows in chunks:
                x_XE[rows] = self._finish_layer(layer, x_XE[rows], query_XHD[rows], F.linear)
        last_X = torch.zeros(padded_rows(len(lengths)), dtype=torch.int64, device=token_X.device)
        last_X[: len(lengths)] = torch.tensor(starts, device=token_X.device) + torch.tensor(
            lengths, device=token_X.device
        ).sub(1)
        return self._norm(x_XE[last_X], self.weights.final_norm_E)

    def step(self, rows: DecodeRows, pool: PagePool, page_bits: list[Tensor] | None = None) -> Tensor:
        """One decode step.

        Args:
            rows: what to decode.
            pool: cache to extend and read.
            page_bits: if given, the pages read are appended to it, one [B, K, M] int32 tensor per sparse layer.

        Returns:
            [B, E] final hidden states; padding rows hold finite values without meaning.
        """
        cos_B1D, sin_B1D = self._rope(rows.position_B)
        x_BE = F.embedding(rows.token_B, self.weights.embed_VE)
        every: tuple[Tensor | None, Tensor | None] = (None, None)
        if x_BE.device.type == "cpu":  # what the CPU kernel would work out in each dense layer anew
            every = every_page(rows.cached_B, self.weights.kv_heads, rows.page_table_BN.shape[1], pool.page_size)
        for index, layer in enumerate(self.weights.layers):
            query, key, value = self._project(layer, x_BE, cos_B1D, sin_B1D, row_linear)
            self._write(pool, index, key, value, rows.page_B, rows.offset_B)
            mixed, pages = self._attend(rows, pool, index, query, every)
            if page_bits is not None and pool.landmarks[index] is not None:
                page_bits.append(_bits(rows, pages, self.weights.kv_heads, pool.page_size))
            x_BE = self._finish_layer(layer, x_BE, mixed, row_linear)
        return self._norm(x_BE, self.weights.final_norm_E)

    def _attend(
        self,
        rows: DecodeRows,
        pool: PagePool,
        index: int,
        query_BHD: Tensor,
        every: tuple[Tensor | None, Tensor | None],
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of one layer, and the pages read where they were chosen."""
        cache = (pool.keys[index], pool.values[index])
        choice, landmarks, scale = rows.choice, pool.landmarks[index], self.weights.scale
        if choice is None or landmarks is None:
            return paged_attention(query_BHD, *cache, rows.page_table_BN, *every, rows.cached_B, scale), None
        mixed_BHD, pages_BKS, _ = decode_attention(
            query_BHD,
            *cache,
            landmarks,
            rows.page_table_BN,
            rows.cached_B,
            choice.budget_B,
            self.score,
            first=choice.first,
            last=choice.last,
            max_pages=choice.max_pages,
            scale=scale,
        )
        return mixed_BHD, pages_BKS

    def _rope(self, position_X: Tensor) -> tuple[Tensor, Tensor]:
        return self._cos_TD[position_X].unsqueeze(1), self._sin_TD[position_X].unsqueeze(1)

    def _project(
        self, layer: LayerWeights, x_XE: Tensor, cos_X1D: Tensor, sin_X1D: Tensor, linear: Linear
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query [X, H, D], key and value [X, K, D], after the norms and RoPE."""
        size = (len(x_XE), -1, self.weights.head_dim)
        normed_XE = self._norm(x_XE, layer.input_norm_E)
        query = layer.q.apply(normed_XE, self.adapter, linear).view(size)
        key = layer.k.apply(normed_XE, self.adapter, linear).view(size)
        value = layer.v.apply(normed_XE, self.adapter, linear).view(size)
        if layer.q_norm_D is not None and layer.k_norm_D is not None:
            query, key = self._norm(query, layer.q_norm_D), self._norm(key, layer.k_norm_D)
        return _rotate(query, cos_X1D, sin_X1D), _rotate(key, cos_X1D, sin_X1D), value

    def _write(self, pool: PagePool, index: int, key: Tensor, value: Tensor, page_X: Tensor, offset_X: Tensor) -> None:
        page_landmarks(
            key, value, pool.keys[index], pool.values[index], pool.landmarks[index], page_X, offset_X, self.score
        )

    def _finish_layer(self, layer: LayerWeights, x_XE: Tensor, mixed_XHD: Tensor, linear: Linear) -> Tensor:
        """Output projection and MLP, with their residual connections."""
        x_XE = x_XE + layer.o.apply(mixed_XHD.flatten(1), self.adapter, linear)
        normed_XE = self._norm(x_XE, layer.post_norm_E)
        gate_XI = layer.gate.apply(normed_XE, self.adapter, linear)
        inner_XI = swiglu(gate_XI, layer.up.apply(normed_XE, self.adapter, linear))
        return x_XE + layer.down.apply(inner_XI, self.adapter, linear)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm over the last axis, in fp32, rounded before the weight as the models do."""
        if x.dtype == torch.float32:  # the same operations in one call
            return F.rms_norm(x, (x.shape[-1],), weight, self.weights.eps)
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.weights.eps)
        return weight * scaled.to(x.dtype)


def _rotate(x_XHD: Tensor, cos_X1D: Tensor, sin_X1D: Tensor) -> Tensor:
    return torch.addcmul(x_XHD * cos_X1D, x_XHD.roll(x_XHD.shape[-1] // 2, dims=-1), sin_X1D)


def _causal_attention(query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, scale: float) -> Tensor:
    """One prompt by itself, so that its result cannot depend on what is prefilled beside it."""
    if query_THD.data_ptr() % ALIGNED:
        query_THD = query_THD.clone()  # the BLAS rounds by where its operands start; keys and values are copied anyway
    group = query_THD.shape[1] // key_TKD.shape[1]
    key, value = key_TKD.transpose(0, 1), value_TKD.transpose(0, 1)
    out_1HTD = F.scaled_dot_product_attention(
        query_THD.transpose(0, 1).unsqueeze(0),
        key.repeat_interleave(group, dim=0).unsqueeze(0),
        value.repeat_interleave(group, dim=0).unsqueeze(0),
        is_causal=True,
        scale=scale,
    )
    return out_1HTD[0].transpose(0, 1)


def _bits(rows: DecodeRows, pages_BKS: Tensor | None, kv_heads: int, page_size: int) -> Tensor:
    """Bit sets of the pages read; without a choice these are all pages of each row."""
    num_pages = rows.page_table_BN.shape[1]
    if pages_BKS is None:
        page_N = torch.arange(num_pages, dtype=torch.int32, device=rows.cached_B.device)
        live_BN = page_N * page_size < rows.cached_B.unsqueeze(1)
        pages_BKS = torch.where(live_BN, page_N, -1).unsqueeze(1).expand(-1, kv_heads, -1)
    return pack_lists(pages_BKS, num_pages)
