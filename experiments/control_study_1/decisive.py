"""How many tokens of a trace decide its answer? Measured by forcing one wrong token and letting the policy go on.

    python -m experiments.control_study_1.decisive

A trace that is right is cut at a place drawn at random, the next token is replaced by another one, drawn from what the
policy thinks of the rest, and the policy finishes densely and greedily. The share of such traces that no longer reach
the right answer, against those finished from the same cut without a replacement, is the share of decisive tokens.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.control_study_1.budgets import LONGEST, Search
from sparrow.modules.passes import dense_pass, head_weight, hidden_states
from sparrow.rewards.running_sum import running_sum_answered, running_sum_trace
from sparrow.rollout import RolloutEngine

HERE = Path(__file__).parent
RESULT = HERE / "decisive.json"


def other_token(logits_V: Tensor, taken: int, generator: torch.Generator) -> int:
    """A token other than ``taken``, drawn from the rest of the distribution."""
    probabilities_V = logits_V.softmax(-1).clone()
    probabilities_V[taken] = 0
    return int(torch.multinomial(probabilities_V / probabilities_V.sum(), 1, generator=generator))


def decisive_share(right_forced: Sequence[bool], right_free: Sequence[bool]) -> float:
    """Share of traces that a wrong token costs the answer, of those that are right without it.

    >>> decisive_share([True, False, False, False], [True, True, True, False])
    0.6666666666666667
    """
    kept = [forced for forced, free in zip(right_forced, right_free, strict=True) if free]
    if not kept:
        raise ValueError("no trace is right without a forced token: nothing to compare with")
    return 1 - sum(kept) / len(kept)


class Experiment:
    """Forced tokens in right traces of the packaged policy.

    The right traces are the task's own: up to their answer the policy writes nothing else.

    Args:
        search: the policy and its problems.
        places: cuts per problem.
        seed: of the cuts and the forced tokens.
    """

    def __init__(self, search: Search, places: int, seed: int = 0) -> None:
        self.search, self.places = search, places
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def run(self, tokenizer: Any) -> list[dict[str, Any]]:
        """One row per cut: where it is, and whether the answer is right with and without the forced token."""
        prefixes: list[list[int]] = []
        forced: list[list[int]] = []
        rows: list[dict[str, Any]] = []
        for prompt in self.search.prompts:
            numbers = prompt.row.extra_info["numbers"]
            trace = tokenizer.encode(running_sum_trace(numbers), add_special_tokens=False)
            tokens = [*prompt.token_ids, *trace]
            with dense_pass(self.search.model):
                hidden_BTE = hidden_states(self.search.model, torch.tensor([tokens]))
            logits_TV = hidden_BTE[0] @ head_weight(self.search.model).T
            last = len(trace) - 3  # not the answer's own digits: those decide by definition
            for place in torch.randint(1, last, (self.places,), generator=self.generator).tolist():
                cut = len(prompt.token_ids) + place
                wrong = other_token(logits_TV[cut - 1], tokens[cut], self.generator)
                prefixes.append(tokens[:cut])
                forced.append([*tokens[:cut], wrong])
                rows.append({"place": place, "length": len(trace), "answer": prompt.row.reward_model["ground_truth"]})
        free, bound = self._right(prefixes, rows, tokenizer), self._right(forced, rows, tokenizer)
        return [{**row, "right_free": a, "right_forced": b} for row, a, b in zip(rows, free, bound, strict=True)]

    def _right(self, prefixes: list[list[int]], rows: list[dict[str, Any]], tokenizer: Any) -> list[bool]:
        engine = RolloutEngine(self.search.model, None, max_batch=64)
        completions = engine.generate(
            prefixes,
            n=1,
            max_new_tokens=LONGEST,
            temperature=0.0,
            seed=0,
            eos_token_ids=tuple(self.search.eos_token_ids),
        )
        right = []
        for completion in completions:
            text = tokenizer.decode([*prefixes[completion.prompt_index], *completion.token_ids])
            answered = running_sum_answered(text)
            # Either notation of the answer counts: which one the policy prefers is not what is asked here.
            expected = rows[completion.prompt_index]["answer"]
            right.append(answered is not None and answered in (expected, expected[::-1]))
        return right


def main() -> None:
    """Command line: problems, and cuts of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--places", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    search = Search(options.prompts, samples=1)
    rows = Experiment(search, options.places).run(search.tokenizer)
    share = decisive_share([row["right_forced"] for row in rows], [row["right_free"] for row in rows])
    RESULT.write_text(json.dumps({"share": share, "rows": rows}, indent=1) + "\n")
    print(f"share of decisive tokens: {share:.3f} of {len(rows)} cuts")


if __name__ == "__main__":
    main()
