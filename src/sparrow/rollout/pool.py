"""The paged KV cache: fixed pages per layer, handed out one by one, shared by reference.

A page holds P tokens of all KV heads of one layer; page ``i`` of every layer belongs to the same tokens, so one
number names a page throughout. A page of a prompt may belong to several sequences; it returns to the free list when
the last of them lets go. Nothing is kept between calls of ``generate``, so keys of old weights cannot survive an
update.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sparrow.kernels.cache_memory import cache_zeros


class PagePool:
    """Keys, values and landmarks of all layers, and who holds which page.

    Args:
        num_pages: pages of each layer.
        layers: L.
        sparse_layers: layers that need landmarks.
        kv_heads: K.
        page_size: P.
        head_dim: D.
        width: W, landmark vectors per page and KV head.
        dtype: dtype of keys, values and landmarks.
        device: where they live.
    """

    def __init__(
        self,
        num_pages: int,
        *,
        layers: int,
        sparse_layers: Sequence[int],
        kv_heads: int,
        page_size: int,
        head_dim: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def pages(rows: int) -> Tensor:
            return cache_zeros((num_pages, kv_heads, rows, head_dim), dtype, device)

        self.num_pages, self.page_size = num_pages, page_size
        self.keys: list[Tensor] = [pages(page_size) for _ in range(layers)]
        self.values: list[Tensor] = [pages(page_size) for _ in range(layers)]
        self.landmarks: list[Tensor | None] = [pages(width) if i in sparse_layers else None for i in range(layers)]
        self._free = list(range(num_pages - 1, -1, -1))
        self._holders = np.zeros(num_pages, dtype=np.int32)

    @property
    def num_free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds a page."""
        return len(self._free) == self.num_pages

    def tidy(self) -> None:
        """Hand pages out in ascending order again: those of a prompt lie side by side then, which is faster to read.

        Raises:
            RuntimeError: somebody holds a page.
        """
        if not self.is_idle:
            raise RuntimeError(f"{self.num_pages - len(self._free)} pages are held: only an idle pool can be tidied")
        self._free.sort(reverse=True)

    def holders(self, page: int) -> int:
        """How many hold ``page``."""
        return int(self._holders[page])

    def take(self, count: int) -> list[int]:
        """``count`` free pages, held once each.

        Raises:
            RuntimeError: there are fewer; whoever plans must not ask for more than :attr:`num_free`.
        """
        if count > len(self._free):
            raise RuntimeError(f"{count} pages asked of a pool with {len(self._free)} free of {self.num_pages}")
        split = len(self._free) - count
        taken = self._free[split:][::-1]  # the most recently freed first
        del self._free[split:]
        self._holders[taken] += 1
        return taken

    def share(self, pages: Sequence[int]) -> None:
        """One more holder for each of ``pages``."""
        self._holders[np.asarray(pages, dtype=np.int64)] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One holder less for each of ``pages``; those without one are free again.

        Raises:
            RuntimeError: a page that nobody holds.
        """
        index = np.asarray(pages, dtype=np.int64)
        if (self._holders[index] < 1).any():
            raise RuntimeError(f"pages {index[self._holders[index] < 1].tolist()} released, but nobody holds them")
        self._holders[index] -= 1
        self._free.extend(index[self._holders[index] == 0].tolist())

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy keys and values of partly filled pages, all layers. They have no landmarks yet."""
        if not source:
            return
        device = self.keys[0].device
        source_X = torch.tensor(source, dtype=torch.int64, device=device)
        target_X = torch.tensor(target, dtype=torch.int64, device=device)
        for pages in (*self.keys, *self.values):
            pages[target_X] = pages[source_X]
