"""TailAcceptance against torch.quantile per bin; merged shards; masks; pooled steps."""

import math
import pickle

import pytest
import torch

from sparrow.metrics import PooledTail, TailAcceptance


def draws(number=4000, seed=0):
    generator = torch.Generator().manual_seed(seed)
    alpha = 1 - torch.rand(number, generator=generator).pow(6)
    return alpha, torch.randint(0, 9000, (number,), generator=generator)


def filled_tail(alpha, position, **settings):
    tail = TailAcceptance(bin_tokens=2000, num_bins=4, **settings)
    tail.update(alpha, position)
    return tail


def test_against_torch_quantile():
    alpha, position = draws()
    result = filled_tail(alpha, position).compute()
    assert set(result) == {"mean", "p01", "p05", "p10", "min", "p05_bins", "count_bins"}
    assert result["mean"].item() == pytest.approx(alpha.double().mean().item())
    assert result["min"].item() == alpha.min().item()
    for name, level in (("p01", 0.01), ("p05", 0.05), ("p10", 0.1)):
        assert result[name].item() == pytest.approx(torch.quantile(alpha, level).item(), abs=0.0005)
    bins = (position // 2000).clamp(max=3)
    for index in range(4):
        inside = alpha[bins == index]
        assert result["count_bins"][index] == len(inside)
        assert result["p05_bins"][index].item() == pytest.approx(torch.quantile(inside, 0.05).item(), abs=0.0005)


def test_positions_at_the_edges_of_bins():
    tail = TailAcceptance(bin_tokens=2000, num_bins=3)
    tail.update(torch.ones(6), torch.tensor([0, 1999, 2000, 5999, 6000, 10**9]))
    assert tail.compute()["count_bins"].tolist() == [2, 1, 3]


def test_mask_and_padding():
    alpha, position = draws(600)
    mask = torch.rand(600, generator=torch.Generator().manual_seed(1)) > 0.4
    padded = torch.where(mask, alpha, math.nan).reshape(6, 100)
    tail = TailAcceptance(bin_tokens=2000, num_bins=4)
    tail.update(padded, position.reshape(6, 100), mask.reshape(6, 100))
    expected = filled_tail(alpha[mask], position[mask]).compute()
    for name, value in tail.compute().items():
        torch.testing.assert_close(value, expected[name], msg=name)


def test_shards_merge_to_the_whole():
    alpha, position = draws()
    whole, shards = filled_tail(alpha, position), TailAcceptance(bin_tokens=2000, num_bins=4)
    for a, t in zip(alpha.split(333), position.split(333), strict=True):
        shards.merge(filled_tail(a, t))
        assert shards.compute()["count_bins"].sum() == shards.counts.sum()
    assert shards.counts.equal(whole.counts)
    for name, value in shards.compute().items():
        torch.testing.assert_close(value, whole.compute()[name], msg=name)


def test_states_reduce_over_ranks_by_sum_and_minimum():
    alpha, position = draws()
    ranks = [filled_tail(a, t) for a, t in zip(alpha.chunk(3), position.chunk(3), strict=True)]
    synced = TailAcceptance(bin_tokens=2000, num_bins=4)
    for name, reduce in synced._reductions.items():
        setattr(synced, name, reduce(torch.stack([getattr(rank, name) for rank in ranks])))
    synced._update_count = 1
    torch.testing.assert_close(synced.compute(), filled_tail(alpha, position).compute())


def test_refuses_to_merge_other_bins():
    with pytest.raises(ValueError, match="cannot merge: num_bins is 4 here, 5 there"):
        TailAcceptance(num_bins=4).merge(TailAcceptance(num_bins=5))


def test_empty_bins_and_an_empty_metric_read_nan():
    tail = TailAcceptance(num_bins=2)
    tail.update(torch.empty(0), torch.empty(0))
    result = tail.compute()
    assert all(math.isnan(result[name].item()) for name in ("mean", "p01", "p05", "p10", "min"))
    assert result["p05_bins"].isnan().all()
    tail.update(torch.tensor([0.5]), torch.tensor([0]))
    assert tail.compute()["p05_bins"].isnan().tolist() == [False, True]


def test_filled_fraction_below_and_quantile_name():
    tail = filled_tail(torch.tensor([0.5, 0.9, 0.95, 1.0]), torch.tensor([0, 0, 0, 3000]), quantile=0.5)
    assert tail.filled(3).tolist() == [True, False, False, False]
    assert tail.fraction_below(0.92).item() == 0.5
    assert tail.compute()["p50_bins"][0].item() == pytest.approx(0.9, abs=3e-4)


def test_rounding_past_one_is_allowed_but_no_more():
    tail = TailAcceptance()
    tail.update(torch.tensor([1.0 + 1e-6]), torch.tensor([5]))
    assert tail.compute()["p05"].item() == 1.0
    for bad in (1.2, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"alpha is .* at position 7; allowed: 0 \.\. 1"):
            tail.update(torch.tensor([0.5, bad]), torch.tensor([6, 7]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(3), torch.ones(4)), r"shapes differ: alpha \(3,\), position \(4,\)"),
        ((torch.ones(1), torch.tensor([-1])), "position is -1"),
    ],
    ids=["shapes", "negative"],
)
def test_update_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        TailAcceptance().update(*arguments)


