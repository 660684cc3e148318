"""Corrections for the gap between sparse actor and dense policy: frozen objects, `rule(inputs) -> Correction`."""

from sparrow.algorithms.corrections.combined import BatchNormalized, Chain
from sparrow.algorithms.corrections.jackpot import Jackpot
from sparrow.algorithms.corrections.masks import (
    GeometricMask,
    IcePop,
    ProductMask,
    SequenceMIS,
    TokenMask,
    TokenMIS,
)
from sparrow.algorithms.corrections.plain import Bypass, NoCorrection
from sparrow.algorithms.corrections.rejection import OPSM, SequenceReject, TokenReject, Veto
from sparrow.algorithms.corrections.rule import Rule
from sparrow.algorithms.corrections.tail import TailMask, TailWeight
from sparrow.algorithms.corrections.truncated import GeometricTIS, SequenceTIS, TokenTIS

__all__ = [
    "OPSM",
    "BatchNormalized",
    "Bypass",
    "Chain",
    "GeometricMask",
    "GeometricTIS",
    "IcePop",
    "Jackpot",
    "NoCorrection",
    "ProductMask",
    "Rule",
    "SequenceMIS",
    "SequenceReject",
    "SequenceTIS",
    "TailMask",
    "TailWeight",
    "TokenMIS",
    "TokenMask",
    "TokenReject",
    "TokenTIS",
    "Veto",
]
