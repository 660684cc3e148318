"""The sparse forward against a slow one that goes token by token and chooses pages with Python's sort."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, PreTrainedModel, Qwen3Config
from transformers import AutoModelForCausalLM as Auto
from transformers.masking_utils import sdpa_mask

from sparrow.kernels import get_page_score
from sparrow.kernels.page_bits import pack_pages
from sparrow.models.adapter import add_adapter
from sparrow.models.attention import SparsePass, attention_mode, sparrow_attention
from sparrow.models.loading import recompute_layers
from sparrow.schedule import BudgetSchedule

SHARED: dict[str, Any] = {"vocab_size": 50, "intermediate_size": 48, "max_position_embeddings": 256}
CONFIGS = {
    # groups of 3, head size unlike hidden / heads; norms of query and key
    "qwen3": Qwen3Config(
        hidden_size=40,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=10,
        num_hidden_layers=3,
        tie_word_embeddings=True,
        **SHARED,
    ),
    # one query head per KV head
    "llama": LlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=2, head_dim=8, **SHARED
    ),
}
PROMPTS, LENGTHS, WIDTH = [5, 1, 30, 8], [43, 38, 37, 8], 45


def policy(family: str) -> PreTrainedModel:
    torch.manual_seed(1)
    model: PreTrainedModel = Auto.from_config(CONFIGS[family], attn_implementation="sdpa")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)  # sharp attention: choosing other pages changes a lot
    return model.eval()


def tokens() -> Tensor:
    return torch.randint(50, (len(PROMPTS), WIDTH), generator=torch.Generator().manual_seed(2))


def sparse_pass(schedule: BudgetSchedule, **fields: Any) -> SparsePass:
    lengths = torch.tensor(PROMPTS), torch.tensor(LENGTHS)
    return SparsePass(schedule, get_page_score("mean"), *lengths, **fields)


def real(values_BTX: Tensor) -> Tensor:
    return torch.cat([row[:length] for row, length in zip(values_BTX, LENGTHS)])


def sparse_logits(model: nn.Module, given: SparsePass) -> Tensor:
    with attention_mode(model, "sparrow"):
        logits: Tensor = model(input_ids=tokens(), use_cache=False, sparse_pass=given).logits
    return logits


def slow_pages(query_GD: Tensor, key_TD: Tensor, schedule: BudgetSchedule) -> list[int]:
    """Pages of one KV head at one response position; key_TD holds what is cached."""
    page, t = schedule.page_size, key_TD.shape[0]
    num_pages = math.ceil(t / page)
    budget = schedule.table[min(num_pages * page // schedule.bin_tokens, schedule.num_bins - 1)]
    if num_pages <= budget + schedule.first + schedule.last:
        return list(range(num_pages))
    between = range(schedule.first, num_pages - schedule.last)
    score = {n: float(query_GD.mean(0) @ key_TD[n * page : (n + 1) * page].mean(0)) for n in between}
    best = sorted(between, key=lambda n: (-score[n], n))[:budget]
    return [*range(schedule.first), *sorted(best), *range(num_pages - schedule.last, num_pages)]


def slow_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, *, scaling: float, **kwargs: Any
) -> tuple[Tensor, None]:
    schedule: BudgetSchedule = kwargs["slow_schedule"]
    query_BKGTD = query.unflatten(1, (key.shape[1], -1))
    out_BKGTD = torch.empty_like(query_BKGTD)
    for b, k, j in itertools.product(*(range(n) for n in key.shape[:3])):
        query_GD = query_BKGTD[b, k, :, j]
        cached = list(range(j + 1))
        if PROMPTS[b] <= j < LENGTHS[b] and module.layer_idx not in schedule.dense_layers:
            pages = slow_pages(query_GD.detach(), key[b, k, : j + 1].detach(), schedule)
            cached = [i for i in cached if i // schedule.page_size in pages]
        weights = torch.softmax(query_GD @ key[b, k, cached].T * scaling, dim=-1)
        out_BKGTD[b, k, :, j] = weights @ value[b, k, cached]
    return out_BKGTD.flatten(1, 2).transpose(1, 2), None


@pytest.fixture(autouse=True)
def slow_attention_is_registered() -> Iterator[None]:
    AttentionInterface.register("slow", slow_attention)
    AttentionMaskInterface.register("slow", sdpa_mask)
    yield
    AttentionInterface._global_mapping.pop("slow")
    AttentionMaskInterface._global_mapping.pop("slow")


SCHEDULES = {
    "constant": BudgetSchedule([2], page_size=4, dense_layers=()),
    "bins": BudgetSchedule([0, 3, 1], page_size=4, bin_tokens=16, first=1, last=2, dense_layers=(0,)),
    "page-3": BudgetSchedule([1, 4], page_size=3, bin_tokens=20, first=2, last=1, dense_layers=(1,)),
    "reserved-only": BudgetSchedule([0], page_size=4, first=0, last=1, dense_layers=()),
}


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_values_and_gradients_equal_the_slow_forward(family: str, name: str) -> None:
    schedule, model = SCHEDULES[name], policy(family)
    upstream = torch.randn(sum(LENGTHS), 50, generator=torch.Generator().manual_seed(3))
    fast = real(sparse_logits(model, sparse_pass(schedule)))
    (fast * upstream).sum().backward()
    fast_grads = {n: p.grad for n, p in model.named_parameters()}
    model.zero_grad()
    with attention_mode(model, "slow"):
        slow = real(model(input_ids=tokens(), use_cache=False, slow_schedule=schedule).logits)
    (slow * upstream).sum().backward()
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-4 * float(slow.detach().std()))
    for n, p in model.named_parameters():
        assert p.grad is not None
        error = (fast_grads[n] - p.grad).norm() / p.grad.norm()
        assert error < 1e-4, f"{n}: relative error {error}"


def test_sparsity_changes_the_response_and_leaves_the_prompt() -> None:
    model = policy("qwen3")
    with torch.no_grad():
        dense_BTV = model(input_ids=tokens(), use_cache=False).logits
        sparse_BTV = sparse_logits(model, sparse_pass(SCHEDULES["constant"]))
    changed_BT = (dense_BTV - sparse_BTV).abs().amax(-1) > 1e-2
    for row, (prompt_len, length) in enumerate(zip(PROMPTS, LENGTHS)):
        # 5 pages of 4 are read: from t = 21 on something is left out
        first = max(prompt_len, 20)
        assert not changed_BT[row, : min(first, length)].any()
        assert changed_BT[row, first:length].float().mean() > 0.5 or first >= length


@pytest.mark.parametrize("family", CONFIGS)
def test_a_budget_of_every_page_equals_dense(family: str) -> None:
    model = policy(family)
    generous = BudgetSchedule([100], page_size=4, dense_layers=())
    with torch.no_grad():
        dense = real(model(input_ids=tokens(), use_cache=False).logits)
        torch.testing.assert_close(real(sparse_logits(model, sparse_pass(generous))), dense, rtol=1e-4, atol=1e-4)
        for schedule in (BudgetSchedule.dense(), BudgetSchedule([0], dense_layers=(0, 1, 2))):
            assert torch.equal(real(sparse_logits(model, sparse_pass(schedule))), dense)


def test_a_row_is_the_same_alone_and_in_a_batch() -> None:
    model, schedule = policy("qwen3"), SCHEDULES["bins"]
    with torch.no_grad(), attention_mode(model, "sparrow"):
        together = model(input_ids=tokens(), use_cache=False, sparse_pass=sparse_pass(schedule)).logits[1, :38]
        given = SparsePass(schedule, get_page_score("mean"), torch.tensor([1]), torch.tensor([38]))
        alone = model(input_ids=tokens()[1:2, :38], use_cache=False, sparse_pass=given).logits[0]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_gradients_reach_attended_tokens_only() -> None:
    layer = nn.Module()
    layer.layer_idx = 0
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, 23, 8, requires_grad=True) for heads in (4, 2, 2))
    record: dict[int, Tensor] = {}
    schedule = BudgetSchedule([1], page_size=4, dense_layers=())
    given = SparsePass(schedule, get_page_score("mean"), torch.tensor([3]), torch.tensor([23]), record=record)
    out_BTHD, _ = sparrow_attention(layer, query, key, value, None, scaling=0.3, sparse_pass=given)
    out_BTHD[0, 21, :2].sum().backward()  # t = 22, 6 pages; heads 0 and 1 share KV head 0
    read = (record[0][0, 0, 21] >> torch.arange(6) & 1).bool()
    assert read.sum() == 4
    assert read[[0, 4, 5]].all()
    read_T = read.repeat_interleave(4)[:22]
    for tensor in (key, value):
        assert tensor.grad is not None
        assert torch.equal(tensor.grad[0, 0, :22].abs().sum(-1) > 0, read_T)
        assert not tensor.grad[0, 1].any()
        assert not tensor.grad[0, 0, 22].any()
    assert query.grad is not None
    assert query.grad[0, :2, 21].abs().sum(-1).min() > 0
    assert query.grad.count_nonzero() == query.grad[0, :2, 21].count_nonzero()


def test_a_replay_reads_the_recorded_pages() -> None:
    model, schedule = policy("qwen3"), SCHEDULES["bins"]
    record: dict[int, Tensor] = {}
    with torch.no_grad():
        chosen = sparse_logits(model, sparse_pass(schedule, record=record))
        assert sorted(record) == [1, 2]
        assert torch.equal(sparse_logits(model, sparse_pass(schedule, page_sets=record)), chosen)
        all_pages = dict.fromkeys((1, 2), pack_pages(torch.ones(4, 2, WIDTH, 12, dtype=torch.bool)))
        dense = real(model(input_ids=tokens(), use_cache=False).logits)
        replayed = real(sparse_logits(model, sparse_pass(schedule, page_sets=all_pages)))
        torch.testing.assert_close(replayed, dense, rtol=1e-4, atol=1e-4)
        with pytest.raises(KeyError, match=r"no entry for sparse layer 2, only for \[1\]"):
            sparse_logits(model, sparse_pass(schedule, page_sets={1: record[1]}))


def test_gradient_checkpointing_changes_nothing() -> None:
    model, given = policy("qwen3"), sparse_pass(SCHEDULES["bins"])
    model.train()
    grads = []
    for checkpointing in (False, True):
        if checkpointing:
            recompute_layers(model)
        with attention_mode(model, "sparrow"):
            real(model(input_ids=tokens(), use_cache=False, sparse_pass=given).logits).square().mean().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        model.zero_grad()
    assert len(grads[0]) == len(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("wrapped", [False, True])
def test_attention_mode_restores(wrapped: bool) -> None:
    inner = policy("llama")
    model: nn.Module = add_adapter(inner, rank=2) if wrapped else inner
    with attention_mode(model, "sparrow"):
        assert inner.config._attn_implementation == "sparrow"
        with attention_mode(model, "sdpa"):
            assert inner.config._attn_implementation == "sdpa"
        assert inner.config._attn_implementation == "sparrow"
    with pytest.raises(RuntimeError, match="inside"), attention_mode(model, "sparrow"):
        raise RuntimeError("inside")
    assert inner.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match="sparow"), attention_mode(model, "sparow"):
        pass
    assert inner.config._attn_implementation == "sdpa"


def test_the_pass_reaches_attention_through_an_adapter() -> None:
    inner, given = policy("llama"), sparse_pass(SCHEDULES["constant"])
    with torch.no_grad():
        plain = sparse_logits(inner, given)
        assert torch.equal(sparse_logits(add_adapter(inner, rank=2), given), plain)


def test_wrong_calls_are_refused() -> None:
    model, given = policy("llama"), sparse_pass(SCHEDULES["constant"])
    mask_BT = (torch.arange(WIDTH) < torch.tensor(LENGTHS).unsqueeze(1)).long()
    with attention_mode(model, "sparrow"), torch.no_grad():
        with pytest.raises(ValueError, match="needs the argument sparse_pass"):
            model(input_ids=tokens(), use_cache=False)
        with pytest.raises(ValueError, match="takes no attention_mask"):
            model(input_ids=tokens(), attention_mask=mask_BT, use_cache=False, sparse_pass=given)
        first = model(input_ids=tokens(), use_cache=True, sparse_pass=given)
        with pytest.raises(ValueError, match="takes whole sequences, not 1 queries on a cache of 46 keys"):
            model(input_ids=tokens()[:, :1], cache=first.cache, use_cache=True, sparse_pass=given)
        model.train()
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.1
        with pytest.raises(ValueError, match=r"attention_dropout=0.1"):
            model(input_ids=tokens(), use_cache=False, sparse_pass=given)
