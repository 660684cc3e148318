"""Tokenising rows: template, thinking, length filter with counts, keys of duplicates."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sparrow.data.prompts import PromptCounts, make_prompts
from sparrow.data.schema import PromptRow, row_key

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}go{% endif %}"
)
THINKING = TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %} quiet{% endif %}"
WORDS = {"user": 0, "go": 1, "quiet": 2, "a": 3, "b": 4, "system": 5, "[UNK]": 6}


def tokenizer(template=TEMPLATE):
    words = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, chat_template=template)


def row(content, index=0, **extra):
    messages = [{"role": "user", "content": content}]
    truth = {"style": "rule", "ground_truth": "1"}
    return PromptRow("sparrow/exact", messages, truth, "", {"index": index, **extra})


def test_chat_template_with_generation_prompt():
    prompts, counts = make_prompts([row("a b")], tokenizer())
    assert prompts[0].token_ids == [0, 3, 4, 1]
    assert prompts[0].key == row_key(row("a b"))
    assert prompts[0].row == row("a b")
    assert counts == PromptCounts(rows=1, kept=1, too_long=0, shortest=4, longest=4)


def test_plain_joins_the_contents():
    prompts, _ = make_prompts([row("a b a")], tokenizer(None), template="plain")
    assert prompts[0].token_ids == [3, 4, 3]


@pytest.mark.parametrize(("thinking", "expected"), [(None, [0, 3, 1]), (True, [0, 3, 1]), (False, [0, 3, 1, 2])])
def test_thinking_mode_reaches_the_template(thinking, expected):
    prompts, _ = make_prompts([row("a")], tokenizer(THINKING), enable_thinking=thinking)
    assert prompts[0].token_ids == expected


def test_length_filter_counts():
    rows = [row("a", 0), row("a b a", 1), row("a b", 2)]
    prompts, counts = make_prompts(rows, tokenizer(), max_prompt_tokens=4)
    assert [prompt.row.extra_info["index"] for prompt in prompts] == [0, 2]
    assert counts == PromptCounts(rows=3, kept=2, too_long=1, shortest=3, longest=4)


def test_duplicates_get_their_own_keys_whatever_is_filtered():
    rows = [row("a"), row("a"), row("b"), row("a")]
    keys = [prompt.key for prompt in make_prompts(rows, tokenizer())[0]]
    assert len(set(keys)) == 4
    assert keys[:2] == [row_key(row("a")), row_key(row("a"), occurrence=1)]
    assert keys[2:] == [row_key(row("b")), row_key(row("a"), occurrence=2)]


def test_nothing_kept_says_why():
    with pytest.raises(
        ValueError, match="no prompt is kept of 2 rows: the shortest prompt has 3 tokens, data.max_prompt_tokens=2"
    ):
        make_prompts([row("a"), row("a b")], tokenizer(), max_prompt_tokens=2)
    with pytest.raises(ValueError, match="no prompt is kept of 0 rows: there are no rows"):
        make_prompts([], tokenizer())


@pytest.mark.parametrize(
    ("template", "options", "message"),
    [
        (None, {}, "data.template='chat', but the tokenizer has no chat template; allowed for it: 'plain'"),
        (TEMPLATE, {"enable_thinking": True}, "data.enable_thinking=True, but .* has no thinking mode"),
        (TEMPLATE, {"template": "raw"}, "data.template='raw' is unknown; allowed: chat, plain"),
        (
            None,
            {"template": "plain", "enable_thinking": False},
            "data.enable_thinking=False needs data.template='chat'",
        ),
    ],
)
def test_options_that_do_not_fit_the_tokenizer(template, options, message):
    with pytest.raises(ValueError, match=message):
        make_prompts([row("a")], tokenizer(template), **options)


def test_a_prompt_without_tokens_names_the_row():
    with pytest.raises(ValueError, match=r"row \{'split': 'train', 'index': 5\} of .*: the prompt has 0 tokens"):
        make_prompts([row(" ", 5, split="train")], tokenizer(), template="plain")
