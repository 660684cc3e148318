"""The pages that are read, against the rule written down once more in plain Python."""

import numpy as np
import pytest
import torch

from sparrow.kernels import get_page_score, page_landmarks, page_scores, select_pages
from sparrow.kernels.page_bits import unpack_pages
from sparrow.rollout import RolloutEngine
from sparrow.schedule import BudgetSchedule, BudgetTable

FIRST, LAST = 1, 2


def pages_by_rule(scores, num_pages, budget):
    """Page 0, the best of pages 1 .. N-3, the last two; all pages if there are no more than the budget allows."""
    if num_pages <= budget + FIRST + LAST:
        return list(range(num_pages))
    middle = sorted(range(FIRST, num_pages - LAST), key=lambda page: (-scores[page], page))
    return sorted([0, *middle[:budget], num_pages - 2, num_pages - 1])


@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("budget", [0, 1, 5, 29])
def test_the_chosen_pages_follow_the_rule(page_size, budget):
    """Whole-number keys and queries: scores are exact in fp32, and ties are frequent."""
    total = budget + FIRST + LAST
    page_counts = sorted({n for n in (1, 2, 3, 4, total - 1, total, total + 1, 124, 125, 126, 2499, 2500) if n > 0})
    cached = [(n - 1) * page_size + last for n in page_counts for last in (1, page_size - 1, page_size)]
    pool, kv_heads, group, head_dim = max(page_counts), 2, 3, 8
    rng = np.random.default_rng(page_size + budget)
    keys = rng.integers(-2, 3, (pool * page_size, kv_heads, head_dim))
    queries = rng.integers(-1, 2, (len(cached), kv_heads, group, head_dim))
    score = get_page_score("mean")

    key_pages = torch.full((pool, kv_heads, page_size, head_dim), torch.nan)
    landmarks = torch.full((pool, kv_heads, 1, head_dim), torch.nan)
    physical = torch.from_numpy(rng.permutation(pool))
    position = torch.arange(pool * page_size)
    rows = torch.from_numpy(keys).float()
    page_landmarks(
        rows,
        rows,
        key_pages,
        torch.zeros_like(key_pages),
        landmarks,
        physical[position // page_size],
        position % page_size,
        score,
    )
    cached_B = torch.tensor(cached)
    query_BHD = torch.from_numpy(queries).float().flatten(1, 2) * 3  # a mean over 3 heads stays whole
    page_table_BN = physical.int().expand(len(cached), pool).contiguous()
    scores_BKN = page_scores(query_BHD, landmarks, page_table_BN, cached_B, score, page_size=page_size)
    table = BudgetTable(BudgetSchedule.constant(budget, page_size=page_size))
    pages_BKS, count_BK = select_pages(
        scores_BKN,
        cached_B,
        table.budget(cached_B),
        page_size=page_size,
        first=FIRST,
        last=LAST,
        max_pages=total,
    )

    means = keys.reshape(pool, page_size, kv_heads, head_dim).sum(axis=1)  # page_size times the mean: same order
    for row, tokens in enumerate(cached):
        for head in range(kv_heads):
            scores = (means[:, head] @ queries[row, head].sum(axis=0)).tolist()
            expected = pages_by_rule(scores, -(-tokens // page_size), budget)
            assert count_BK[row, head] == len(expected)
            assert pages_BKS[row, head, : len(expected)].tolist() == expected
            assert (pages_BKS[row, head, len(expected) :] == -1).all()


def test_the_budget_changes_at_125_pages_of_16():
    schedule = BudgetSchedule([29, 61, 125])
    table = BudgetTable(schedule)
    cached = [1, 1984, 1985, 2000, 3984, 3985, 10**6]
    assert table.budget(torch.tensor(cached)).tolist() == [29, 29, 61, 61, 61, 125, 125]
    assert [schedule.pages(t) for t in cached] == [29, 29, 61, 61, 61, 125, 125]


def rotate(x, position, inv_freq):
    """RoPE of one vector [D], from its definition: pairs (i, i + D/2) turn by position * frequency."""
    half = x.shape[-1] // 2
    angle = position * inv_freq
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), dim=-1)


PLAIN_SCORES = {
    "mean": lambda query, keys, page: float(query @ keys.mean(dim=0)),
    "minmax": lambda query, keys, page: sum(
        max(q * low, q * high) for q, low, high in zip(*map(list, (query, keys.amin(dim=0), keys.amax(dim=0))))
    ),
    "streaming": lambda query, keys, page: page,
}
"""Scores of a page by the mean query of a group [D], the keys of the page [P, D] and its index."""


class PlainSparseDecoder:
    """Sparse decoding token by token over transformers modules, Python lists and explicit loops."""

    def __init__(self, model, schedule, page_score):
        self.model, self.schedule, self.score = model, schedule, PLAIN_SCORES[page_score]
        self.keys = [[] for _ in model.model.layers]
        self.values = [[] for _ in model.model.layers]
        self.position = 0

    def feed(self, token_id, sparse):
        """Log-probabilities after one more token, and the pages read per sparse layer and KV head."""
        body, config = self.model.model, self.model.config
        x = body.embed_tokens.weight[token_id]
        read = []
        for index, layer in enumerate(body.layers):
            attention, normed = layer.self_attn, layer.input_layernorm(x)
            query = attention.q_proj(normed).view(-1, attention.head_dim)
            key = attention.k_proj(normed).view(-1, attention.head_dim)
            if config.model_type == "qwen3":
                query, key = attention.q_norm(query), attention.k_norm(key)
            inv_freq = body.rotary_emb.inv_freq
            self.keys[index].append(rotate(key, self.position, inv_freq))
            self.values[index].append(attention.v_proj(normed).view(-1, attention.head_dim))
            use_sparse = sparse and index not in self.schedule.dense_layers
            mixed, pages = self.attend(index, rotate(query, self.position, inv_freq), use_sparse)
            if index not in self.schedule.dense_layers:
                read.append(pages)
            x = x + attention.o_proj(mixed.flatten())
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        self.position += 1
        return torch.log_softmax(self.model.lm_head(body.norm(x)), dim=-1), read

    def attend(self, index, query_HD, sparse):
        keys, values = torch.stack(self.keys[index]), torch.stack(self.values[index])
        tokens, kv_heads, head_dim = keys.shape
        size, group = self.schedule.page_size, query_HD.shape[0] // kv_heads
        num_pages = -(-tokens // size)
        mixed, chosen = [], []
        for head in range(kv_heads):
            queries = query_HD[head * group : (head + 1) * group]
            scores = [
                self.score(queries.mean(dim=0), keys[page * size : (page + 1) * size, head], page)
                for page in range(tokens // size)
            ]
            budget = self.schedule.pages(tokens) if sparse else num_pages
            pages = pages_by_rule(scores, num_pages, budget)
            rows = [t for page in pages for t in range(page * size, min((page + 1) * size, tokens))]
            weights = torch.softmax(queries @ keys[rows, head].T / head_dim**0.5, dim=-1)
            mixed.append(weights @ values[rows, head])
            chosen.append(pages)
        return torch.cat(mixed), chosen


@pytest.mark.parametrize(
    ("family", "page_score", "schedule"),
    [
        ("qwen3", "mean", BudgetSchedule([1, 2, 4], page_size=4, bin_tokens=16)),
        ("qwen2", "mean", BudgetSchedule([0], page_size=4, dense_layers=(1,))),
        ("llama", "mean", BudgetSchedule([2, 0, 3], page_size=5, bin_tokens=20, dense_layers=())),
        ("tiny", "mean", BudgetSchedule([2], page_size=4)),
        ("qwen3", "minmax", BudgetSchedule([2], page_size=4)),
        ("llama", "streaming", BudgetSchedule([2, 3], page_size=4, bin_tokens=32)),
    ],
    ids=["qwen3", "qwen2", "llama", "tiny", "minmax", "streaming"],
)
@torch.no_grad()
def test_the_engine_decodes_as_plain_python_does(family, page_score, schedule, make_model, make_prompts):
    model, prompts = make_model(family), make_prompts([3, 22, 41])
    engine = RolloutEngine(model, schedule, page_score=page_score)
    completions = engine.generate(
        prompts, max_new_tokens=24, temperature=1.0, seed=4, eos_token_ids=[], record=("page_sets",)
    )
    read = cached = 0
    for prompt, completion in zip(prompts, completions):
        plain = PlainSparseDecoder(model, schedule, page_score)
        for token_id in prompt:
            logprobs, _ = plain.feed(token_id, sparse=False)
        assert completion.pages_read[0] == 0
        for step, token_id in enumerate(completion.token_ids):
            assert abs(float(logprobs[token_id]) - float(completion.logprobs[step])) < 1e-4
            if step == len(completion.token_ids) - 1:
                break
            logprobs, sets = plain.feed(token_id, sparse=True)
            num_pages = -(-plain.position // schedule.page_size)
            bits = unpack_pages(completion.page_sets[:, :, step], num_pages)
            assert [[head.nonzero()[:, 0].tolist() for head in layer] for layer in bits] == sets
            assert {len(pages) for layer in sets for pages in layer} == {int(completion.pages_read[step + 1])}
            last = plain.position - (num_pages - 1) * schedule.page_size
            read += (len(sets[0][0]) - 1) * schedule.page_size + last
            cached += plain.position
    stats = engine.last_stats
    sparse = len([i for i in range(4) if i not in schedule.dense_layers])
    assert stats.kv_fraction_sparse_layers == pytest.approx(read / cached, rel=1e-12)
    assert stats.kv_fraction == pytest.approx((sparse * read + (4 - sparse) * cached) / (4 * cached), rel=1e-12)
    assert stats.kv_fraction_sparse_layers < 0.9
