"""Page scores: what a page keeps about its keys (landmarks), and how a query ranks pages by it.

A page score is one class. `MeanScore` is the study's; `MinMaxScore` is the upper bound of Quest (arXiv 2406.10774);
`StreamingScore` and `RandomScore` are baselines that ignore the content. A new one subclasses `PageScore` and is
selected by its path, or by its name once `@register_page_score` has seen it; it runs by its own torch formulas on every
device, in decode and in the training pass alike. Scores that are linear in their landmarks (`LinearScore`) also have
fast paths.
"""

import importlib
from abc import ABC, abstractmethod
from typing import ClassVar, TypeVar

import torch
from torch import Tensor


class PageScore(ABC):
    """Landmarks of full pages and scores of pages. Stateless; fp32 in, fp32 out."""

    name: ClassVar[str]
    """The name it is selected by."""
    width: ClassVar[int]
    """W, the landmark vectors kept per page and KV head."""

    @abstractmethod
    def landmarks(self, key_XPD: Tensor) -> Tensor:
        """Summarises the keys of full pages.

        Args:
            key_XPD: [X, P, D] keys as cached (after k-norm and RoPE) of X full pages.

        Returns:
            [X, W, D] landmarks.
        """

    @abstractmethod
    def scores(self, query_BKD: Tensor, landmarks_BKNWD: Tensor) -> Tensor:
        """Scores pages; a higher score is read first.

        Args:
            query_BKD: [B, K, D] mean of the query heads (after q-norm and RoPE) that share the KV head.
            landmarks_BKNWD: [B, K, N, W, D]. Entries of pages that are not full are arbitrary; the caller masks them.

        Returns:
            [B, K, N] scores.
        """


_REGISTRY: dict[str, PageScore] = {}

ScoreClass = TypeVar("ScoreClass", bound=type[PageScore])


def register_page_score(score_class: ScoreClass) -> ScoreClass:
    """Class decorator: makes a page score selectable by its `name`.

    Raises:
        ValueError: if another class holds the name already.
    """
    holder = _REGISTRY.get(score_class.name)
    if holder is not None and type(holder).__qualname__ != score_class.__qualname__:
        raise ValueError(f"page score {score_class.name!r} is registered already, by {type(holder).__qualname__}")
    _REGISTRY[score_class.name] = score_class()
    return score_class


def get_page_score(name: str) -> PageScore:
    """Returns the page score called `name`, or the class at a dotted path such as `my_package.scores.Recency`.

    Raises:
        KeyError: no page score has the name, or nothing importable is at the path; lists the known ones.
    """
    if name not in _REGISTRY and "." in name:
        _register_from(name)
        return next(score for score in _REGISTRY.values() if _path(score) == name)
    if name not in _REGISTRY:
        raise KeyError(f"unknown page score {name!r}, allowed: {', '.join(sorted(_REGISTRY))}, or a class by its path")
    return _REGISTRY[name]


def _path(score: PageScore) -> str:
    return f"{type(score).__module__}.{type(score).__qualname__}"


def _register_from(path: str) -> None:
    """Import a class by its path and register it, unless importing its module has done so."""
    module, _, attribute = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise KeyError(f"page score {path!r}: {error}; must be importable, or one of {sorted(_REGISTRY)}") from error
    if not (isinstance(found, type) and issubclass(found, PageScore)):
        raise KeyError(f"page score {path!r}: must be a subclass of PageScore")
    register_page_score(found)


class LinearScore(PageScore):
    """A page score that is a dot product with the landmarks: score = sum over w of weights_w . landmark_w.

    The operators have one fast path for all of these.
    """

    @abstractmethod
    def weights(self, query_BKD: Tensor) -> Tensor:
        """What the landmarks are multiplied by, [B, K, W, D]."""

    def scores(self, query_BKD: Tensor, landmarks_BKNWD: Tensor) -> Tensor:
        """score = sum over w and d of weights * landmarks."""
        return torch.einsum("bkwd,bknwd->bkn", self.weights(query_BKD), landmarks_BKNWD)


@register_page_score
class MeanScore(LinearScore):
    """Dot product of the query with the mean key of the page."""

    name = "mean"
    width = 1

    def landmarks(self, key_XPD: Tensor) -> Tensor:
        """Mean key of each page, [X, 1, D]."""
        return key_XPD.mean(dim=1, keepdim=True)

    def weights(self, query_BKD: Tensor) -> Tensor:
        """The query itself: score = q . mean(k)."""
        return query_BKD.unsqueeze(2)


@register_page_score
class MinMaxScore(LinearScore):
    """Largest dot product any key inside the page's bounding box could have (Quest).

    score = sum_d max(q_d * min_d, q_d * max_d). Per channel the larger product takes the maximum if q_d > 0 and the
    minimum otherwise, so it is linear in the two landmarks.
    """

    name = "minmax"
    width = 2

    def landmarks(self, key_XPD: Tensor) -> Tensor:
        """Smallest and largest value of each channel, [X, 2, D]."""
        return torch.stack((key_XPD.amin(dim=1), key_XPD.amax(dim=1)), dim=1)

    def weights(self, query_BKD: Tensor) -> Tensor:
        """Negative channels of the query for the minimum, positive ones for the maximum."""
        return torch.stack((query_BKD.clamp(max=0), query_BKD.clamp(min=0)), dim=2)


@register_page_score
class StreamingScore(PageScore):
    """The page's own index: the budget goes to the latest pages.

    With the reserved first page these are the sink and the window of StreamingLLM (arXiv 2309.17453), but for the
    positions, which stay those of the text.
    """

    name = "streaming"
    width = 1

    def landmarks(self, key_XPD: Tensor) -> Tensor:
        """Zeros, [X, 1, D]: the content of a page is not used."""
        return torch.zeros_like(key_XPD[:, :1])

    def scores(self, query_BKD: Tensor, landmarks_BKNWD: Tensor) -> Tensor:
        """score = page."""
        batch, kv_heads, pages = landmarks_BKNWD.shape[:3]
        return torch.arange(pages, device=query_BKD.device).float().expand(batch, kv_heads, pages)


@register_page_score
class RandomScore(PageScore):
    """A fixed random ranking: a hash of page index and KV head in [0, 1), the same for every sequence and query.

    It depends on nothing computed, so the training pass chooses the very pages of the rollout.
    """

    name = "random"
    width = 1

    def landmarks(self, key_XPD: Tensor) -> Tensor:
        """Zeros, [X, 1, D]: the content of a page is not used."""
        return torch.zeros_like(key_XPD[:, :1])

    def scores(self, query_BKD: Tensor, landmarks_BKNWD: Tensor) -> Tensor:
        """score = hash(page, KV head) / 2^24."""
        batch, kv_heads, pages = landmarks_BKNWD.shape[:3]
        device = query_BKD.device
        head_K1 = torch.arange(kv_heads, device=device).unsqueeze(1)
        mixed_KN = torch.arange(pages, device=device) * 0x9E3779B1 + head_K1 * 0x85EBCA77 + 1
        for shift in (16, 15):
            mixed_KN = (mixed_KN ^ (mixed_KN >> shift)) * 0x2C1B3C6D & 0xFFFFFFFF
        return ((mixed_KN ^ (mixed_KN >> 16)) >> 8).float().div(2**24).expand(batch, kv_heads, pages)


def has_kernels(score: PageScore) -> bool:
    """Whether Triton kernels make its landmarks and its scores; others run by their torch formulas on a GPU too."""
    return type(score) in (MeanScore, MinMaxScore)
