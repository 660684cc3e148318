"""How much memory a rollout needs, before it runs: from shapes alone.

The cache is exact. What a forward pass holds at its peak is counted from the decoder's code, per token:
- always: the residual stream, query, key and value (E + H D + 2 K D), for all tokens of a prefill;
- projecting, for a chunk of its tokens: cosine and sine (2 D), norm, the three projections, and what a rotation holds
  besides (E + H D + 2 K D, then 3 H D for the query or H D + 3 K D for the key);
- attending, for one prompt: keys and values for every query head, and the result (3 H D);
- finishing a layer, for a chunk: the new residual stream and its norm (2 E), then two inner activations (2 I) or one
  and the output before and after it is added (2 E + I).
Drawing a token holds logits, log-probabilities and probabilities in fp32, the scaled logits at a temperature, and the
probabilities once more where blocks of the inverse CDF do not divide the vocabulary. A check of drafts holds logits and
probabilities of its rows, the probabilities of all drafts, and those of the tokens that follow; then logits and
log-probabilities of what is kept. The tables of cosine and sine take 2 D per token of the longest sequence.
Freed memory that an allocator keeps, and the branches of an adapter, are not counted.
"""

from dataclasses import dataclass, fields

from torch import nn

from sparrow.models.adapter import base_model
from sparrow.models.architecture import Architecture, from_config
from sparrow.rollout.decoder import PREFILL_ROWS, ROW_BLOCK, padded_rows
from sparrow.rollout.sampler import CDF_BLOCK

FLOAT = 4
"""Bytes of fp32, in which logits are kept."""
LOGIT_COPIES = 3
RECORD_COPIES = 3
"""By step, joined, and by sequence: all three exist when a call ends."""


@dataclass(frozen=True)
class RolloutMemory:
    """Bytes by what holds them. ``str()`` of it is a table.

    Attributes:
        parameters: the model's own, which the engine shares.
        copies: casts of them that the engine keeps in another dtype.
        pages: keys and values.
        landmarks: of the sparse layers.
        working: most that a prefill or a decode step holds besides.
        recorded: what ``record=`` keeps, on the host; at the end of a call it exists as steps, joined and by sequence.
    """

    parameters: int
    copies: int
    pages: int
    landmarks: int
    working: int
    recorded: int = 0

    @property
    def total(self) -> int:
        """The peak, where host and device are the same."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        rows = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return "\n".join(f"{name:<11}{size / 1e9:10.3f} GB" for name, size in [*rows, ("total", self.total)])


def page_bytes(sizes: Architecture, pages: int, page_size: int, element: int) -> int:
    """Keys and values of ``pages`` pages in all layers, at ``element`` bytes a number."""
    return 2 * sizes.layers * pages * page_size * sizes.kv_heads * sizes.head_dim * element


def landmark_bytes(sizes: Architecture, pages: int, width: int, sparse_layers: int, element: int) -> int:
    """Landmarks of ``pages`` pages, ``width`` vectors each, in the sparse layers."""
    return sparse_layers * pages * width * sizes.kv_heads * sizes.head_dim * element


def forward_bytes(sizes: Architecture, rows: int, longest: int, element: int) -> int:
    """Most that a forward pass of ``rows`` tokens, ``longest`` of one prompt, holds besides cache and weights."""
    query, key = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    state = sizes.hidden + query + 2 * key
    project = 2 * sizes.head_dim + state + max(3 * query, query + 3 * key)
    finish = 2 * sizes.hidden + max(2 * sizes.intermediate, 2 * sizes.hidden + sizes.intermediate)
    chunk = min(rows, PREFILL_ROWS)
    return element * (rows * state + max(chunk * project, longest * 3 * query, chunk * finish))


def draw_bytes(
    sizes: Architecture, sequences: int, *, draft_tokens: int = 0, scaled: bool = False, block: int = ROW_BLOCK
) -> int:
    """Most that drawing holds, without top-k, top-p and min-p.

    Args:
        sizes: of the model.
        sequences: drawn for at a time.
        draft_tokens: tokens of a draft; 0 without drafts.
        scaled: whether logits are divided by a temperature.
        block: the multiple that rows are padded to, see `sparrow.rollout.decoder.decode_block`.
    """
    rows, check = padded_rows(sequences, block), padded_rows(sequences * (draft_tokens + 1), block)
    padded = sizes.vocab > CDF_BLOCK and sizes.vocab % CDF_BLOCK > 0
    held = (LOGIT_COPIES + scaled + padded) * rows
    if draft_tokens:
        held = max(2 * check + (draft_tokens + 1 + padded) * rows, (LOGIT_COPIES + scaled) * check)
    return held * sizes.vocab * FLOAT


def copy_bytes(sizes: Architecture, own: int, element: int, head: int) -> int:
    """Casts the engine keeps of parameters of ``own`` bytes, to compute in ``element`` and the LM head in ``head``.

    The embedding is read in ``element`` and the head in ``head``, whether or not they are one parameter.
    """
    inner = sizes.layers * sizes.layer_parameters + sizes.hidden + sizes.embedding_parameters
    return (inner * element if element != own else 0) + (sizes.embedding_parameters * head if head != own else 0)


def predict(
    model: nn.Module,
    *,
    element: int,
    copies: int,
    pages: int,
    page_size: int,
    sparse_layers: int,
    width: int,
    sequences: int,
    draft_tokens: int,
    scaled: bool,
    prefill: int,
    longest: int,
    max_tokens: int,
    recorded: int,
    block: int,
) -> RolloutMemory:
    """Memory of a rollout of a loaded model.

    Args:
        model: the policy, with or without an adapter; only its sizes are read.
        element: bytes of a number that the engine computes with.
        copies: bytes of the casts that it keeps.
        pages: pages of the pool.
        page_size: P.
        sparse_layers: layers with landmarks.
        width: W.
        sequences: decoded at a time.
        draft_tokens: tokens of a draft; 0 without drafts.
        scaled: whether logits are divided by a temperature.
        prefill: most tokens of one prefill.
        longest: tokens of the longest prompt.
        max_tokens: longest sequence.
        recorded: tokens whose hidden states are recorded.
        block: the multiple that the rows of a decode step are padded to.
    """
    sizes = from_config(base_model(model).config)
    rows = padded_rows(sequences * (draft_tokens + 1), block)
    forward = max(forward_bytes(sizes, prefill, longest, element), forward_bytes(sizes, rows, 0, element))
    draw = draw_bytes(sizes, sequences, draft_tokens=draft_tokens, scaled=scaled, block=block)
    return RolloutMemory(
        parameters=sum(parameter.nbytes for parameter in model.parameters()),
        copies=copies,
        pages=page_bytes(sizes, pages, page_size, element),
        landmarks=landmark_bytes(sizes, pages, width, sparse_layers, element),
        working=max(forward, draw) + 2 * max_tokens * sizes.head_dim * element,
        recorded=RECORD_COPIES * recorded * sizes.hidden * element,
    )
