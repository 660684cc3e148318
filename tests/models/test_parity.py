"""The training-side sparse forward is the rollout: same pages, same log-probabilities, token for token.

Two scores that are equal up to rounding may rank either way, and then everything after differs. So the pages are
compared layer by layer with the forward kept on the rollout's track, and a difference passes only if it is such a tie.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparrow.kernels import get_page_score
from sparrow.kernels.page_bits import num_words, pack_pages, unpack_pages
from sparrow.models import attention
from sparrow.models.adapter import adapter, adapter_parameters, add_adapter
from sparrow.models.attention import SparsePass, attention_mode, choose_pages
from sparrow.models.loading import load_policy
from sparrow.rollout import Completion, RolloutEngine
from sparrow.schedule import BudgetSchedule

TIE = 1e-4  # relative to the spread of a query's scores


@dataclass
class Layer:
    """What one sparse layer of the training pass saw and chose."""

    query_BHTD: Tensor
    key_BKTD: Tensor
    chosen_BKTN: Tensor


class Audit:
    """Stands in for the page choice: notes what it would be, and lets the forward read the rollout's pages."""

    def __init__(self, completions: Sequence[Completion], prompt_lens: Sequence[int], layers: list[int]) -> None:
        self.completions, self.prompt_lens, self.layers = completions, prompt_lens, layers
        self.seen: dict[int, Layer] = {}

    def __call__(self, layer: int, query_BHTD: Tensor, key_BKTD: Tensor, given: SparsePass) -> Tensor:
        num_pages = -(-key_BKTD.shape[2] // given.schedule.page_size)
        chosen_BKTM = choose_pages(query_BHTD, key_BKTD, given)
        self.seen[layer] = Layer(query_BHTD, key_BKTD, unpack_pages(chosen_BKTM, num_pages))
        for row, prompt_len in enumerate(self.prompt_lens):
            read_KTN = self.read(row, layer, num_pages)
            chosen_BKTM[row, :, prompt_len : prompt_len + read_KTN.shape[1]] = pack_pages(read_KTN)
        return chosen_BKTM

    def read(self, row: int, layer: int, num_pages: int) -> Tensor:
        """Pages that the rollout read: [K, T - 1, N] bool."""
        page_sets = self.completions[row].page_sets
        assert page_sets is not None
        bits_KTM = page_sets[self.layers.index(layer)]
        spare = max(0, num_words(num_pages) - bits_KTM.shape[-1])
        return unpack_pages(F.pad(bits_KTM, (0, spare)), num_pages)

    def differences(self, page_size: int) -> tuple[int, int, float]:
        """(sets that differ, sets in all, largest gap between pages that were taken for each other)."""
        different, total, gap = 0, 0, 0.0
        for number, layer in self.seen.items():
            for row, prompt_len in enumerate(self.prompt_lens):
                read_KTN = self.read(row, number, layer.chosen_BKTN.shape[-1])
                mine_KTN = layer.chosen_BKTN[row, :, prompt_len : prompt_len + read_KTN.shape[1]]
                total += mine_KTN[..., 0].numel()
                for k, i in (read_KTN != mine_KTN).any(-1).nonzero().tolist():
                    different += 1
                    score_N = self.scores(layer, row, k, prompt_len + i, page_size)
                    swapped_N = (read_KTN[k, i] != mine_KTN[k, i])[: len(score_N)]
                    gap = max(gap, float(score_N[swapped_N].max() - score_N[swapped_N].min()) / float(score_N.std()))
        return different, total, gap

    def scores(self, layer: Layer, row: int, k: int, position: int, page_size: int) -> Tensor:
        """Mean scores of the full pages at one position."""
        group, full = layer.query_BHTD.shape[1] // layer.key_BKTD.shape[1], (position + 1) // page_size
        query_D = layer.query_BHTD[row, k * group : (k + 1) * group, position].mean(0)
        return layer.key_BKTD[row, k, : full * page_size].view(full, page_size, -1).mean(1) @ query_D


def check_parity(
    model: nn.Module,
    prompts: list[list[int]],
    schedule: BudgetSchedule,
    monkeypatch: pytest.MonkeyPatch,
    *,
    temperature: float,
    max_new_tokens: int,
    with_adapter: bool = False,
) -> None:
    engine = RolloutEngine(model, schedule)
    completions = engine.generate(
        prompts,
        n=2,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=3,
        eos_token_ids=(),
        adapter=with_adapter,
        record=("page_sets",),
    )
    prompt_lens = [len(prompts[c.prompt_index]) for c in completions]
    sequences = [torch.tensor(prompts[c.prompt_index] + c.token_ids) for c in completions]
    tokens_BT = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    lengths = torch.tensor([len(s) for s in sequences])
    given = SparsePass(schedule, get_page_score("mean"), torch.tensor(prompt_lens), lengths)

    num_layers = engine.model.config.num_hidden_layers
    audit = Audit(completions, prompt_lens, [i for i in range(num_layers) if i not in schedule.dense_layers])
    monkeypatch.setattr(attention, "_page_sets", audit)
    with torch.no_grad(), attention_mode(model, "sparrow"), adapter(model, on=with_adapter):
        logits_BTV = model(input_ids=tokens_BT, use_cache=False, sparse_pass=given).logits
    logprobs_BTV = (logits_BTV / temperature).log_softmax(-1)
    for row, completion in enumerate(completions):
        predicted = torch.arange(prompt_lens[row], int(lengths[row]))
        mine_T = logprobs_BTV[row, predicted - 1, tokens_BT[row, predicted]]
        torch.testing.assert_close(mine_T, completion.logprobs, rtol=0, atol=1e-4)

    sparse = sum(int((layer.chosen_BKTN.sum(-1) > 0).sum()) for layer in audit.seen.values())
    assert sparse > 0
    different, total, gap = audit.differences(schedule.page_size)
    assert gap < TIE
    assert different <= total / 500, f"{different} of {total} page sets differ"


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(
    "schedule",
    [
        BudgetSchedule([1, 3, 2], page_size=4, bin_tokens=24, dense_layers=(0,)),
        BudgetSchedule([2], page_size=5, first=2, last=1, dense_layers=()),
    ],
    ids=["bins", "page-5"],
)
def test_tiny(schedule: BudgetSchedule, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = load_policy("tiny")
    prompts = [[1, 2, 3], [4] * 17, [int(i) % 13 for i in range(26)]]
    check_parity(model, prompts, schedule, monkeypatch, temperature=temperature, max_new_tokens=70)


def test_tiny_with_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = add_adapter(load_policy("tiny")[0], rank=4)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in adapter_parameters(model):
            parameter.normal_(std=0.1)
    schedule = BudgetSchedule([2], page_size=4, dense_layers=(0,))
    prompts = [[1, 2, 3], [5] * 14]
    for on in (True, False):
        check_parity(model, prompts, schedule, monkeypatch, temperature=1.0, max_new_tokens=40, with_adapter=on)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_smollm2(temperature: float, monkeypatch: pytest.MonkeyPatch, smollm2: str) -> None:
    model, tokenizer = load_policy(smollm2)
    questions = ["Explain in detail how a steam engine works.", "Write a story about a sparrow and a lighthouse."]
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True)["input_ids"]
        for q in questions
    ]
    schedule = BudgetSchedule([1, 2], page_size=16, bin_tokens=112)
    check_parity(model, prompts, schedule, monkeypatch, temperature=temperature, max_new_tokens=96)
