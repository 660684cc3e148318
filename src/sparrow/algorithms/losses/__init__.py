"""Policy losses per token; each is called with `PolicyInputs` and keeps aggregation out."""

from sparrow.algorithms.losses.covariance import ChoosingLoss, ClipCov, KLCov
from sparrow.algorithms.losses.dppo import dppo_kl, dppo_tv
from sparrow.algorithms.losses.gmpo import gmpo
from sparrow.algorithms.losses.gspo import gspo, gspo_token
from sparrow.algorithms.losses.ppo_clip import ppo_clip
from sparrow.algorithms.losses.reinforce import cispo, reinforce
from sparrow.algorithms.losses.sapo import sapo

__all__ = [
    "ChoosingLoss",
    "ClipCov",
    "KLCov",
    "cispo",
    "dppo_kl",
    "dppo_tv",
    "gmpo",
    "gspo",
    "gspo_token",
    "ppo_clip",
    "reinforce",
    "sapo",
]
