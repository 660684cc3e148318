"""The supervised stage: what it trains on, that its loss is the cross-entropy, and what does not go with it."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from sparrow.algorithms import advantages, aggregation, corrections, losses
from sparrow.callbacks import Demonstrations
from sparrow.data import Prompt, PromptRow
from sparrow.data.sources.running_sum import running_sum_rows
from sparrow.modules import (
    DensePolicy,
    Recipe,
    ReferenceSettings,
    RolloutSettings,
    UpdateSettings,
    check_together,
)
from sparrow.rewards import Scorer
from sparrow.schedule import BudgetSchedule
from tests.modules.conftest import small_model

LETTERS = "0123456789+=;#$"
SUPERVISED = Recipe(advantages.grpo, corrections.NoCorrection(), partial(losses.reinforce), aggregation.token_mean)


class Characters:
    """One token per character."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [LETTERS.index(letter) for letter in text]


def prompts(*completions: str) -> list[Prompt]:
    rows = [
        PromptRow(
            "any", [{"role": "user", "content": "?"}], {"style": "rule", "ground_truth": "1"}, "", {"completion": text}
        )
        for text in completions
    ]
    return [Prompt(row, [1, 2, 3][: index + 1], index) for index, row in enumerate(rows)]


def source() -> Demonstrations:
    return Demonstrations(Characters(), Scorer(), (14,))


def test_a_packaged_row_gives_its_whole_trace() -> None:
    (fields,) = running_sum_rows(0, 1, numbers=3)
    row = PromptRow.from_dict(fields)
    first, second, third = row.extra_info["numbers"]
    sums = [first, first + second, first + second + third]
    text = "".join(f"+{n}={s % 10}{s // 10};" for n, s in zip((first, second, third), sums, strict=True))
    text += f"#{sums[2] % 10}{sums[2] // 10}$"
    found = source().response(Prompt(row, [0], 0), 100)
    assert found == Characters().encode(text, add_special_tokens=False)


def test_a_row_s_own_completion_comes_first_and_gets_a_stop_token() -> None:
    assert source().response(prompts("12")[0], 3) == [1, 2, 14]
    assert source().response(prompts("12$")[0], 3) == [1, 2, 14]


def test_a_row_without_completion_or_with_a_long_one_is_named() -> None:
    with pytest.raises(ValueError, match=r"row None of data_source 'any': its gold completion has 4 tokens; .*=3"):
        source().response(prompts("123")[0], 3)
    with pytest.raises(ValueError, match=r"row None of data_source 'any': no gold completion"):
        source().response(prompts("")[0], 3)


def test_the_step_is_one_on_the_cross_entropy(tmp_path: Path) -> None:
    # Two completions of 2 and 5 tokens: the mean runs over all seven, whatever row they stand in.
    given = prompts("7$", "1234$")
    module = DensePolicy(
        small_vocabulary(),
        BudgetSchedule.dense(),
        recipe=SUPERVISED,
        optimizer=partial(torch.optim.SGD, lr=0.5),
        rollout=RolloutSettings(source="traces", alpha="off"),
        update=UpdateSettings(max_grad_norm=None, micro_batch_tokens=4),
    )
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=[source()],
    )  # fmt: skip
    trainer.fit(module, DataLoader([{"prompts": given}], batch_size=None))  # type: ignore[arg-type]
    model = small_vocabulary()
    terms = []
    for prompt, text in zip(given, ("7$", "1234$"), strict=True):
        ids = torch.tensor([[*prompt.token_ids, *Characters().encode(text, add_special_tokens=False)]])
        logits = model(ids[:, :-1]).logits[0, len(prompt.token_ids) - 1 :]
        terms.append(functional.cross_entropy(logits, ids[0, len(prompt.token_ids) :], reduction="none"))
    loss = torch.cat(terms).mean()
    loss.backward()
    for (name, found), start in zip(module.model.named_parameters(), model.parameters(), strict=True):
        assert start.grad is not None
        torch.testing.assert_close(
            found, start - 0.5 * start.grad, atol=1e-6, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert module.step_metrics["actor/pg_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert not [key for key in module.step_metrics if key.startswith("rollout_corr")]
    assert module.step_metrics["response_length/mean"] == 3.5


def small_vocabulary() -> Any:
    """A random model with a token for every letter."""
    return small_model(vocab_size=len(LETTERS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"recipe": Recipe(advantages.grpo, corrections.NoCorrection(), losses.gspo, aggregation.token_mean)},
            "loss=gspo",
        ),
        (
            {"recipe": Recipe(advantages.grpo, corrections.IcePop(), losses.reinforce, aggregation.token_mean)},
            "correction=IcePop",
        ),
        (
            {"rollout": RolloutSettings(source="traces", alpha="off", temperature=0.7)},
            "rollout.temperature=0.7; allowed: 1.0",
        ),
        ({"rollout": RolloutSettings(source="traces")}, "rollout.alpha=exact; allowed: off"),
        ({"reference": ReferenceSettings("frozen", into="reward")}, "reference.into=reward"),
    ],
)
def test_parts_of_a_rollout_are_refused(changes: dict[str, Any], message: str) -> None:
    parts = SimpleNamespace(
        recipe=SUPERVISED, rollout=RolloutSettings(source="traces", alpha="off"), reference=ReferenceSettings("frozen")
    )
    check_together(**vars(parts))
    with pytest.raises(ValueError, match=f"rollout.source=traces .*{message}"):
        check_together(**(vars(parts) | changes))
