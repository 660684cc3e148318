"""Divergences between the policy and a target (a reference policy, or the dense policy when the actor is distilled)."""

from sparrow.algorithms.divergences.exact import forward_kl, reverse_kl, total_variation
from sparrow.algorithms.divergences.sampled import k1, k2, k3, k3_straight_through
from sparrow.algorithms.divergences.top_k import forward_kl_top_k, reverse_kl_top_k, total_variation_top_k

__all__ = [
    "forward_kl",
    "forward_kl_top_k",
    "k1",
    "k2",
    "k3",
    "k3_straight_through",
    "reverse_kl",
    "reverse_kl_top_k",
    "total_variation",
    "total_variation_top_k",
]
