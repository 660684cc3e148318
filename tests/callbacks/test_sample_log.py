"""Which samples are kept, what of them, and what a resumed run does with the file."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sparrow.callbacks.sample_log import SampleLog, SampleLogSettings
from sparrow.modules import DensePolicy, Experience
from sparrow.rewards import Outcome


class Letters:
    """Token 1 is a, 2 is b, and so on."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join("_abcdefgh"[token] for token in token_ids)


EXPERIENCE = Experience(
    tokens_BT=torch.tensor([[1, 2, 3, 4, 0], [1, 5, 6, 7, 8], [1, 2, 4, 0, 0]]),
    prompt_len_B=torch.tensor([2, 1, 2]),
    length_B=torch.tensor([4, 5, 3]),
    sparse_logprobs_BT=torch.zeros(3, 5),
    rewards_B=torch.tensor([1.0, 0.0, 0.5]),
    advantages_B=torch.tensor([0.5, -0.5, 0.0]),
    group_B=torch.tensor([0, 0, 0]),
)
ALPHA = torch.tensor([[9, 9, 1, 0.75, 9], [9, 1, 0.5, 0.25, 0.875], [9, 9, 1, 9, 9]]).float()
OUTCOMES = [Outcome(1.0, "correct"), Outcome(0.0, "wrong"), Outcome(0.5, "wrong")]


def keep(log: SampleLog, step: int, alpha: torch.Tensor | None = ALPHA) -> None:
    module = DensePolicy.__new__(DensePolicy)
    torch.nn.Module.__init__(module)
    module.scores = SimpleNamespace(alpha_BT=alpha)  # type: ignore[assignment]
    trainer: Any = SimpleNamespace(global_step=step, is_global_zero=True, loggers=[])
    log.on_train_batch_end(trainer, module, None, {"experience": EXPERIENCE, "outcomes": OUTCOMES}, 0)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def test_the_first_and_the_one_that_disagrees_most_are_kept(tmp_path: Path) -> None:
    keep(SampleLog(tmp_path, Letters(), SampleLogSettings(every=1, count=1)), 1)
    assert lines(tmp_path) == [
        {
            "step": 1,
            "prompt": "a",
            "tokens": ["e", "f", "g", "h"],
            "alpha": [None, 0.5, 0.25, 0.875],
            "reward": 0.0,
            "outcome": "wrong",
            "advantage": -0.5,
        }
    ]
    keep(SampleLog(tmp_path, Letters(), SampleLogSettings(every=1, count=2)), 2)
    assert [(line["step"], line["prompt"]) for line in lines(tmp_path)] == [(1, "a"), (2, "ab"), (2, "a")]
    assert lines(tmp_path)[1]["alpha"] == [None, 0.75]


def test_without_alpha_the_first_are_kept(tmp_path: Path) -> None:
    keep(SampleLog(tmp_path, Letters(), SampleLogSettings(every=1, count=9)), 1, alpha=None)
    assert [line["tokens"] for line in lines(tmp_path)] == [["c", "d"], ["e", "f", "g", "h"], ["d"]]
    assert lines(tmp_path)[0]["alpha"] == [None, None]


def test_steps_between_keep_nothing_and_a_resumed_run_drops_later_ones(tmp_path: Path) -> None:
    log = SampleLog(tmp_path, Letters(), SampleLogSettings(every=3, count=1))
    for step in range(1, 9):
        keep(log, step)
    assert [line["step"] for line in lines(tmp_path)] == [1, 4, 7]
    log.on_train_start(SimpleNamespace(global_step=4, is_global_zero=True), None)  # type: ignore[arg-type]
    assert [line["step"] for line in lines(tmp_path)] == [1, 4]


def test_none_switches_it_off(tmp_path: Path) -> None:
    keep(SampleLog(tmp_path, Letters(), SampleLogSettings(every=None)), 1)
    assert not (tmp_path / "samples.jsonl").exists()


@pytest.mark.parametrize(("key", "value"), [("every", 0), ("count", 0)])
def test_values_are_checked(key: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"samples.{key}=0: must be 1 or more"):
        SampleLogSettings(**{key: value})
