"""What the small studies share: the packaged policy with its problems, both distributions of a token, plots."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sparrow.callbacks.provenance import provenance
from sparrow.data import Prompt, PromptDataModule
from sparrow.data.sources.packaged import RunningSum
from sparrow.models.loading import eos_token_ids, load_policy
from sparrow.modules import Experience
from sparrow.modules.passes import dense_pass, head_weight, hidden_states, predicting

NUMBERS, LONGEST = 34, 220
"""Numbers of a problem, and tokens of the longest trace: those of the quickstart."""


@dataclass(frozen=True)
class Problems:
    """A policy and held-out problems for it."""

    model: torch.nn.Module
    tokenizer: Any
    eos_token_ids: tuple[int, ...]
    prompts: list[Prompt]


def held_out_problems(count: int, policy: str = "tiny") -> Problems:
    """The packaged policy, or another of its kind by folder, and the first held-out problems."""
    torch.set_num_threads(1)
    model, tokenizer = load_policy(policy)
    data = PromptDataModule(RunningSum(count=1, validation_count=count, numbers=NUMBERS), tokenizer, 8, 0)
    data.setup("validate")
    return Problems(model, tokenizer, eos_token_ids(model, tokenizer), data.validation_prompts)


@torch.no_grad()
def both_logprobs(model: torch.nn.Module, experience: Experience) -> tuple[Tensor, Tensor]:
    """Log-probs [X, V] of the dense policy and of the actor at the decoded tokens; for small vocabularies.

    Args:
        model: the policy.
        experience: sequences whose hidden states the actor recorded.
    """
    assert experience.sparse_hidden is not None
    with dense_pass(model):
        hidden_BTE = hidden_states(model, experience.tokens_BT)
    dense_XE = predicting(hidden_BTE, experience.decoded_BT)
    sparse_XE = torch.cat([hidden[1:] for hidden in experience.sparse_hidden]).to(dense_XE)
    head_EV = head_weight(model).T
    return torch.log_softmax(dense_XE @ head_EV, -1), torch.log_softmax(sparse_XE @ head_EV, -1)


def write(folder: Path, results: Mapping[str, Any]) -> None:
    """``results.json`` beside the study, with what it was measured by."""
    made = provenance()
    made_by = {key: made[key] for key in ("sparrow", "torch", "processor", "torch_threads", "gpu")}
    (folder / "results.json").write_text(json.dumps({**results, "made_by": made_by}, indent=1) + "\n")


def axes(columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with so many plots side by side."""
    figure, grid = plt.subplots(1, columns, figsize=(4.6 * columns + 1.8, 3.6), layout="constrained", squeeze=False)
    return figure, list(grid[0])


def save(figure: Figure, path: Path) -> None:
    """Write a figure, its legend outside on the right, where it covers nothing."""
    for ax in figure.axes:
        ax.grid(alpha=0.3)
    figure.axes[-1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.savefig(path, dpi=130)
    plt.close(figure)
