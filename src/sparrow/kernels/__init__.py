"""Operators of block-sparse attention and of the LM head. One folder each: definition, plain reference, fast paths.

The public functions dispatch by the device of their tensors. Each folder shares its name with its function, so import
functions only (`from sparrow.kernels import select_pages`), never the folders as attributes.
"""

from sparrow.kernels.block_sparse_attention import block_sparse_attention
from sparrow.kernels.decode_attention import decode_attention
from sparrow.kernels.page_landmarks import page_landmarks
from sparrow.kernels.page_score import PageScore, get_page_score, register_page_score
from sparrow.kernels.page_scores import page_scores
from sparrow.kernels.paged_attention import paged_attention
from sparrow.kernels.row_linear import row_linear
from sparrow.kernels.select_pages import select_pages
from sparrow.kernels.token_statistics import TokenStatistics, token_statistics

__all__ = [
    "PageScore",
    "TokenStatistics",
    "block_sparse_attention",
    "decode_attention",
    "get_page_score",
    "page_landmarks",
    "page_scores",
    "paged_attention",
    "register_page_score",
    "row_linear",
    "select_pages",
    "token_statistics",
]
