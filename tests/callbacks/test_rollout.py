"""What of a rollout trains: greedy baselines, the best of a group, groups that differ, prompts drawn for the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sparrow.algorithms import advantages, aggregation, corrections, losses
from sparrow.algorithms.advantages.remax import needs_baseline
from sparrow.callbacks import Rollout
from sparrow.callbacks.groups import Group, extra_prompts
from sparrow.data import Prompt, PromptDataModule, PromptRow
from sparrow.modules import DensePolicy, Recipe, ReferenceSettings, RolloutSettings, UpdateSettings
from sparrow.rewards import Outcome, Scorer
from sparrow.rewards.base import Reward
from sparrow.rewards.shaping import SoftOverlong
from sparrow.rollout import Completion, RolloutEngine
from sparrow.schedule import BudgetSchedule
from tests.modules.conftest import small_model

EOS = (12,)


def outcomes(*scores: float) -> list[Outcome]:
    return [Outcome(score, "correct" if score > 0.5 else "wrong") for score in scores]


def completion(length: int = 3, index: int = 0) -> Completion:
    return Completion([1] * length, torch.zeros(length), None, None, torch.zeros(length), None, None, "stop", 0, index)


def prompt(index: int) -> Prompt:
    row = PromptRow("test", [{"role": "user", "content": "?"}], {"style": "rule", "ground_truth": str(index)})
    return Prompt(row, [1, 2 + index % 5, 3], index)


def group(scores: Sequence[float], labels: Sequence[Any] | None = None) -> Group:
    judged = outcomes(*scores) if labels is None else [Outcome(s, n) for s, n in zip(scores, labels, strict=True)]
    return Group(prompt(0), [completion(index=i) for i in range(len(scores))], judged, judged)


def test_the_best_of_a_group_keep_their_order_and_equals_go_to_the_earlier() -> None:
    best = group([0.0, 1.0, 0.5, 1.0, 0.5]).best(3)
    assert [c.sample_index for c in best.completions] == [1, 2, 3]
    assert [o.score for o in best.outcomes] == [1.0, 0.5, 1.0]
    assert [c.sample_index for c in group([0.0] * 4).best(2).completions] == [0, 1]


def test_a_group_is_mixed_by_the_verifier_not_by_shaping() -> None:
    shape = SoftOverlong(max_tokens=4, buffer_tokens=2)
    judged = outcomes(1.0, 1.0)
    shaped = [shape(judged[0], 2), shape(judged[1], 4)]
    assert [outcome.score for outcome in shaped] == [1.0, 0.0]
    assert not Group(prompt(0), [completion(2), completion(4)], judged, shaped).mixed("baseline")
    assert group([1.0, 0.0]).mixed("baseline")


def test_a_failed_verifier_mixes_a_group_only_where_it_counts() -> None:
    failed = group([1.0, 0.0], ["correct", "timeout"])
    assert failed.mixed("baseline")
    assert not failed.mixed("left_out")
    assert not group([0.0, 0.0], ["timeout", "error"]).mixed("left_out")


def test_extra_prompts_follow_from_seed_and_step_and_are_shared_out() -> None:
    prompts = [prompt(index) for index in range(10)]

    def keys(step: int, **place: int) -> list[int]:
        return [p.key for p in extra_prompts(prompts, {3, 7}, seed=1, step=step, **place)]

    assert sorted(keys(4)) == [0, 1, 2, 4, 5, 6, 8, 9]
    assert keys(4) == keys(4) != keys(5)
    shares = [keys(4, rank=rank, world_size=2) for rank in (0, 1)]
    assert shares == [keys(4)[0::2], keys(4)[1::2]]


@dataclass
class Letters:
    """Reads token ids as letters, so that a reward can look at them."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(97 + token) for token in token_ids)


def parity(text: str) -> float:
    """1 for an even first token."""
    return float(ord(text[0]) % 2 == 1)


@dataclass(frozen=True)
class Told(Reward):
    """A function of the text, also of a completion that was cut."""

    of: Callable[[str], float]
    scores_truncated = True  # type: ignore[assignment]

    def __call__(self, completion: str, row: Any, finish_reason: str) -> Outcome:
        return outcomes(self.of(completion))[0]


class Harness:
    """A rollout callback with all that it looks at, without a trainer."""

    def __init__(
        self,
        reward: Any = parity,
        *,
        shaping: Sequence[Any] = (),
        advantage: Any = advantages.dr_grpo,
        **rollout: Any,
    ) -> None:
        settings = RolloutSettings(**({"samples": 2, "max_new_tokens": 6, "max_batch": 16} | rollout))
        self.module = DensePolicy(
            small_model(),
            BudgetSchedule.constant(0, page_size=4, dense_layers=()),
            recipe=Recipe(advantage, corrections.NoCorrection(), losses.reinforce, aggregation.token_mean),
            optimizer=partial(torch.optim.SGD, lr=0.1),
            rollout=settings,
            update=UpdateSettings(),
        )
        data = PromptDataModule(SimpleNamespace(), SimpleNamespace(), 4, 0)  # type: ignore[arg-type]
        data.train_prompts = [prompt(index) for index in range(40)]
        self.trainer: Any = SimpleNamespace(
            global_step=0, global_rank=0, world_size=1, datamodule=data, progress_bar_callback=None
        )
        self.module._trainer = self.trainer
        self.callback = Rollout(Letters(), Scorer(reward=Told(reward), shaping=shaping), 5, EOS)
        self.callback.setup(self.trainer, self.module, "fit")

    def step(self, index: int = 0) -> tuple[Any, dict[str, float]]:
        self.trainer.global_step = index
        batch = {"prompts": self.trainer.datamodule.train_prompts[4 * index : 4 * index + 4]}
        self.callback.on_train_batch_start(self.trainer, self.module, batch, index)
        return batch["experience"], self.module.step_metrics


