"""The tiny policy before training: its characters, its tokenizer and its shape."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CHARACTERS = "0123456789+=;#$"
PAD = "<pad>"
CONTEXT = 512


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character. A character outside `CHARACTERS` is an error, not an unknown token."""
    vocabulary = {token: index for index, token in enumerate([*CHARACTERS, PAD])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<none>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="$",
        pad_token=PAD,
        padding_side="left",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """4 layers of width 128, 4 query and 2 KV heads of size 32, tied embeddings: 986 496 parameters."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A freshly initialised policy; seed torch first."""
    return Qwen3ForCausalLM(build_config(tokenizer))