@pytest.mark.parametrize("settings", [{"quantile": 0.0}, {"bin_tokens": 0}, {"num_bins": 0}], ids=str)
def test_settings_are_checked(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name} is 0"):
        TailAcceptance(**settings)


def test_reset_and_pickle():
    tail = filled_tail(*draws())
    again = pickle.loads(pickle.dumps(tail))
    torch.testing.assert_close(again.compute(), tail.compute())
    tail.reset()
    assert tail.counts.sum() == 0
    assert tail.least == math.inf


def test_pooled_over_the_last_steps():
    pooled = PooledTail(window=2)
    steps = [draws(900, seed) for seed in range(3)]
    for alpha, position in steps:
        pooled.append(filled_tail(alpha, position))
    alpha, position = (torch.cat(parts) for parts in zip(*steps[1:], strict=True))
    bins = (position // 2000).clamp(max=3)
    exact = [torch.quantile(alpha[bins == i], 0.05).item() for i in range(4)]
    assert pooled.count_bins().tolist() == [int((bins == i).sum()) for i in range(4)]
    assert pooled.quantile_bins().tolist() == pytest.approx(exact, abs=0.0005)
    assert pooled.p05_min(minimum=100).item() == pytest.approx(min(exact), abs=0.0005)


def test_pooled_minimum_judges_filled_bins_only():
    tail = TailAcceptance(bin_tokens=10, num_bins=2)
    tail.update(torch.cat([torch.full((50,), 0.9), torch.full((3,), 0.1)]), torch.tensor([0] * 50 + [15] * 3))
    pooled = PooledTail()
    pooled.append(tail)
    assert pooled.p05_min(minimum=50).item() == pytest.approx(0.9, abs=3e-4)
    assert pooled.p05_min(minimum=3).item() == pytest.approx(0.1, abs=3e-4)
    assert math.isnan(pooled.p05_min(minimum=51).item())


def test_pooled_continues_from_a_checkpoint():
    first, second = PooledTail(window=3), PooledTail(window=3)
    for seed in range(2):
        first.append(filled_tail(*draws(100, seed)))
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    for pooled in (first, second):
        for seed in range(2, 4):
            pooled.append(filled_tail(*draws(100, seed)))
    assert second.counts().equal(first.counts())
    assert second.count_bins().sum() == 300


def test_pooled_without_steps():
    with pytest.raises(ValueError, match="no step was appended"):
        PooledTail().p05_min()
    with pytest.raises(ValueError, match="window is 0"):
        PooledTail(window=0)


def test_a_single_bin_stays_a_list_of_bins() -> None:
    tail = TailAcceptance(bin_tokens=8, num_bins=1)
    tail.update(torch.tensor([0.5, 1.0]), torch.tensor([3, 99]))
    found = tail.compute()
    assert found["count_bins"].tolist() == [2]
    assert found["p05_bins"].shape == (1,)
    assert found["mean"].shape == ()
    assert tail.compute()["count_bins"].tolist() == [2]  # from the cache of the first call
