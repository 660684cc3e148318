"""Layout of a rollout, by hand: who stands where, and what is refused."""

import pytest
import torch

from sparrow.modules import Experience, collect, collect_unjudged
from sparrow.rollout import Completion


def completion(token_ids: list[int], logprobs: list[float], prompt: int = 0, hidden: bool = False) -> Completion:
    return Completion(
        token_ids=token_ids,
        logprobs=torch.tensor(logprobs),
        topk_ids=None,
        topk_logprobs=None,
        pages_read=torch.zeros(len(token_ids), dtype=torch.int64),
        hidden=torch.ones(len(token_ids), 3) * token_ids[0] if hidden else None,
        page_sets=None,
        finish_reason="stop",
        prompt_index=prompt,
        sample_index=0,
    )


@pytest.fixture
def experience() -> Experience:
    return collect(
        [[7, 8], [9]],
        [completion([1, 2, 3], [-0.1, -0.2, -0.3], 0, hidden=True), completion([4], [-0.4], 1, hidden=True)],
        [1.0, 0.0],
        torch.tensor([0.5, -0.5]),
        torch.tensor([0, 1]),
    )


def test_layout_by_hand(experience: Experience) -> None:
    assert experience.tokens_BT.tolist() == [[7, 8, 1, 2, 3], [9, 4, 0, 0, 0]]
    assert experience.prompt_len_B.tolist() == [2, 1]
    assert experience.length_B.tolist() == [5, 2]
    expected = torch.tensor([[0.0, 0.0, -0.1, -0.2, -0.3], [0.0, -0.4, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(experience.sparse_logprobs_BT, expected)


def test_masks_by_hand(experience: Experience) -> None:
    assert experience.mask_BT.int().tolist() == [[0, 0, 1, 1, 1], [0, 1, 0, 0, 0]]
    # The first response token of each sequence is predicted by the dense prefill.
    assert experience.decoded_BT.int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]
    assert experience.position_BT[0].tolist() == [0, 1, 2, 3, 4]


def test_select_trims_to_the_longest(experience: Experience) -> None:
    second = experience.select([1])
    assert second.tokens_BT.tolist() == [[9, 4]]
    assert second.advantages_B.tolist() == [-0.5]
    assert second.sparse_hidden is not None
    assert second.sparse_hidden[0].tolist() == [[4.0, 4.0, 4.0]]
    both = experience.select([1, 0])
    assert both.tokens_BT.tolist() == [[9, 4, 0, 0, 0], [7, 8, 1, 2, 3]]


def test_missing_records_stay_missing() -> None:
    made = collect([[1]], [completion([2], [-1.0])], [0.0], torch.zeros(1), torch.zeros(1, dtype=torch.long))
    assert made.sparse_hidden is None
    assert made.sparse_topk is None


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="completion 0: 2 token ids but 1 log-probs"):
        collect([[1]], [completion([2, 3], [-1.0])], [0.0], torch.zeros(1), torch.zeros(1, dtype=torch.long))


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_a_missing_logprob_is_never_filled(bad: float) -> None:
    with pytest.raises(ValueError, match=r"completion 0 \(prompt 0\): a sampled log-prob is not finite"):
        collect([[1]], [completion([2, 3], [-1.0, bad])], [0.0], torch.zeros(1), torch.zeros(1, dtype=torch.long))


def test_what_is_only_measured_has_no_reward_and_is_grouped_by_prompt() -> None:
    made = collect_unjudged([[7, 8], [9]], [completion([4], [-0.4], 1), completion([1, 2], [-0.1, -0.2], 0)])
    assert made.tokens_BT.tolist() == [[9, 4, 0, 0], [7, 8, 1, 2]]
    assert made.group_B.tolist() == [1, 0]
    assert made.rewards_B.tolist() == made.advantages_B.tolist() == [0.0, 0.0]
