"""Paths read bin by bin on forked caches equal one training-side pass under the schedule, and share their work."""

import pytest
import torch

from sparrow.calibration.readings import Bins, TeacherForced
from sparrow.calibration.segment import SegmentForward
from sparrow.calibration.traces import Trace
from sparrow.kernels import get_page_score, token_statistics
from sparrow.models.attention import SparsePass
from sparrow.modules.passes import dense_pass, head_weight, hidden_states, sparse_pass
from sparrow.schedule import ALL_PAGES

BINS = Bins(page_size=4, bin_tokens=32, num_bins=3)
LENGTHS = [(9, 117), (40, 101)]


@pytest.fixture
def traces():
    generator = torch.Generator().manual_seed(2)
    return [
        Trace(index, prompt, torch.randint(37, (length,), generator=generator), False)
        for index, (prompt, length) in enumerate(LENGTHS)
    ]


@pytest.fixture
def reader(model, traces, schedule):
    return TeacherForced(SegmentForward(model, get_page_score("mean")), traces, schedule, BINS, 1.0)


def expected(model, trace, schedule):
    """Alpha and position of every decoded token, from the trainer's own passes."""
    tokens_1T = trace.tokens_T[None]
    with torch.no_grad():
        with dense_pass(model):
            dense_TE = hidden_states(model, tokens_1T)[0]
        with sparse_pass(model, with_adapter=False):
            lengths = torch.tensor([trace.prompt_len]), torch.tensor([len(trace.tokens_T)])
            sparse_TE = hidden_states(model, tokens_1T, SparsePass(schedule, get_page_score("mean"), *lengths))[0]
        rows = slice(trace.prompt_len, len(trace.tokens_T) - 1)
        found = token_statistics(
            dense_TE[rows], head_weight(model), trace.tokens_T[rows], other_hidden_XE=sparse_TE[rows]
        )
    cached_X = torch.arange(trace.prompt_len + 1, len(trace.tokens_T))
    return found.alpha_X, [schedule.bin_of(int(cached)) for cached in cached_X]


def test_bins_are_the_schedules(schedule):
    for index in range(3):
        cached = BINS.start(index) + 1
        assert schedule.bin_of(cached) == index
        assert cached == 1 or schedule.bin_of(cached - 1) == index - 1
    assert [BINS.pages(index) for index in range(3)] == [7, 15, 23]
    assert [schedule.bin_of(int(p)) for p in BINS.position(28, 30)] == [1, 1]
    assert Bins(page_size=16, bin_tokens=2000, num_bins=2).start(1) == 1984  # t = 1985 is the first of bin 1


def test_a_path_equals_the_schedule(model, traces, reader, schedule):
    for trace in range(2):
        alpha_X, bins = expected(model, traces[trace], schedule)
        for index in range(3):
            (found,) = reader.alphas(trace, [schedule.table[: index + 1]])
            own = torch.tensor([alpha for alpha, place in zip(alpha_X, bins, strict=True) if place == index])
            torch.testing.assert_close(found["exact"], own, atol=2e-5, rtol=1e-4)
            assert len(reader.positions(trace, index)) == len(own)
            assert all(schedule.bin_of(int(position)) == index for position in reader.positions(trace, index))
    assert float(own.min()) < 0.9  # it is a real disagreement that agrees


def test_earlier_choices_matter(reader):
    (after_few,) = reader.alphas(0, [(0, 3)])
    (after_all,) = reader.alphas(0, [(ALL_PAGES, 3)])
    assert float((after_few["exact"] - after_all["exact"]).abs().max()) > 1e-3


def test_work_is_shared(reader, traces):
    queries = len(traces[0].tokens_T) - 1
    reader.alphas(0, [(2, 3, 5)])
    assert reader.tokens_run == 2 * queries  # one dense pass, one sparse
    reader.alphas(0, [(2, 3, 5), (2, 3, 8)])
    last = queries - BINS.start(2)
    assert reader.tokens_run == 2 * queries + last
    reader.alphas(0, [(2,)])  # an end of a path before: nothing had read it yet
    assert reader.tokens_run == 2 * queries + last + BINS.start(1)
    before = reader.tokens_run
    reader.alphas(0, [(4,), (50, 12, ALL_PAGES)][:1])  # 4 + 3 pages cover the first bin: dense
    reader.alphas(0, [(50, 12, 26)])  # the last bin is open: the longest trace has 29 pages in it
    assert reader.tokens_run == before


def test_freed_caches_are_made_again_alike(reader):
    (first,) = reader.alphas(1, [(0, 1, 2)])
    reader.keep_only([])
    (other,) = reader.alphas(1, [(0, 1, 3)])
    reader._alphas.clear()
    (again,) = reader.alphas(1, [(0, 1, 2)])
    assert torch.equal(first["exact"], again["exact"])
    assert not torch.equal(first["exact"], other["exact"])
