import pytest
import torch

from sparrow.kernels import get_page_score, page_landmarks
from sparrow.kernels.page_landmarks import reference


def empty_pool(pool: int, kv_heads: int, page_size: int, head_size: int, width: int, dtype: torch.dtype) -> list:
    shape = (pool, kv_heads, page_size, head_size)
    return [torch.full(s, torch.nan, dtype=dtype) for s in (shape, shape, (pool, kv_heads, width, head_size))]


def test_landmark_by_hand_when_the_last_slot_is_written() -> None:
    keys, values, landmarks = empty_pool(3, 1, 2, 2, 1, torch.float32)
    score = get_page_score("mean")
    first, second = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, -6.0]]])
    page, slot = torch.tensor([2]), torch.tensor([0])
    page_landmarks(first, first + 10, keys, values, landmarks, page, slot, score)
    assert keys[2, 0, 0].tolist() == [1.0, 2.0]
    assert values[2, 0, 0].tolist() == [11.0, 12.0]
    assert landmarks.isnan().all()
    page_landmarks(second, second, keys, values, landmarks, page, slot + 1, score)
    assert landmarks[2, 0, 0].tolist() == [2.0, -2.0]
    assert landmarks[:2].isnan().all()
    assert keys[:2].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["mean", "minmax", "random"])
@pytest.mark.parametrize(("page_size", "kv_heads", "head_size"), [(4, 2, 32), (16, 3, 80), (1, 1, 16), (5, 2, 24)])
def test_matches_the_plain_loop(name: str, page_size: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
    score = get_page_score(name)
    tokens, pool = 3 * page_size + 2, 9
    fast, plain, loop = (empty_pool(pool, kv_heads, page_size, head_size, score.width, dtype) for _ in range(3))
    rows = [torch.randn(tokens, kv_heads, head_size) for _ in range(2)]
    pages = torch.randperm(pool)[: -(-tokens // page_size)]
    position = torch.arange(tokens)
    page, offset = pages[position // page_size], position % page_size
    page[2] = -1
    # Two calls, so that a page straddles them.
    for part in (slice(0, page_size + 1), slice(page_size + 1, tokens)):
        arguments = (*(row[part].to(dtype) for row in rows),)
        page_landmarks(*arguments, *fast, page[part], offset[part], score)
        reference.page_landmarks(*arguments, *plain, page[part], offset[part], score)
    for i in range(tokens):
        if page[i] >= 0:
            loop[0][page[i], :, offset[i]] = rows[0][i].to(dtype)
            loop[1][page[i], :, offset[i]] = rows[1][i].to(dtype)
        if page[i] >= 0 and offset[i] == page_size - 1:
            loop[2][page[i]] = score.landmarks(loop[0][page[i]].float()).to(dtype)
    for got, want, third in zip(fast, plain, loop):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(got, third, rtol=0, atol=0, equal_nan=True)


def test_dense_layer_keeps_no_landmarks_and_strided_rows_are_right() -> None:
    keys, values, _ = empty_pool(2, 3, 4, 16, 1, torch.float32)
    fused = torch.randn(5, 6, 16)
    page, offset = torch.tensor([0, 0, 0, 0, 1]), torch.tensor([0, 1, 2, 3, 0])
    page_landmarks(fused[:, :3], fused[:, 3:], keys, values, None, page, offset, get_page_score("mean"))
    assert torch.equal(keys[0], fused[:4, :3].transpose(0, 1))
    assert torch.equal(values[1, :, 0], fused[4, 3:])


def test_nothing_is_written_for_skipped_tokens() -> None:
    pools = empty_pool(2, 1, 2, 16, 1, torch.float32)
    row = torch.zeros(3, 1, 16)
    page_landmarks(row, row, *pools, torch.full((3,), -1), torch.tensor([0, 1, 1]), get_page_score("mean"))
    assert all(pool.isnan().all() for pool in pools)


def test_errors() -> None:
    keys, values, landmarks = empty_pool(2, 1, 2, 16, 1, torch.float32)
    row, index = torch.zeros(3, 1, 16), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(TypeError, match=r"page_T has dtype torch\.int32, allowed: torch\.int64"):
        page_landmarks(row, row, keys, values, landmarks, index.int(), index, get_page_score("mean"))
    with pytest.raises(ValueError, match=r"landmarks has shape \(2, 1, 1, 16\), expected \(2, 1, 2, 16\)"):
        page_landmarks(row, row, keys, values, landmarks, index, index, get_page_score("minmax"))
