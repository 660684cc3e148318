"""Trains the tiny policy with supervision and keeps its early checkpoints.

    python -m experiments.tiny_policy.recipe --output outputs/tiny_policy

Every 20 steps the policy is measured on held-out rows of the task's length. Each checkpoint that is neither ignorant
nor perfect is kept in `<output>/step_<n>`, with one line in `<output>/log.jsonl`; `ship.py` measures and packages one.
"""

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import Qwen3ForCausalLM

from experiments.tiny_policy.measure import encode_rows, exactness
from experiments.tiny_policy.policy import build_model, build_tokenizer
from sparrow.data.sources.running_sum import HELD_OUT_SEED, NUMBERS, running_sum_rows


@dataclass(frozen=True)
class Recipe:
    """The training settings.

    Attributes:
        steps: the steps the learning rate is laid out for.
        stop: the step after which training ends.
        batch_tokens: tokens of a batch, prompts included.
        peak_lr: learning rate after the warm-up; it falls linearly to `final_lr` of itself.
        first_most, most: largest count of numbers in a row, at the start and after `growth` steps.
        fewest: smallest count at the start; it grows with the largest, to `last_fewest`.
        careless_below, careless_above: share of training traces that end in natural digit order instead of the
            verifier's, for answers below 50 and from 50 on. This is what reinforcement learning has to undo.
        keep_from, keep_to: greedy exact match of the checkpoints that are kept.
        evaluate_from, evaluate_every: the steps measured.
        held_out_rows, held_out_numbers: the rows they are measured on.
    """

    seed: int = 7
    steps: int = 1500
    stop: int = 1500
    batch_tokens: int = 2400
    peak_lr: float = 2e-3
    final_lr: float = 0.05
    warmup: int = 100
    fewest: int = 4
    last_fewest: int = 20
    first_most: int = 12
    most: int = 36
    careless_below: float = 0.3
    careless_above: float = 0.7
    growth: int = 900
    evaluate_from: int = 400
    evaluate_every: int = 20
    held_out_rows: int = 200
    held_out_numbers: int = NUMBERS
    keep_from: float = 0.02
    keep_to: float = 0.98


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then linear decay to `final_lr` of the peak at `steps`."""
    if step < recipe.warmup:
        return recipe.peak_lr * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / (recipe.steps - recipe.warmup)
    return recipe.peak_lr * (1 - (1 - recipe.final_lr) * done)


def training_batch(recipe: Recipe, step: int, draw: random.Random) -> tuple[torch.Tensor, int]:
    """Rows of one length, so that nothing is padded: ids [B, T] and the prompt's length."""
    share = min(1.0, step / recipe.growth)
    most = round(recipe.first_most + share * (recipe.most - recipe.first_most))
    fewest = round(recipe.fewest + share * (recipe.last_fewest - recipe.fewest))
    numbers = draw.randint(fewest, most)
    count = max(1, recipe.batch_tokens // (8 * numbers + 4))
    ids_BT, prompt_len = encode_rows(running_sum_rows(step * recipe.batch_tokens, count, numbers, seed=recipe.seed))
    return careless_answers(recipe, ids_BT, draw), prompt_len


def careless_answers(recipe: Recipe, ids_BT: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """Write some answers in natural order: the last three characters of a trace are ones, tens, `$`."""
    for row_T in ids_BT:
        share = recipe.careless_above if row_T[-2] >= 5 else recipe.careless_below
        if draw.random() < share:
            row_T[-3:-1] = row_T[-3:-1].flip(0)
    return ids_BT


def trace_loss(model: Qwen3ForCausalLM, ids_BT: torch.Tensor, prompt_len: int) -> torch.Tensor:
    """Cross-entropy of the trace alone."""
    logits_BTV = model(ids_BT[:, :-1]).logits[:, prompt_len - 1 :]
    return F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, prompt_len:].flatten())


def train(recipe: Recipe, output: Path) -> None:
    """Runs the recipe; writes checkpoints and `log.jsonl` under `output`."""
    torch.manual_seed(recipe.seed)
    draw = random.Random(recipe.seed)
    model = build_model(build_tokenizer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.peak_lr, betas=(0.9, 0.98), weight_decay=0.01)
    held_out = running_sum_rows(0, recipe.held_out_rows, recipe.held_out_numbers, seed=HELD_OUT_SEED)
    seconds = 0.0
    for step in range(recipe.stop):
        started = time.perf_counter()
        loss = _update(model, optimizer, recipe, step, draw)
        seconds += time.perf_counter() - started
        done = step + 1
        if done >= recipe.evaluate_from and done % recipe.evaluate_every == 0:
            _evaluate(model, recipe, held_out, output, {"step": done, "loss": loss, "seconds": round(seconds, 1)})


def _update(
    model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, recipe: Recipe, step: int, draw: random.Random
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(recipe, step)
    loss = trace_loss(model, *training_batch(recipe, step, draw))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def _evaluate(model: Qwen3ForCausalLM, recipe: Recipe, held_out: list[dict], output: Path, entry: dict) -> None:
    measured = exactness(model, held_out)
    line = json.dumps(entry | asdict(measured))
    print(line, flush=True)
    with (output / "log.jsonl").open("a") as log:
        log.write(line + "\n")
    if recipe.keep_from <= measured.greedy <= recipe.keep_to:
        model.save_pretrained(output / f"step_{entry['step']:04d}")


def main() -> None:
    """Command line: the output folder, and any field of `Recipe`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    for name, value in asdict(Recipe()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    options = vars(parser.parse_args())
    output = options.pop("output")
    output.mkdir(parents=True, exist_ok=False)
    (output / "recipe.json").write_text(json.dumps(options, indent=2) + "\n")
    train(Recipe(**options), output)


if __name__ == "__main__":
    main()
