import pytest
import torch
from torch import Tensor

from sparrow.kernels import PageScore, get_page_score
from sparrow.kernels.page_landmarks import gpu, reference
from sparrow.kernels.page_score import MeanScore

SCORES = ["mean", "minmax", "random"]


class ScaledScore(MeanScore):
    """A score of one's own: its landmarks are not those of its base class."""

    def landmarks(self, key_XPD: Tensor) -> Tensor:
        return key_XPD.mean(dim=1, keepdim=True) * 3


class Pools:
    """Caches full of NaN, one for each implementation, that get the same calls."""

    def __init__(self, pool: int, kv_heads: int, page_size: int, head_size: int, score: PageScore) -> None:
        shape = (pool, kv_heads, page_size, head_size)
        blank = [torch.full(shape, torch.nan), torch.full(shape, torch.nan)]
        blank.append(torch.full((pool, kv_heads, score.width, head_size), torch.nan))
        self.score = score
        self.got, self.want = ([x.clone() for x in blank] for _ in range(2))

    def write(self, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Writes tokens at slots of the pool, numbered through; -1 is skipped. Both pools must stay equal."""
        page_size = self.got[0].shape[2]
        page, offset = torch.where(slots < 0, -1, slots // page_size), slots.clamp(min=0) % page_size
        gpu.page_landmarks(key, value, *self.got, page, offset, self.score)
        reference.page_landmarks(key, value, *self.want, page, offset, self.score)
        for got, want in zip(self.got[:2], self.want[:2]):
            assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))
        torch.testing.assert_close(self.got[2], self.want[2], rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize(
    ("kv_heads", "page_size", "head_size"), [(1, 1, 1), (2, 3, 24), (3, 4, 80), (1, 16, 128), (2, 16, 96), (1, 128, 16)]
)
def test_matches_the_reference_in_any_order(name: str, kv_heads: int, page_size: int, head_size: int) -> None:
    pools = Pools(6, kv_heads, page_size, head_size, get_page_score(name))
    order = torch.randperm(6 * page_size)
    # In several calls, so that pages are completed by their last slot with the others fresh, old, or still unwritten.
    for part in order.tensor_split([page_size // 2 + 1, 2 * page_size]):
        slots = torch.cat((part, torch.tensor([-1])))[torch.randperm(len(part) + 1)]
        key, value = torch.randn(2, len(slots), kv_heads, head_size).unbind()
        pools.write(key, value, slots)
    assert not pools.got[0].isnan().any()
    assert pools.got[2].isfinite().any()


@pytest.mark.parametrize("name", SCORES)
def test_one_launch_and_two_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = torch.randperm(40)[:37]
    key, value = torch.randn(2, 37, 2, 24).unbind()
    results = []
    for fused in (256, 36):
        monkeypatch.setattr(gpu, "FUSED_TOKENS", fused)
        pools = Pools(5, 2, 8, 24, get_page_score(name))
        pools.write(key, value, slots)
        results.append(pools.got[2].nan_to_num(7.0))
    assert torch.equal(*results)


def test_a_prompt_in_chunks_and_its_decoded_tokens() -> None:
    pools = Pools(4, 2, 8, 16, get_page_score("mean"))
    start = 0
    for chunk in (5, 1, 1, 1, 13, 1, 1, 1, 1):
        slots = torch.arange(start, start + chunk)
        key, value = torch.randn(2, chunk, 2, 16).unbind()
        pools.write(key, value, slots)
        start += chunk
        full = start // 8
        assert pools.got[2][:full].isfinite().all()
        assert pools.got[2][full:].isnan().all()


def test_more_tokens_than_one_scan_holds() -> None:
    pools = Pools(20, 1, 8, 8, get_page_score("minmax"))
    key, value = torch.randn(2, 160, 1, 8).unbind()
    pools.write(key, value, torch.randperm(160))


def test_rows_may_be_slices_of_a_fused_projection() -> None:
    pools = Pools(2, 3, 4, 16, get_page_score("mean"))
    fused = torch.randn(5, 9, 16)
    pools.write(fused[:, 3:6], fused[:, 6:], torch.tensor([3, 1, 0, 2, 6]))
    apart = torch.randn(5, 16, 3).mT
    pools.write(apart, apart + 1, torch.tensor([3, 1, 0, 2, 7]))


def test_dense_layers_have_no_landmarks() -> None:
    key, value = torch.randn(2, 4, 1, 16).unbind()
    pages = [torch.zeros(2, 1, 4, 16) for _ in range(2)]
    gpu.page_landmarks(key, value, *pages, None, torch.ones(4).long(), torch.arange(4), get_page_score("mean"))
    assert torch.equal(pages[0][1, 0], key[:, 0])
    assert torch.equal(pages[1][1, 0], value[:, 0])
    assert (pages[0][0] == 0).all()


def test_a_score_of_ones_own_makes_its_own_landmarks() -> None:
    pools = Pools(3, 2, 4, 16, ScaledScore())
    key, value = torch.randn(2, 9, 2, 16).unbind()
    pools.write(key, value, torch.arange(9))
    torch.testing.assert_close(pools.got[2][1, :, 0], 3 * key[4:8].mean(dim=0))


@pytest.mark.parametrize("name", ["mean", "minmax"])
def test_nan_in_a_key_shows_in_the_landmark(name: str) -> None:
    pools = Pools(1, 1, 4, 16, get_page_score(name))
    key, value = torch.randn(2, 4, 1, 16).unbind()
    key[2, 0, 5] = torch.nan
    pools.write(key, value, torch.arange(4))
    assert pools.got[2][0, 0, :, 5].isnan().all()
    assert pools.got[2].isnan().sum() == pools.score.width


def test_no_tokens() -> None:
    Pools(1, 1, 4, 16, get_page_score("mean")).write(
        torch.empty(0, 1, 16), torch.empty(0, 1, 16), torch.empty(0).long()
    )


def test_page_offsets_have_64_bits() -> None:
    # Page 2 ** 20 starts at element 2 ** 31: an int32 product would be negative. Nothing but the two rows is touched.
    pages = [torch.empty(2**20 + 1, 1, 16, 128, dtype=torch.bfloat16) for _ in range(2)]
    key, value = torch.randn(2, 1, 1, 128).bfloat16().unbind()
    gpu.page_landmarks(key, value, *pages, None, torch.tensor([2**20]), torch.tensor([9]), get_page_score("mean"))
    assert torch.equal(pages[0][2**20, 0, 9], key[0, 0])
    assert torch.equal(pages[1][2**20, 0, 9], value[0, 0])


def test_errors_name_the_value_and_what_is_served() -> None:
    def write(head_size: int = 16, page_size: int = 4, dtype: torch.dtype = torch.float32) -> None:
        key = torch.zeros(1, 1, head_size, dtype=dtype)
        pages = [torch.zeros(1, 1, page_size, head_size) for _ in range(2)]
        index = torch.zeros(1, dtype=torch.int64)
        gpu.page_landmarks(key, key, *pages, None, index, index, get_page_score("mean"))

    with pytest.raises(ValueError, match="page_landmarks: head size is 257, the Triton kernel serves 1 to 256"):
        write(head_size=257)
    with pytest.raises(ValueError, match="page_landmarks: page size is 257, the Triton kernel serves 1 to 256"):
        write(page_size=257)
    with pytest.raises(TypeError, match=r"key_TKD has dtype torch\.float64, the Triton kernel serves torch\.bfloat16"):
        write(dtype=torch.float64)
