"""The worth of an adapter, read twice over the same tokens and pages."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from sparrow.algorithms import advantages, aggregation, corrections, losses
from sparrow.algorithms.distillation import SampledToken
from sparrow.callbacks import AdapterTail, Tail
from sparrow.callbacks.adapter_tail import READINGS, _readings, measure
from sparrow.metrics.functional import acceptance_rate
from sparrow.models.adapter import adapter_parameters
from sparrow.modules import DistillSettings, DistillSparse, Experience, Recipe, RolloutSettings, UpdateSettings
from sparrow.modules.passes import dense_pass, hidden_states, predicting
from sparrow.schedule import BudgetSchedule

SPARSE = BudgetSchedule.constant(0, page_size=4, bin_tokens=8, dense_layers=())
RICH = SPARSE.replace(pages=[100])


def tiny_model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=13,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
    )
    model = Qwen3ForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3) if parameter.ndim > 1 else None
    return model


def policy(spread: float) -> DistillSparse:
    module = DistillSparse(
        tiny_model(),
        SPARSE,
        recipe=Recipe(advantages.grpo, corrections.TokenTIS(), losses.ppo_clip, aggregation.token_mean),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        rollout=RolloutSettings(temperature=1.5),
        update=UpdateSettings(micro_batch_tokens=40),
        distill=DistillSettings(enabled=True, rank=2),
        divergence=SampledToken(),
    )
    if spread:
        for parameter in adapter_parameters(module.model):
            torch.nn.init.normal_(parameter, std=spread)
    return module


def traces() -> Experience:
    generator = torch.Generator().manual_seed(0)
    length_B = torch.tensor([30, 37, 22])
    return Experience(
        tokens_BT=torch.randint(13, (3, 37), generator=generator),
        prompt_len_B=torch.tensor([5, 9, 5]),
        length_B=length_B,
        sparse_logprobs_BT=torch.zeros(3, 37),
        rewards_B=torch.zeros(3),
        advantages_B=torch.zeros(3),
        group_B=torch.zeros(3, dtype=torch.long),
    )


def read(module: DistillSparse, schedule: BudgetSchedule) -> dict[str, Any]:
    experience = traces()
    with torch.no_grad():
        with dense_pass(module.model):
            dense_XE = predicting(hidden_states(module.model, experience.tokens_BT), experience.mask_BT)
        return _readings(module, experience, schedule, dense_XE)


def test_a_new_adapter_changes_nothing() -> None:
    found = read(policy(0.0), SPARSE)
    assert list(found) == list(READINGS)
    for reading in READINGS[1:]:
        assert torch.equal(found[reading], found["adapter_off"])
    assert found["adapter_off"][traces().decoded_BT].min() < 0.9


def test_without_the_adapter_it_is_the_base_and_with_it_only_the_weights_differ() -> None:
    fresh, trained = read(policy(0.0), SPARSE), read(policy(0.2), SPARSE)
    assert torch.equal(trained["adapter_off"], fresh["adapter_off"])
    assert not torch.equal(trained["adapter_on"], trained["adapter_off"])


def test_own_pages_differ_from_those_of_the_base_where_there_is_a_choice() -> None:
    found = read(policy(0.3), SPARSE.replace(pages=[2]))
    assert not torch.equal(found["adapter_on_own_pages"], found["adapter_on"])
    free = read(policy(0.3), SPARSE)  # with reserved pages only, nothing is chosen
    assert torch.equal(free["adapter_on_own_pages"], free["adapter_on"])


def test_every_page_without_adapter_is_the_dense_policy_and_alpha_is_at_the_temperature() -> None:
    module, experience = policy(0.2), traces()
    found = read(module, RICH)
    mask_BT = experience.mask_BT
    assert found["adapter_off"][mask_BT].min() > 1 - 1e-5
    with torch.no_grad():
        logits = [module.model(input_ids=experience.tokens_BT, use_cache=False).logits]  # adapter on
        with dense_pass(module.model):
            logits.append(module.model(input_ids=experience.tokens_BT, use_cache=False).logits)
    alpha_BT = acceptance_rate(logits[0], logits[1], temperature=1.5)
    shifted_BT = torch.zeros_like(mask_BT)
    shifted_BT[:, :-1] = mask_BT[:, 1:]
    torch.testing.assert_close(found["adapter_on"][mask_BT], alpha_BT[shifted_BT], atol=1e-4, rtol=0)


def test_bins_count_every_decoded_token_once_and_thin_ones_are_left_out() -> None:
    # Decoded: positions 6 .. 29, 10 .. 36 and 6 .. 21, rounded up to pages of 4, in bins of 8; the last bin is open.
    module, tail = policy(0.0), Tail(SPARSE, bin_tokens=8, num_bins=3, filled=1)
    found = measure(module, traces(), {"only": SPARSE}, tail)["only"]["adapter_on"]
    rounded = [-(-t // 4) * 4 for low, high in ((6, 30), (10, 37), (6, 22)) for t in range(low, high)]
    counts = [sum(min(t // 8, 2) == index for t in rounded) for index in range(3)]
    assert [(low, high, count) for low, high, _, count in found] == [
        (8 * index, 8 * index + 8, count) for index, count in enumerate(counts) if count
    ]
    thick = measure(module, traces(), {"only": SPARSE}, Tail(SPARSE, bin_tokens=8, num_bins=3, filled=max(counts)))
    assert len(thick["only"]["adapter_on"]) == 1


def test_the_reported_schedule_gives_the_short_keys() -> None:
    callback = AdapterTail({"a": {"scale": 1.0}, "b": {"scale": 0.5}}, reported="b")
    bins = {"a": {r: [(0, 8, 0.9, 5), (8, 16, 0.8, 5)] for r in READINGS}, "b": {r: [(0, 8, 0.7, 5)] for r in READINGS}}
    least = callback._least(bins)
    assert least["tail_p05_min_adapter_on"] == least["tail_p05_min_b_adapter_on"] == 0.7
    assert least["tail_p05_min_a_adapter_off"] == 0.8


def test_a_level_reads_the_reported_schedule_where_the_actor_falls_to_it() -> None:
    rich = SPARSE.replace(pages=[9])
    callback = AdapterTail({"cheaper": {"pages": [0]}}, reported="cheaper", level=0.9)
    module, tail = policy(0.2), Tail(SPARSE, bin_tokens=8, num_bins=5, filled=1)
    module.schedule = rich
    callback.setup(None, module, "fit")  # type: ignore[arg-type]
    walk = {str(pages): SPARSE.replace(pages=[pages]) for pages in range(10)}
    found = measure(module, traces(), walk, tail)
    least = [min(p5 for *_, p5, _ in found[str(pages)]["adapter_off"]) for pages in range(10)]
    assert least[9] > 0.9 > least[0]
    at = callback._at_level(module, traces(), tail).table[0]
    assert least[at] <= 0.9 < least[at + 1]


def test_the_first_readings_alone_are_those_of_all() -> None:
    module, tail = policy(0.2), Tail(SPARSE, bin_tokens=8, num_bins=3, filled=1)
    alone = measure(module, traces(), {"a": SPARSE}, tail, READINGS[:1])["a"]
    assert list(alone) == ["adapter_off"]
    assert alone["adapter_off"] == measure(module, traces(), {"a": SPARSE}, tail)["a"]["adapter_off"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdapterTail({"a": "dense"}, reported="b"), "reported='b': must be one of a"),
        (lambda: AdapterTail({"a": "dense"}, reported="a", prompts=0), "prompts=0: must be 1 or more"),
        (lambda: AdapterTail({"a": "dense"}, "a", level=1.0), "level=1.0: must be between 0 and 1, or null"),
        (
            lambda: AdapterTail({"a": {"page_size": 8}}, "a", level=0.8).setup(None, policy(0.0), "fit"),  # type: ignore[arg-type]
            "callbacks.adapter_tail.schedules.a with level=0.8: it differs from the run's first schedule in more",
        ),
        (
            lambda: AdapterTail({"a": "dense"}, "a").setup(None, torch.nn.Module(), "fit"),  # type: ignore[arg-type]
            "this run has none: set distill=lora",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
