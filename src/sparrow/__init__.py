"""Sparrow: reinforcement learning of language models whose rollouts use scheduled block-sparse attention."""

__version__ = "0.1.0"
