"""Measures one checkpoint of the recipe on 1000 held-out rows and writes it as the packaged policy.

    python -m experiments.tiny_policy.ship --checkpoint outputs/tiny_policy/step_1000 --output src/sparrow/models/tiny

Prints the measures and the SHA-256 of `model.safetensors`, which `README.md` records and a test compares.
"""

import argparse
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

from experiments.tiny_policy.measure import decode, exactness, step_rewards
from experiments.tiny_policy.policy import build_tokenizer
from sparrow.data.sources.running_sum import HELD_OUT_SEED, NUMBERS, running_sum_rows


def measure(model: Qwen3ForCausalLM, numbers: int, count: int, decoded: int) -> dict[str, float]:
    """Exact match on `count` rows, and the two rewards of `decoded` of them, greedy and sampled."""
    rows = running_sum_rows(0, count, numbers, seed=HELD_OUT_SEED)
    measures = asdict(exactness(model, rows))
    generator = torch.Generator().manual_seed(0)
    for name, greedy in (("greedy", True), ("sampled", False)):
        texts = decode(model, rows[:decoded], greedy=greedy, limit=6 * numbers + 20, generator=generator)
        measures[f"{name}_answer"], measures[f"{name}_steps"] = step_rewards(rows[:decoded], texts)
        measures[f"{name}_length"] = sum(len(text) + 1 for text, _ in texts) / decoded
        measures[f"{name}_truncated"] = sum(reason == "length" for _, reason in texts) / decoded
    return measures


def package(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, output: Path) -> str:
    """Writes weights, config, tokenizer and generation config; returns the weights' SHA-256."""
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(output)
    (output / "model.safetensors").chmod(0o644)  # transformers leaves it readable by its owner alone
    tokenizer.save_pretrained(output, save_jinja_files=False)
    _name_portable_class(output / "tokenizer_config.json")
    return hashlib.sha256((output / "model.safetensors").read_bytes()).hexdigest()


def _name_portable_class(path: Path) -> None:
    """transformers 5 writes a class name that transformers 4 lacks; both know this one."""
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Command line: measures, and packages if an output folder is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--output", type=Path, help="left out: only measure")
    parser.add_argument("--numbers", type=int, default=NUMBERS)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--decoded", type=int, default=200)
    options = parser.parse_args()
    model = Qwen3ForCausalLM.from_pretrained(options.checkpoint).eval()
    print(json.dumps(measure(model, options.numbers, options.rows, options.decoded), indent=2))
    if options.output is not None:
        print("sha256", package(model, build_tokenizer(), options.output))


if __name__ == "__main__":
    main()
