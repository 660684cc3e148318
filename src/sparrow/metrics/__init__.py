"""What is measured: the tail of acceptance and the health of the correction. `functional` holds the formulas."""

from sparrow.metrics.correction_health import CorrectionHealth
from sparrow.metrics.pooled_tail import PooledTail
from sparrow.metrics.tail_acceptance import TailAcceptance

__all__ = ["CorrectionHealth", "PooledTail", "TailAcceptance"]
