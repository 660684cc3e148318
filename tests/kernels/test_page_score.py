import pytest
import torch
from torch import Tensor

from sparrow.kernels.page_score import PageScore, get_page_score, register_page_score


def test_mean_by_hand() -> None:
    score = get_page_score("mean")
    landmarks = score.landmarks(torch.tensor([[[1.0, 2.0], [3.0, -4.0]]]))
    assert landmarks.tolist() == [[[2.0, -1.0]]]
    assert score.scores(torch.tensor([[[10.0, 1.0]]]), landmarks[None, None]).tolist() == [[[19.0]]]


def test_minmax_by_hand() -> None:
    score = get_page_score("minmax")
    landmarks = score.landmarks(torch.tensor([[[1.0, 2.0], [3.0, -4.0]]]))
    assert landmarks.tolist() == [[[1.0, -4.0], [3.0, 2.0]]]
    # 10 * 3 (the maximum) + -1 * -4 (the minimum)
    assert score.scores(torch.tensor([[[10.0, -1.0]]]), landmarks[None, None]).tolist() == [[[34.0]]]


def test_minmax_bounds_every_key_of_the_page() -> None:
    score = get_page_score("minmax")
    keys, query = torch.randn(5, 16, 32), torch.randn(1, 1, 32)
    bound = score.scores(query, score.landmarks(keys)[None, None])[0, 0]
    assert (bound >= (keys @ query[0, 0]).amax(dim=1) - 1e-4).all()


def test_random_is_a_fixed_permutation_free_of_content() -> None:
    score = get_page_score("random")
    first = score.scores(torch.randn(2, 3, 8), torch.randn(2, 3, 400, 1, 8))
    longer = score.scores(torch.randn(1, 3, 8), torch.randn(1, 3, 900, 1, 8))
    assert torch.equal(first[0], first[1])
    assert torch.equal(first[0], longer[0, :, :400])
    assert longer.min() >= 0
    assert longer.max() < 1
    # Uniform: the mean of 900 is 0.5 +- 4 * 0.29 / 30, and the ten tenths hold 90 +- 4 * 9 each.
    assert (longer.mean(dim=-1) - 0.5).abs().max() < 0.04
    assert all(54 <= count <= 126 for head in longer[0] for count in torch.histc(head, 10, 0, 1).tolist())
    # Heads and neighbouring pages are uncorrelated.
    assert torch.corrcoef(longer[0]).fill_diagonal_(0).abs().max() < 0.13
    assert torch.corrcoef(torch.stack((longer[0, 0, 1:], longer[0, 0, :-1])))[0, 1].abs() < 0.13


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(KeyError, match=r"unknown page score 'median', allowed: .*mean, minmax, random"):
        get_page_score("median")


def test_register() -> None:
    @register_page_score
    class FirstKey(PageScore):
        name = "test-first-key"
        width = 1

        def landmarks(self, key_XPD: Tensor) -> Tensor:
            return key_XPD[:, :1]

        def scores(self, query_BKD: Tensor, landmarks_BKNWD: Tensor) -> Tensor:
            return (query_BKD[:, :, None] * landmarks_BKNWD[..., 0, :]).sum(-1)

    assert isinstance(get_page_score("test-first-key"), FirstKey)

    class Other(FirstKey):
        pass

    with pytest.raises(ValueError, match="'test-first-key' is registered already"):
        register_page_score(Other)
