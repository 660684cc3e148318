"""Callbacks: ``Rollout`` is the heart of a step, the others measure and record it."""

from sparrow.callbacks.adapter_tail import AdapterTail
from sparrow.callbacks.adaptive import AdaptiveBudget
from sparrow.callbacks.demonstrations import Demonstrations
from sparrow.callbacks.health import Health, HealthyCheckpoint
from sparrow.callbacks.held_out import HeldOut, exact_match
from sparrow.callbacks.phase_switch import PhaseSwitch
from sparrow.callbacks.rollout import Rollout
from sparrow.callbacks.sample_log import SampleLog
from sparrow.callbacks.step_log import StepLog
from sparrow.callbacks.summary import Summary
from sparrow.callbacks.tail import Tail
from sparrow.callbacks.validation import Validation

__all__ = [
    "AdapterTail",
    "AdaptiveBudget",
    "Demonstrations",
    "Health",
    "HealthyCheckpoint",
    "HeldOut",
    "PhaseSwitch",
    "Rollout",
    "SampleLog",
    "StepLog",
    "Summary",
    "Tail",
    "Validation",
    "exact_match",
]
