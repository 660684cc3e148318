"""Every baseline is one configuration key away, and reads the pages it is named for."""

import pytest
import torch
from hydra import compose, initialize_config_dir

from sparrow.config import build, build_schedule, check_config
from sparrow.config_dir import config_dir
from sparrow.kernels.page_bits import unpack_pages
from sparrow.rollout import RolloutEngine

BASELINES = {
    "dense": ["schedule=dense"],
    "constant": ["schedule=constant"],
    "streaming": ["schedule=constant", "rollout.page_score=streaming"],
    "minmax": ["schedule=constant", "rollout.page_score=minmax"],
    "random": ["schedule=constant", "rollout.page_score=random"],
}
CACHED = torch.arange(41, 60)
"""Cached tokens of the queries of the decode steps: 40 of the prompt and up to 19 decoded ones."""


def page_sets(name, model, prompts, folder):
    """[L, K, T, N] pages that the baseline reads, as configured, for each prompt, and its statistics."""
    small = [] if name == "dense" else ["schedule.pages=2", "schedule.page_size=4"]
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("train", overrides=[*BASELINES[name], *small, f"paths.run_dir={folder}"])
    check_config(cfg)
    schedule, settings = build_schedule(cfg.schedule), build(cfg.rollout)
    engine = RolloutEngine(model, schedule.replace(page_size=4), page_score=settings.page_score)
    completions = engine.generate(prompts, max_new_tokens=20, seed=0, eos_token_ids=[], record=("page_sets",))
    return [unpack_pages(completion.page_sets, 15) for completion in completions], engine.last_stats


@pytest.fixture
def run(make_model, make_prompts, tmp_path):
    """``run(name, seed=0)``: the page sets of a baseline for two prompts of 40 tokens."""
    prompts = make_prompts([40, 40])
    return lambda name, seed=0: page_sets(name, make_model("llama", seed=seed), prompts, tmp_path)


@pytest.mark.parametrize("name", [name for name in BASELINES if name != "dense"])
def test_all_read_the_same_number_of_pages(name, run):
    sets, stats = run(name)
    last = CACHED.sub(1).div(4, rounding_mode="floor")
    for pages in sets:
        assert (pages.sum(dim=-1) == 5).all()
        for reserved in (torch.zeros_like(last), last - 1, last):
            assert pages.gather(-1, reserved[:, None].expand(*pages.shape[:2], -1, 1)).all()
    live = CACHED - 4 * last
    assert stats.tokens_read_sparse == 2 * 2 * 2 * int((16 + live).sum())


def test_dense_reads_everything(run):
    sets, stats = run("dense")
    expected = torch.arange(15) * 4 < CACHED[:, None]
    for pages in sets:
        assert torch.equal(pages.bool(), expected.expand(pages.shape))
    assert stats.kv_fraction == 1.0


def test_streaming_reads_the_first_page_and_the_latest(run):
    sets, _ = run("streaming")
    page = torch.arange(15)
    last = CACHED.sub(1).div(4, rounding_mode="floor")[:, None]
    expected = (page == 0) | ((page > last - 4) & (page <= last))
    for pages in sets:
        assert torch.equal(pages.bool(), expected.expand(pages.shape))


def test_random_pages_depend_on_nothing_computed(run):
    sets, _ = run("random")
    others, _ = run("random", seed=1)
    for pages in (sets[1], *others):
        assert torch.equal(pages, sets[0])
    assert not torch.equal(sets[0][:, 0], sets[0][:, 1])  # but on the KV head


def test_content_decides_for_the_others(run):
    sets = {name: run(name)[0][0] for name in BASELINES}
    assert len({tuple(pages.flatten().tolist()) for pages in sets.values()}) == len(BASELINES)