def test_remax_takes_the_reward_of_the_greedy_answer() -> None:
    harness = Harness(advantage=partial(advantages.remax))
    experience, _ = harness.step()
    engine = RolloutEngine(harness.module.model, harness.module.schedule)
    prompts = harness.trainer.datamodule.train_prompts[:4]
    greedy = engine.generate(
        [p.token_ids for p in prompts], max_new_tokens=6, temperature=0.0, seed=0, eos_token_ids=EOS
    )
    baseline = [parity(Letters().decode(c.token_ids, skip_special_tokens=True)) for c in greedy]
    expected = experience.rewards_B - torch.tensor(baseline).repeat_interleave(2)
    assert torch.equal(experience.advantages_B, expected)
    assert {0.0, 1.0} == set(experience.rewards_B.tolist())


def test_a_partial_of_a_marked_estimator_is_marked() -> None:
    assert needs_baseline(partial(advantages.remax))
    assert not needs_baseline(advantages.grpo)


def test_oversampling_keeps_the_best_of_the_very_samples() -> None:
    plain, _ = Harness(samples=6).step()
    kept, metrics = Harness(samples=2, oversample=3).step()
    for index in range(4):
        of_six = plain.rewards_B[6 * index : 6 * index + 6]
        assert sorted(kept.rewards_B[2 * index : 2 * index + 2].tolist()) == sorted(of_six.tolist())[-2:]
    assert metrics["critic/score_sampled/mean"] == pytest.approx(plain.rewards_B.mean().item())
    assert metrics["critic/score/mean"] > metrics["critic/score_sampled/mean"]


def test_dynamic_sampling_fills_up_with_groups_that_differ() -> None:
    harness = Harness(filter_groups=True, max_tries=20)
    experience, metrics = harness.step()
    rewards_G2 = experience.rewards_B.view(-1, 2)
    assert len(rewards_G2) == 4 == metrics["training/filter_groups/kept"]
    assert bool((rewards_G2[:, 0] != rewards_G2[:, 1]).all())
    assert metrics["training/filter_groups/sampled"] > 4
    assert metrics["training/filter_groups/tries"] > 1
    assert experience.group_B.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert 0 < metrics["training/filter_groups/solved_all"] + metrics["training/filter_groups/solved_none"] < 1


def test_a_step_drawn_again_alone_is_the_same() -> None:
    # What a resumed run does: a new process whose first step is the second one.
    through, resumed = (Harness(filter_groups=True, max_tries=6) for _ in range(2))
    through.step(0)
    again = resumed.step(1)[0]
    first = through.step(1)[0]
    assert torch.equal(first.tokens_BT, again.tokens_BT)
    assert torch.equal(first.advantages_B, again.advantages_B)


@pytest.mark.parametrize(("tries", "sampled"), [(1, 4), (3, 12)])
def test_prompts_that_all_fail_end_after_the_tries_with_no_advantage(tries: int, sampled: int) -> None:
    experience, metrics = Harness(lambda text: 0.0, filter_groups=True, max_tries=tries).step()
    assert metrics["training/filter_groups/kept"] == 0
    assert metrics["training/filter_groups/sampled"] == sampled
    assert metrics["training/filter_groups/solved_none"] == 1
    assert experience.advantages_B.tolist() == [0.0] * 8


def test_a_set_that_was_tried_whole_ends_the_search() -> None:
    _, metrics = Harness(lambda text: 1.0, filter_groups=True, max_tries=1000).step()
    assert metrics["training/filter_groups/sampled"] == 40


def test_shaping_by_length_reaches_the_reward() -> None:
    # 6 tokens at most, 2 of buffer: 4 tokens cost nothing, 5 cost one half, 6 cost 1.
    experience, _ = Harness(lambda text: 1.0, shaping=[SoftOverlong(6, 2)]).step()
    lengths = (experience.length_B - experience.prompt_len_B).tolist()
    assert {5, 6} & set(lengths)
    expected = [{5: 0.5, 6: 0.0}.get(length, 1.0) for length in lengths]
    assert experience.rewards_B.tolist() == expected


def test_a_reference_in_the_reward_moves_rewards_and_advantages() -> None:
    harness = Harness()
    plain, _ = harness.step()
    settings = ReferenceSettings("frozen", "k1", coefficient=0.25, into="reward")
    harness.module.reference = type(harness.module.reference)(settings, harness.module.model)
    with torch.no_grad():
        for parameter in harness.module.model.parameters():
            parameter *= 1.1
    moved, metrics = harness.step()
    penalty_B, distance = harness.module.reward_penalty(moved)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(distance)
    first_B = moved.tokens_BT.gather(1, moved.prompt_len_B[:, None])[:, 0]
    scores_B = (first_B % 2 == 0).float()
    torch.testing.assert_close(moved.rewards_B, scores_B - penalty_B)
    assert metrics["critic/rewards/mean"] == pytest.approx(moved.rewards_B.mean().item(), abs=1e-6)
    groups = moved.rewards_B.view(-1, 2)
    torch.testing.assert_close(moved.advantages_B, (groups - groups.mean(1, keepdim=True)).flatten())
    assert "critic/rewards/mean" not in Harness().step()[1]
    assert plain.rewards_B.max() == 1
