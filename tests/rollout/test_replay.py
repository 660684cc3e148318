"""The training-side pass over recorded page sets gives what the rollout sampled from."""

import pytest
import torch

from sparrow.kernels import get_page_score
from sparrow.kernels.page_bits import unpack_pages
from sparrow.models.attention import SparsePass, attention_mode
from sparrow.rollout import RolloutEngine, replay_page_sets
from sparrow.schedule import BudgetSchedule

SCHEDULE = BudgetSchedule([1, 0, 2], page_size=4, bin_tokens=16, dense_layers=(1,))


@pytest.mark.parametrize("page_score", ["mean", "minmax", "random"])
def test_a_replayed_pass_gives_the_recorded_logprobs(page_score, make_model, make_prompts):
    model, prompts = make_model("qwen3"), make_prompts([3, 26, 9])
    completions = RolloutEngine(model, SCHEDULE, page_score=page_score).generate(
        prompts, max_new_tokens=30, seed=0, eos_token_ids=[2], record=("page_sets",)
    )
    lengths = [len(prompt) for prompt in prompts]
    totals = [length + len(completion.token_ids) for length, completion in zip(lengths, completions)]
    width = max(totals) + 3
    tokens_BT = torch.zeros(len(prompts), width, dtype=torch.long)
    for row, (prompt, completion) in enumerate(zip(prompts, completions)):
        tokens_BT[row, : totals[row]] = torch.tensor(prompt + completion.token_ids)
    sets = replay_page_sets(completions, lengths, [0, 2, 3], page_size=4, width=width)
    sparse_pass = SparsePass(
        SCHEDULE, get_page_score(page_score), torch.tensor(lengths), torch.tensor(totals), page_sets=sets
    )
    with torch.no_grad(), attention_mode(model, "sparrow"):
        logits_BTV = model(input_ids=tokens_BT, use_cache=False, sparse_pass=sparse_pass).logits
    for row, completion in enumerate(completions):
        logprobs = torch.log_softmax(logits_BTV[row, lengths[row] - 1 : totals[row] - 1], dim=-1)
        got = logprobs.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(got, completion.logprobs, rtol=0, atol=1e-4)


def test_layout_by_hand(make_model, make_prompts):
    # Prompt 14, 5 tokens, budget 0: queries 14, 15 see 4 pages, 16 and 17 see 5; each reads page 0 and the last two.
    schedule = BudgetSchedule.constant(0, page_size=4)
    completions = RolloutEngine(make_model("qwen3"), schedule).generate(
        make_prompts([14]), max_new_tokens=5, seed=0, eos_token_ids=[], record=("page_sets",)
    )
    sets = replay_page_sets(completions, [14], [2, 3], page_size=4, width=22)
    assert list(sets) == [2, 3]
    for chosen_BKTM in sets.values():
        assert chosen_BKTM.shape == (1, 2, 22, 1)
        for head in unpack_pages(chosen_BKTM[0], 6).tolist():
            pages = [[n for n in range(6) if row[n]] for row in head]
            assert pages[:14] == [[]] * 14
            assert pages[14:] == [[0, 2, 3]] * 2 + [[0, 3, 4]] * 2 + [[0, 1, 2, 3, 4]] + [[]] * 3


def test_what_does_not_fit_is_refused(make_model, make_prompts):
    engine = RolloutEngine(make_model("qwen3"), SCHEDULE)
    arguments = {"max_new_tokens": 5, "seed": 0, "eos_token_ids": []}
    recorded = engine.generate(make_prompts([4]), record=("page_sets",), **arguments)
    with pytest.raises(ValueError, match="completion 0 holds page sets of 3 layers, but 2 are sparse"):
        replay_page_sets(recorded, [4], [2, 3], page_size=4, width=20)
    with pytest.raises(ValueError, match="completion 0 has 9 tokens with its prompt, width=8"):
        replay_page_sets(recorded, [4], [0, 2, 3], page_size=4, width=8)
    with pytest.raises(ValueError, match="completion 0 holds no page sets"):
        replay_page_sets(engine.generate(make_prompts([4]), **arguments), [4], [0, 2, 3], page_size=4, width=20)
