"""Loading by name, folder and hub id; exports that plain transformers reads back."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, Qwen3ForCausalLM

from sparrow.models.adapter import adapter, adapter_parameters, add_adapter
from sparrow.models.attention import attention_mode
from sparrow.models.loading import eos_token_ids, export_policy, load_policy, resolve_model

TOKENS_BT = torch.arange(5, 15).view(1, -1)


def test_the_packaged_policy_loads() -> None:
    model, tokenizer = load_policy("tiny")
    assert isinstance(model, Qwen3ForCausalLM)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config._attn_implementation == "sdpa"
    assert model.config.use_cache is False
    assert not model.training
    assert len(tokenizer) <= model.config.vocab_size


def test_the_dtype_is_the_callers() -> None:
    model, _ = load_policy("tiny", dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_export_loads_in_plain_transformers(tmp_path: Path, wrapped: bool) -> None:
    model, tokenizer = load_policy("tiny")
    with torch.no_grad():
        expected = model(input_ids=TOKENS_BT, use_cache=False).logits
        policy = add_adapter(model, rank=2) if wrapped else model
        for parameter in adapter_parameters(policy):
            parameter.fill_(0.1)
        with attention_mode(policy, "sparrow"), adapter(policy, on=wrapped):
            export_policy(policy, tokenizer, tmp_path)
        plain = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert torch.equal(plain(input_ids=TOKENS_BT).logits, expected)
    assert type(plain) is Qwen3ForCausalLM
    assert list(plain.state_dict()) == list(load_policy("tiny")[0].state_dict())
    assert plain.config._attn_implementation == "sdpa"
    assert json.loads((tmp_path / "config.json").read_text())["use_cache"] is True
    assert plain.generation_config.eos_token_id == model.generation_config.eos_token_id
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.chat_template == tokenizer.chat_template
    reloaded, _ = load_policy(tmp_path)
    assert reloaded.config.use_cache is False
    assert model.config.use_cache is False


def test_an_export_writes_a_given_state(tmp_path: Path) -> None:
    model, tokenizer = load_policy("tiny")
    policy = add_adapter(model, rank=2)
    state = {name: tensor + 1.0 for name, tensor in policy.state_dict().items()}
    export_policy(policy, tokenizer, tmp_path, state=state)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    original = load_policy("tiny")[0].state_dict()
    assert all(torch.equal(saved[name], original[name] + 1.0) for name in original)


def test_every_stop_token_counts() -> None:
    model, tokenizer = load_policy("tiny")
    assert tokenizer.eos_token_id in eos_token_ids(model, tokenizer)
    model.generation_config.eos_token_id = [7, 3]
    tokenizer.eos_token_id = 5
    assert eos_token_ids(model, tokenizer) == (3, 5, 7)
    assert eos_token_ids(add_adapter(model, rank=1), tokenizer) == (3, 5, 7)
    model.generation_config.eos_token_id = 4
    assert eos_token_ids(model, tokenizer) == (4, 5)
    model.generation_config.eos_token_id, tokenizer.eos_token = None, None
    with pytest.raises(ValueError, match="names an eos_token_id"):
        eos_token_ids(model, tokenizer)


def test_an_unsupported_family_is_refused(tmp_path: Path) -> None:
    GPT2Config(n_layer=1, n_embd=8, n_head=1).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'gpt2' is not supported: must be one of qwen3"):
        load_policy(tmp_path)


def test_what_is_missing_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARROW_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="run `sparrow-prepare model=smollm2-135m`"):
        load_policy("smollm2-135m")
    with pytest.raises(FileNotFoundError, match="model=qwen3-4b`, or name the hub id 'Qwen/Qwen3-4B'"):
        load_policy("qwen3-4b")
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        load_policy(tmp_path)
    for name in (str(tmp_path / "absent"), "./absent/model", "smollm", "a/b/c", Path("owner/name")):
        with pytest.raises(
            FileNotFoundError, match=r"must be a folder, a hub id \(owner/name\) or one of tiny, smollm2"
        ):
            load_policy(name)


def test_names_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARROW_CACHE", str(tmp_path))
    folder = tmp_path / "models" / "qwen3-4b"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert resolve_model("qwen3-4b") == str(folder)
    assert resolve_model(folder) == str(folder)
    assert resolve_model("Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"


def test_an_unreachable_hub_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="model 'owner/absent': could not be loaded from 'owner/absent'"):
        load_policy("owner/absent")
