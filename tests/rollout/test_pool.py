"""Who holds which page."""

import pytest
import torch

from sparrow.rollout.pool import PagePool


@pytest.fixture
def pool():
    return PagePool(
        6,
        layers=2,
        sparse_layers=[1],
        kv_heads=2,
        page_size=4,
        head_dim=3,
        width=2,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def test_layout(pool):
    assert [tuple(pages.shape) for pages in pool.keys + pool.values] == [(6, 2, 4, 3)] * 4
    assert pool.landmarks[0] is None
    assert pool.landmarks[1].shape == (6, 2, 2, 3)


def test_a_shared_page_is_free_when_its_last_holder_lets_go(pool):
    first, second = pool.take(2), pool.take(3)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pool.num_free == 1
    pool.share(first)
    pool.release([*first, second[0]])
    assert (pool.holders(first[0]), pool.holders(second[0])) == (1, 0)
    assert pool.num_free == 2
    assert not pool.is_idle
    pool.release(first)
    pool.release(second[1:])
    assert pool.num_free == 6
    assert pool.is_idle


def test_misuse_is_refused(pool):
    with pytest.raises(RuntimeError, match="7 pages asked of a pool with 6 free of 6"):
        pool.take(7)
    (page,) = pool.take(1)
    pool.release([page])
    with pytest.raises(RuntimeError, match=rf"pages \[{page}\] released, but nobody holds them"):
        pool.release([page])


def test_copy_takes_keys_and_values_of_all_layers(pool):
    for layer in range(2):
        pool.keys[layer].copy_(torch.arange(144.0).view(6, 2, 4, 3) + layer)
        pool.values[layer].copy_(-pool.keys[layer])
    before = [pages.clone() for pages in pool.keys + pool.values]
    pool.copy([0, 3], [5, 1])
    for pages, old in zip(pool.keys + pool.values, before):
        assert torch.equal(pages[5], old[0])
        assert torch.equal(pages[1], old[3])
        assert torch.equal(pages[[0, 2, 3, 4]], old[[0, 2, 3, 4]])


def test_an_idle_pool_hands_out_pages_in_order_again(pool):
    taken = pool.take(5)
    pool.release([taken[i] for i in (3, 0, 4, 1)])
    with pytest.raises(RuntimeError, match="1 pages are held: only an idle pool can be tidied"):
        pool.tidy()
    pool.release([taken[2]])
    pool.tidy()
    assert pool.take(6) == [0, 1, 2, 3, 4, 5]
