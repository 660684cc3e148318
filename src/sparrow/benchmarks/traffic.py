"""Bytes an operator has to move: every input read once, every output written once.

These are the least that any implementation moves, from shapes alone. Divided by the measured time they give a rate
that can be compared with the rate of a plain copy; an operator that reads something twice, or computes much per byte,
shows a lower one.
"""

import math
from dataclasses import dataclass

from sparrow.kernels.page_bits import num_words

INDEX = 4
"""Bytes of an index, a count or a score: int32 and fp32."""


@dataclass(frozen=True)
class DecodeShape:
    """One decode step of one layer.

    Attributes:
        batch: B.
        heads: H.
        kv_heads: K.
        head_dim: D.
        page_size: P.
        tokens: cached tokens of each sequence, the one being decoded included.
        element: bytes of a stored number.
    """

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    tokens: int
    element: int

    @property
    def num_pages(self) -> int:
        """N, the last page perhaps partly filled."""
        return -(-self.tokens // self.page_size)

    @property
    def key_bytes(self) -> int:
        """One key, or one value, of all KV heads of one token."""
        return self.kv_heads * self.head_dim * self.element

    @property
    def query_bytes(self) -> int:
        """The query of one sequence, or its output."""
        return self.heads * self.head_dim * self.element

    def tokens_read(self, pages: int) -> int:
        """Tokens in ``pages`` pages, the last one of the sequence among them."""
        return self.tokens - max(0, self.num_pages - pages) * self.page_size

    def landmarks(self, tokens: int, completed: int) -> int:
        """Appending ``tokens`` tokens, which complete ``completed`` pages, in the whole batch.

        A token's key and value are read and written; a completed page's keys are read and its landmark written.
        """
        return 4 * tokens * self.key_bytes + completed * (self.page_size + 1) * self.key_bytes

    def scores(self) -> int:
        """Landmarks of full pages and the queries are read, a score per page and KV head written."""
        full = self.tokens // self.page_size
        return self.batch * (full * self.key_bytes + self.query_bytes + self.num_pages * self.kv_heads * INDEX)

    def selection(self, pages: int) -> int:
        """Scores are read, a list per KV head and its length written."""
        return self.batch * self.kv_heads * INDEX * (self.num_pages + min(pages, self.num_pages) + 1)

    def attention(self, pages: int) -> int:
        """Keys and values of the pages and the queries are read, the outputs written."""
        return self.batch * (2 * self.tokens_read(pages) * self.key_bytes + 2 * self.query_bytes)

    def sparse_step(self, pages: int) -> int:
        """Scores, choice and attention together."""
        return self.scores() + self.selection(pages) + self.attention(pages)


@dataclass(frozen=True)
class TrainingShape:
    """Attention over whole sequences of equal length.

    Attributes:
        batch: B.
        heads: H.
        kv_heads: K.
        head_dim: D.
        page_size: P.
        tokens: T.
        element: bytes of a stored number.
    """

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    tokens: int
    element: int

    @property
    def set_bytes(self) -> int:
        """The page sets of all rows."""
        words = num_words(math.ceil(self.tokens / self.page_size))
        return self.batch * self.kv_heads * self.tokens * words * INDEX

    def forward(self) -> int:
        """Query, key, value and page sets are read, the output written."""
        return self._rows(2 * self.heads + 2 * self.kv_heads) + self.set_bytes

    def backward(self) -> int:
        """Query, key, value, output, its gradient and page sets are read, three gradients written."""
        return self._rows(4 * self.heads + 4 * self.kv_heads) + self.set_bytes

    def _rows(self, heads: int) -> int:
        return self.batch * heads * self.tokens * self.head_dim * self.element


def statistics_bytes(tokens: int, hidden: int, vocab: int, element: int, *, policies: int = 1) -> int:
    """Token statistics: the head and the hidden states of each policy are read; a few numbers a token are left out."""
    return (vocab + policies * tokens) * hidden * element


def statistics_backward_bytes(tokens: int, hidden: int, vocab: int, element: int) -> int:
    """Its backward pass: head and hidden states are read, the gradients of both written."""
    return 2 * (vocab + tokens) * hidden * element
