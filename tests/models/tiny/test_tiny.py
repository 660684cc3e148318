"""The packaged policy: it loads, is the one the README names, and stands where it was left."""

import hashlib
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparrow.data.sources.running_sum import HELD_OUT_SEED, NUMBERS, running_sum_rows
from sparrow.models.tiny import tiny_path
from sparrow.rewards.running_sum import running_sum_trace

README = Path(__file__).parents[3] / "experiments" / "tiny_policy" / "README.md"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(tiny_path())


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(tiny_path()).eval()


def test_the_weights_are_those_of_the_readme():
    digest = hashlib.sha256((tiny_path() / "model.safetensors").read_bytes()).hexdigest()
    assert re.findall(r"\b[0-9a-f]{64}\b", README.read_text()) == [digest]


def test_shape(model):
    config = model.config
    assert (config.model_type, config.num_hidden_layers, config.hidden_size) == ("qwen3", 4, 128)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 32)
    assert (config.max_position_embeddings, config.rope_parameters["rope_theta"]) == (512, 10000.0)
    assert sum(parameter.numel() for parameter in model.parameters()) == 986_496
    assert model.generation_config.eos_token_id == config.eos_token_id == 14
    assert model.generation_config.pad_token_id == config.pad_token_id == 15


def test_the_tokenizer_round_trips(tokenizer):
    text = "3+9+4=+3=30;+9=21;+4=61;#61$"
    ids = tokenizer(text).input_ids
    assert ids[:7] == [3, 10, 9, 10, 4, 11, 10]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text[:-1]
    assert tokenizer.eos_token_id == ids[-1] == 14
    assert (tokenizer.pad_token_id, tokenizer.padding_side, len(tokenizer)) == (15, "left", 16)


def test_a_foreign_character_is_refused(tokenizer):
    with pytest.raises(Exception, match="UNK"):
        tokenizer("3 + 9")


def test_the_chat_template_is_the_messages_one_after_the_other(tokenizer):
    messages = [{"role": "user", "content": "3+9="}, {"role": "assistant", "content": "+3=30;"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "3+9=+3=30;"
    prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=False)
    assert prompt == "3+9="


@torch.no_grad()
def test_held_out_exact_match_leaves_room_for_rl(model, tokenizer):
    """On 64 rows the share of right argmax traces is within .2 .. .65; README has the figure of 1000."""
    rows = running_sum_rows(0, 64, seed=HELD_OUT_SEED)
    texts = [row["prompt"][0]["content"] + running_sum_trace(row["extra_info"]["numbers"]) for row in rows]
    ids_BT = torch.tensor(tokenizer(texts).input_ids)
    predicted_BT = model(ids_BT[:, :-1]).logits.argmax(-1)
    prompt_len = 2 * NUMBERS
    right_B = (predicted_BT[:, prompt_len - 1 :] == ids_BT[:, prompt_len:]).all(-1)
    assert 0.2 <= right_B.float().mean().item() <= 0.65
