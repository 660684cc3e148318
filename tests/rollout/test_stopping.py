"""Stop strings: found where the whole decoded text first holds one, whatever the borders of tokens and characters."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from sparrow.models.tiny import tiny_path
from sparrow.rollout import RolloutEngine
from sparrow.rollout.stopping import StopStrings
from sparrow.schedule import BudgetSchedule


def byte_alphabet():
    """Byte -> the character that stands for it in byte-level vocabularies: printable ones for themselves."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in kept]
    return {**{b: chr(b) for b in kept}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def byte_level(pieces=()):
    """A token per byte, its id the byte, and some that are several bytes long and may begin or end in a character."""
    letters = byte_alphabet()
    tokens = [letters[b] for b in range(256)] + ["".join(letters[b] for b in piece) for piece in pieces]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="?"))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def metaspace(words):
    """Words with a leading space, which the decoder drops at the start of a text."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def first_stop(tokenizer, token_ids, strings):
    """The definition: the least number of tokens whose text holds a stop string; None if there is none."""
    for end in range(1, len(token_ids) + 1):
        text = tokenizer.decode(token_ids[:end], skip_special_tokens=False)
        if any(string in text for string in strings):
            return end
    return None


def pushed(tokenizer, token_ids, strings):
    """The same, token by token."""
    watch = StopStrings(strings, tokenizer)
    return next((end for end, token_id in enumerate(token_ids, 1) if watch.push(7, token_id)), None)


TOKENIZERS = {
    "bytes": (byte_level([b"ab", b"ba\xc3", b"\xa9b", b"\xe2\x82", b"\xaca", b" a"]), 262),
    "metaspace": (metaspace(["\u2581a", "\u2581b", "a", "b", "ab", "\u2581ba", "\u2581"]), 7),
    "tiny": (AutoTokenizer.from_pretrained(tiny_path()), None),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_found_where_the_whole_text_first_holds_it(name):
    tokenizer, size = TOKENIZERS[name]
    rng = random.Random(name)
    ids = range(size or len(tokenizer))
    if name == "bytes":  # few kinds, so that strings occur: letters, pieces of e-acute and of the euro sign
        ids = [97, 98, 32, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, *range(256, 262)]
    found = 0
    for _ in range(120):
        token_ids = rng.choices(ids, k=24)
        text = tokenizer.decode(token_ids, skip_special_tokens=False)
        starts = [rng.randrange(len(text)) for _ in range(2)]
        strings = [piece for start in starts if "\ufffd" not in (piece := text[start : start + rng.randint(1, 5)])]
        strings.append("aab")
        expected = first_stop(tokenizer, token_ids, strings)
        assert pushed(tokenizer, token_ids, strings) == expected
        found += expected is not None
    assert found > 60


def test_a_character_of_three_tokens():
    tokenizer = byte_level()
    token_ids = list("x\u20acy".encode())
    assert pushed(tokenizer, token_ids, ["\u20ac"]) == 4
    assert pushed(tokenizer, token_ids, ["x"]) == 1
    assert pushed(tokenizer, token_ids, ["x\u20acy"]) == 5
    assert pushed(tokenizer, token_ids, ["xy"]) is None


def test_broken_bytes_do_not_pile_up():
    watch = StopStrings(["stop"], byte_level())
    for _ in range(300):
        assert not watch.push(0, 0xE2)
        assert len(watch._texts[0].token_ids) <= 128
    assert [watch.push(0, byte) for byte in b"xstop"] == [False] * 4 + [True]


def test_responses_do_not_mix_and_are_forgotten():
    watch = StopStrings(["ab"], byte_level())
    assert not watch.push(0, ord("a"))
    assert not watch.push(1, ord("b"))
    watch.drop(0)
    assert not watch.push(0, ord("b"))
    assert not watch.push(1, ord("a"))
    assert watch.push(1, ord("b"))


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_the_engine_ends_at_the_string_and_keeps_it(draft_tokens, make_model):
    model, tokenizer = make_model("tiny"), AutoTokenizer.from_pretrained(tiny_path())
    prompts = [[3, 5, 7, 4], [6, 6, 3]]
    arguments = {"n": 6, "max_new_tokens": 30, "temperature": 1.0, "seed": 0, "eos_token_ids": []}
    schedule = BudgetSchedule.constant(1, page_size=4)
    engine = RolloutEngine(model, schedule, max_batch=5, draft_tokens=draft_tokens)
    free = engine.generate(prompts, **arguments)
    text = tokenizer.decode(free[0].token_ids, skip_special_tokens=False)
    strings = [text[len(text) // 2 :][:3], text[-2:]]
    own = RolloutEngine(model, schedule, max_batch=5, draft_tokens=draft_tokens, tokenizer=tokenizer)
    stopped = own.generate(prompts, stop=strings, **arguments)
    given = engine.generate(prompts, stop=strings, tokenizer=tokenizer, **arguments)
    for before, after, again in zip(free, stopped, given, strict=True):
        end = first_stop(tokenizer, before.token_ids, strings)
        assert after.token_ids == again.token_ids == before.token_ids[:end]
        assert after.logprobs.tolist() == before.logprobs[:end].tolist()
        assert len(after.pages_read) == len(after.token_ids)
        assert after.finish_reason == ("length" if end is None else "stop")
    assert {completion.finish_reason for completion in stopped} == {"length", "stop"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stop": ["a"]}, "stop strings need a tokenizer: give tokenizer= to generate or to the engine"),
        ({"stop": ["a", ""], "tokenizer": byte_level()}, "stop holds '': must be texts of at least 1 character"),
        ({"stop": [3], "tokenizer": byte_level()}, "stop holds 3: must be texts"),
    ],
)
def test_what_cannot_be_watched_is_refused(arguments, message, make_model):
    engine = RolloutEngine(make_model("qwen3"))
    with pytest.raises(ValueError, match=message):
        engine.generate([[1, 2]], max_new_tokens=4, seed=0, eos_token_ids=[], **arguments)


def test_one_string_needs_no_list(make_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_path())
    engine = RolloutEngine(make_model("tiny"), tokenizer=tokenizer)
    arguments = {"max_new_tokens": 8, "seed": 0, "eos_token_ids": []}
    (free,) = engine.generate([[3, 5, 7]], **arguments)
    string = tokenizer.decode(free.token_ids, skip_special_tokens=False)[:1]
    (one,) = engine.generate([[3, 5, 7]], stop=string, **arguments)
    (listed,) = engine.generate([[3, 5, 7]], stop=[string], **arguments)
    assert one.token_ids == listed.token_ids == free.token_ids[: first_stop(tokenizer, free.token_ids, [string])]
