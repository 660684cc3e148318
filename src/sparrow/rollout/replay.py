"""Recorded page sets in the form that the training-side pass replays: one bit set per position of a padded batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparrow.kernels.page_bits import num_words, pack_pages
from sparrow.rollout.completion import Completion


def replay_page_sets(
    completions: Sequence[Completion],
    prompt_lengths: Sequence[int],
    sparse_layers: Sequence[int],
    *,
    page_size: int,
    width: int,
) -> dict[int, Tensor]:
    """Lay the page sets of a rollout out for ``SparsePass(page_sets=...)``.

    Rows are left-aligned: prompt, response, padding. The last token of a response is never fed during a rollout, so its
    position has no record; it predicts nothing, and gets all of its pages.

    Args:
        completions: B of them, sampled with ``record=("page_sets",)``.
        prompt_lengths: B prompt lengths in tokens.
        sparse_layers: indices of the sparse layers, ascending.
        page_size: P of the schedule.
        width: T, the padded length.

    Returns:
        layer -> chosen_BKTM, int32.

    Raises:
        ValueError: a completion without page sets, for other layers, or longer than ``width``.
    """
    sets: list[Tensor] = []
    for index, completion in enumerate(completions):
        if completion.page_sets is None:
            raise ValueError(f"completion {index} holds no page sets: sample with record=('page_sets',)")
        sets.append(completion.page_sets)
    return lay_out_page_sets(sets, prompt_lengths, sparse_layers, page_size=page_size, width=width)


def lay_out_page_sets(
    page_sets: Sequence[Tensor],
    prompt_lengths: Sequence[int],
    sparse_layers: Sequence[int],
    *,
    page_size: int,
    width: int,
) -> dict[int, Tensor]:
    """The same from the page sets alone, [L, K, T - 1, M] for each of B completions; see :func:`replay_page_sets`."""
    words = num_words(-(-width // page_size))
    rows = []
    for index, (sets, prompt_length) in enumerate(zip(page_sets, prompt_lengths, strict=True)):
        layers, kv_heads, steps, held = sets.shape
        if layers != len(sparse_layers):
            raise ValueError(
                f"completion {index} holds page sets of {layers} layers, but {len(sparse_layers)} are sparse"
            )
        end = prompt_length + steps
        if end >= width:
            raise ValueError(
                f"completion {index} has {end + 1} tokens with its prompt, width={width} has no room for it"
            )
        chosen_LKTM = torch.zeros(layers, kv_heads, width, words, dtype=torch.int32)
        kept = min(words, held)
        chosen_LKTM[:, :, prompt_length:end, :kept] = sets[..., :kept]
        page_N = torch.arange(words * 32)
        chosen_LKTM[:, :, end] = pack_pages(page_N * page_size <= end)
        rows.append(chosen_LKTM)
    stacked = torch.stack(rows, dim=1)
    return dict(zip(sparse_layers, stacked.unbind(), strict=True))
