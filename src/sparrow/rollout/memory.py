"""How much memory a rollout needs, before it runs: from shapes alone.

The cache is exact. What a forward pass holds at its peak is counted from the decoder's code. In the MLP of a layer the
residual stream before and after attention, its norm and the result (4 E), query, key, value and attention output
(2 H D + 2 K D), and two inner activations (2 I) exist at once. While query and key of the next layer are rotated, the
residual stream and its norm (2 E), those four of the layer before, the three projections (H D + 2 K D) and the
rotation's own results (H D + 3 K D) do. Drawing a token holds logits, log-probabilities and probabilities in fp32.
Freed memory that an allocator keeps is not counted; after large prefills on a CPU it can be half of ``working``.
"""

from dataclasses import dataclass, fields

from torch import nn

from sparrow.models.adapter import base_model
from sparrow.models.architecture import Architecture, from_config

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


def forward_bytes(sizes: Architecture, rows: int, element: int) -> int:
    """Most that a forward pass of ``rows`` tokens holds besides cache and weights."""
    states = 2 * (sizes.heads + sizes.kv_heads) * sizes.head_dim
    mlp = 4 * sizes.hidden + states + 2 * sizes.intermediate
    rotation = 2 * sizes.hidden + states + (2 * sizes.heads + 5 * sizes.kv_heads) * sizes.head_dim
    return rows * max(mlp, rotation) * element


def draw_bytes(sizes: Architecture, rows: int) -> int:
    """Most that drawing a token per row holds, without top-k, top-p and min-p."""
    return LOGIT_COPIES * rows * sizes.vocab * FLOAT


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
    rows: int,
    prefill: int,
    recorded: int,
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
        rows: rows of a decode step, padding included.
        prefill: most tokens of one prefill.
        recorded: tokens whose hidden states are recorded.
    """
    sizes = from_config(base_model(model).config)
    forward = forward_bytes(sizes, max(rows, prefill), element)
    return RolloutMemory(
        parameters=sum(parameter.nbytes for parameter in model.parameters()),
        copies=copies,
        pages=page_bytes(sizes, pages, page_size, element),
        landmarks=landmark_bytes(sizes, pages, width, sparse_layers, element),
        working=max(forward, draw_bytes(sizes, rows)),
        recorded=RECORD_COPIES * recorded * sizes.hidden * element,
    )
