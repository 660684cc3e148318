"""Callbacks: ``Rollout`` is the heart of a step, the others measure and record it."""

from sparrow.callbacks.held_out import HeldOut, exact_match
from sparrow.callbacks.rollout import Rollout
from sparrow.callbacks.step_log import StepLog
from sparrow.callbacks.summary import Summary
from sparrow.callbacks.tail import Tail

__all__ = ["HeldOut", "Rollout", "StepLog", "Summary", "Tail", "exact_match"]
