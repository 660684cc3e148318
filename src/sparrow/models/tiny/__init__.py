"""The packaged tiny policy: a Qwen3 model of about 1 M parameters that adds one-digit numbers step by step.

The files beside this one are a plain transformers folder, made by `experiments/tiny_policy`. It is stopped early on
purpose: about half of its held-out traces are right, so reinforcement learning has something to teach.
"""

from pathlib import Path


def tiny_path() -> Path:
    """The folder of the tiny policy, for `from_pretrained`."""
    return Path(__file__).resolve().parent
