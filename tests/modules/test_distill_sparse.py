"""DistillSparse: which pass gives whom a gradient, what the dense pass must not notice, cuts that change nothing."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from peft import PeftModel
from torch import Tensor

from sparrow.algorithms.distillation import Distillation, OverVocabulary, SampledToken, WorstShare
from sparrow.models.adapter import adapter, adapter_parameters, base_parameters, save_adapter
from sparrow.models.loading import recompute_layers
from sparrow.modules import (
    DensePolicy,
    DistillSettings,
    DistillSparse,
    NonFiniteUpdate,
    RolloutSettings,
    score,
)
from sparrow.modules.passes import dense_pass
from tests.modules.distilling import DIVERGENCES, SPARSE, Insert, MakeModel, fit, flat, parts, policy, roll


class Gradients(lightning.Callback):
    """Looks at the gradients at the three points of a step where each pass has just ended."""

    def __init__(self, module: DistillSparse) -> None:
        self.base: list[list[Tensor | None]] = []
        self.lora: list[list[Tensor | None]] = []
        self.module = module
        backward = module.distill_backward

        def watched(*arguments: Any) -> Any:
            self.note()  # the dense pass is over
            found = backward(*arguments)
            self.note()  # and now the sparse one
            return found

        module.distill_backward = watched  # type: ignore[method-assign]

    def note(self) -> None:
        def copies(params: list[torch.nn.Parameter]) -> list[Tensor | None]:
            return [None if p.grad is None else p.grad.clone() for p in params]

        self.base.append(copies(base_parameters(self.module.model)))
        self.lora.append(copies(adapter_parameters(self.module.model)))


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=repr)
def test_each_pass_gives_gradients_to_its_own_parameters_alone(
    make_model: MakeModel, tmp_path: Path, divergence: Distillation
) -> None:
    module = policy(make_model(), divergence)
    seen = Gradients(module)
    fit(module, Insert(), tmp_path)
    after_dense, after_sparse = seen.lora
    assert after_dense == [None] * len(after_dense)
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in after_sparse)
    base_dense, base_sparse = seen.base
    for before, after in zip(base_dense, base_sparse, strict=True):
        assert before is not None
        assert after is not None
        assert before.abs().max() > 0
        assert torch.equal(before, after)


def test_the_sparse_pass_alone_leaves_the_base_without_any_gradient(make_model: MakeModel, tmp_path: Path) -> None:
    module = policy(make_model(), SampledToken())
    fit(module, Insert(), tmp_path)
    assert module.scores is not None
    experience = roll(module)
    with dense_pass(module.model):
        dense = score(module.model, experience, 1.0).detach()
    module.distill_backward(experience, dense)
    assert all(parameter.grad is None for parameter in base_parameters(module.model))
    assert all(parameter.grad is not None for parameter in adapter_parameters(module.model))
    assert all(parameter.requires_grad for parameter in module.model.parameters())


def test_the_policy_is_trained_as_without_an_adapter_bit_for_bit(make_model: MakeModel, tmp_path: Path) -> None:
    plain = DensePolicy(make_model(), SPARSE, **parts(1e-2))
    experience = roll(plain)
    module = policy(make_model())
    fit(plain, Insert(experience), tmp_path, steps=3)
    fit(module, Insert(experience), tmp_path, steps=3)
    assert torch.equal(flat(base_parameters(module.model)), flat(list(plain.model.parameters())))


def test_dense_logits_ignore_the_adapter_before_and_after_ten_steps(make_model: MakeModel, tmp_path: Path) -> None:
    module = policy(make_model(), distill={"lr_factor": 3.0})
    tokens_BT = torch.arange(12).view(2, 6)

    def dense_logits(model: torch.nn.Module) -> Tensor:
        with torch.no_grad():
            return model(input_ids=tokens_BT, use_cache=False).logits

    with dense_pass(module.model):
        before = dense_logits(module.model)
    assert torch.equal(before, dense_logits(make_model()))
    start = flat(adapter_parameters(module.model))
    assert fit(module, Insert(), tmp_path, steps=10).global_step == 10
    assert not torch.equal(flat(adapter_parameters(module.model)), start)
    plain = make_model()
    state = zip(plain.parameters(), base_parameters(module.model), strict=True)
    with torch.no_grad():
        for copy, trained in state:
            copy.copy_(trained)
    with dense_pass(module.model):
        after = dense_logits(module.model)
    assert torch.equal(after, dense_logits(plain))
    with adapter(module.model, on=True):
        assert not torch.equal(dense_logits(module.model), after)


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=repr)
def test_cuts_and_checkpointing_change_nothing(make_model: MakeModel, tmp_path: Path, divergence: Distillation) -> None:
    whole = policy(make_model(), divergence)
    experience = roll(whole)
    cut, recomputed = policy(make_model(), divergence, micro_batch_tokens=50), policy(make_model(), divergence)
    recompute_layers(recomputed.model)
    for module in (whole, cut, recomputed):
        fit(module, Insert(experience), tmp_path)
    for module in (cut, recomputed):
        for of in (base_parameters, adapter_parameters):
            torch.testing.assert_close(flat(of(module.model)), flat(of(whole.model)), atol=2e-6, rtol=0)
    assert not torch.equal(flat(adapter_parameters(whole.model)), flat(adapter_parameters(policy(make_model()).model)))


@pytest.mark.parametrize("replay", [False, True])
def test_the_sparse_pass_repeats_the_rollout(make_model: MakeModel, tmp_path: Path, replay: bool) -> None:
    module = policy(make_model(), distill={"replay": replay})
    assert module.record == (("hidden", "page_sets") if replay else ("hidden",))
    fit(module, Insert(record=module.record), tmp_path, steps=3)
    assert 0 < module.step_metrics["distill/logprob_gap_max"] < 1e-4
    assert abs(module.step_metrics["distill/ppo_kl"]) < 1e-5


def test_replay_reads_the_recorded_pages(make_model: MakeModel, tmp_path: Path) -> None:
    # Pages recorded under a richer schedule: only a replay can agree with them.
    rich = SPARSE.replace(pages=[3])
    gaps = []
    for replay in (False, True):
        module = policy(make_model(), distill={"replay": replay})
        module.schedule = rich
        experience = roll(module, ("hidden", "page_sets"))
        module.schedule = SPARSE
        fit(module, Insert(experience), tmp_path)
        gaps.append(module.step_metrics["distill/logprob_gap_max"])
    assert gaps[0] > 0.05
    assert gaps[1] < 1e-4


def test_replay_without_records_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    module = policy(make_model(), distill={"replay": True})
    with pytest.raises(ValueError, match="distill.replay needs page sets, but the rollout recorded none"):
        fit(module, Insert(), tmp_path)


@pytest.mark.parametrize(("minibatches", "epochs"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("base", ["sampled", "updated"])
def test_one_counted_step_per_rollout(
    make_model: MakeModel, tmp_path: Path, minibatches: int, epochs: int, base: str
) -> None:
    module = policy(make_model(), distill={"base": base}, minibatches=minibatches, epochs=epochs)
    assert fit(module, Insert(), tmp_path, steps=3).global_step == 3
    gap = module.step_metrics["distill/logprob_gap_max"]
    assert gap < 1e-4 if base == "sampled" else gap > 1e-3


def test_minibatches_of_the_policy_do_not_reach_the_adapter(make_model: MakeModel, tmp_path: Path) -> None:
    one, four = policy(make_model()), policy(make_model(), minibatches=4)
    experience = roll(one)
    fit(one, Insert(experience), tmp_path)
    fit(four, Insert(experience), tmp_path)
    torch.testing.assert_close(
        flat(adapter_parameters(four.model)), flat(adapter_parameters(one.model)), atol=2e-6, rtol=0
    )
    assert not torch.equal(flat(base_parameters(four.model)), flat(base_parameters(one.model)))


def test_the_updated_base_is_taught_by_the_distribution_that_was(make_model: MakeModel, tmp_path: Path) -> None:
    # A base that stands still is its own past, so both orders agree; one that moves is not.
    still = [policy(make_model(), lr=0.0, distill={"base": base}) for base in ("sampled", "updated")]
    experience = roll(still[0])
    for module in still:
        fit(module, Insert(experience), tmp_path)
    names = ("distill/divergence", "distill/pg_loss")
    values = [[module.step_metrics[name] for name in names] for module in still]
    assert values[0] == pytest.approx(values[1], abs=1e-6)
    moved = policy(make_model(), lr=0.3, distill={"base": "updated"})
    fit(moved, Insert(experience), tmp_path)
    assert abs(moved.step_metrics["distill/divergence"] - values[0][0]) > 1e-3


def test_the_adapter_learns_to_follow_the_dense_policy(make_model: MakeModel, tmp_path: Path) -> None:
    # The base hardly moves, so the target stands still.
    module = policy(make_model(), lr=1e-7, distill={"policy_loss": False, "lr_factor": 2e6})
    experience = roll(module)
    fit(module, Insert(experience), tmp_path)
    first = module.step_metrics["distill/divergence"]
    fit(module, Insert(experience), tmp_path, steps=15)
    assert module.step_metrics["distill/divergence"] < 0.8 * first
    assert module.step_metrics["distill/pg_loss"] == 0.0


def test_an_adapter_for_another_schedule_is_trained_there_and_used_there(make_model: MakeModel, tmp_path: Path) -> None:
    alone = {"policy_loss": False}
    module = policy(make_model(), lr=0.0, distill={**alone, "schedule": {"pages": [3]}})
    rich = SPARSE.replace(pages=[3])
    there = policy(make_model(), lr=0.0, distill=alone)
    assert not module.actor_adapter
    experience = roll(module)
    there.schedule = rich
    divergences = []
    for run in (module, there):
        fit(run, Insert(experience), tmp_path)
        divergences.append(run.step_metrics["distill/divergence"])
    assert divergences[0] == divergences[1]
    module.schedule = rich.replace(tau=0.5, estimator="exact", provenance="elsewhere")
    assert module.actor_adapter
    assert there.actor_adapter


def test_the_worst_share_belongs_to_the_schedule_that_sampled(make_model: MakeModel) -> None:
    with pytest.raises(ValueError, match=r"divergence.share=0.05 with distill.schedule={'scale': 0.5}"):
        policy(make_model(), WorstShare(0.05), distill={"policy_loss": False, "schedule": {"scale": 0.5}})


def test_every_second_step(make_model: MakeModel, tmp_path: Path) -> None:
    module = policy(make_model(), distill={"every": 2})
    trained = []
    start = flat(adapter_parameters(module.model))

    class Watch(Insert):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            nonlocal start
            now = flat(adapter_parameters(module.model))
            trained.append(not torch.equal(now, start))
            start = now

    fit(module, Watch(), tmp_path, steps=4)
    assert trained == [True, False, True, False]


def test_the_learning_rates_keep_their_factor(make_model: MakeModel, tmp_path: Path) -> None:
    module = policy(make_model(), lr=0.4, distill={"lr_factor": 0.5}, warmup_steps=4)
    fit(module, Insert(), tmp_path, steps=2)
    assert module.step_metrics["actor/lr"] == pytest.approx(0.2)
    assert module.step_metrics["distill/lr"] == pytest.approx(0.1)


def test_a_non_finite_dense_step_leaves_both_untouched(make_model: MakeModel, tmp_path: Path) -> None:
    module = policy(make_model())
    experience = roll(module)
    advantages_B = experience.advantages_B.clone()
    advantages_B[0] = torch.nan
    before = flat(list(module.model.parameters()))
    with pytest.raises(NonFiniteUpdate, match=r"RL step 0: gradient norm is nan; weights are untouched"):
        fit(module, Insert(replace(experience, advantages_B=advantages_B)), tmp_path)
    assert torch.equal(flat(list(module.model.parameters())), before)


def test_the_cost_of_the_sparse_pass_is_reported(make_model: MakeModel, tmp_path: Path) -> None:
    module = policy(make_model(), minibatches=2)
    fit(module, Insert(), tmp_path)
    seconds = {name: module.step_metrics[f"timing_s/{name}"] for name in ("sparse_pass", "dense_pass", "old_logprobs")}
    assert min(seconds.values()) > 0
    ratio = seconds["sparse_pass"] / (seconds["dense_pass"] + seconds["old_logprobs"])
    assert module.step_metrics["distill/cost_ratio"] == pytest.approx(ratio)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # inside PEFT
def test_the_adapter_alone_is_saved_and_plain_peft_loads_it(make_model: MakeModel, tmp_path: Path) -> None:
    module = policy(make_model())
    fit(module, Insert(), tmp_path)
    save_adapter(module.model, tmp_path / "adapter")
    plain = make_model()
    with torch.no_grad():
        for copy, trained in zip(plain.parameters(), base_parameters(module.model), strict=True):
            copy.copy_(trained)
    # In double precision: PEFT's own layers round the update once more than ours.
    loaded = PeftModel.from_pretrained(plain, tmp_path / "adapter").double()
    tokens_BT = torch.arange(12).view(2, 6)
    with torch.no_grad(), adapter(module.model.double(), on=True):
        expected = module.model(input_ids=tokens_BT, use_cache=False).logits
        torch.testing.assert_close(loaded(input_ids=tokens_BT, use_cache=False).logits, expected, atol=1e-12, rtol=0)


def test_a_tail_weighted_divergence_needs_exact_alpha(make_model: MakeModel) -> None:
    settings = parts(1e-2) | {"rollout": RolloutSettings(alpha="bounds")}
    with pytest.raises(ValueError, match=r"rollout.alpha='bounds': divergence.share=0.05 needs alpha of every token"):
        DistillSparse(
            make_model(), SPARSE, **settings, distill=DistillSettings(enabled=True), divergence=WorstShare(0.05)
        )


def script(name: str) -> Any:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), Path(__file__).with_name(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    ddp_distill = script("ddp_distill.py")  # its worst share needs a quantile over all ranks
    torch.save(vars(roll(ddp_distill.policy(OverVocabulary()))), tmp_path / "rollout.pt")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for processes in (1, 2):
        output = tmp_path / f"weights{processes}.pt"
        command = [sys.executable, ddp_distill.__file__, str(tmp_path / "rollout.pt"), str(output), str(processes)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    one, first, second = (
        torch.load(tmp_path / f"weights{suffix}.pt", weights_only=True) for suffix in ("1_0", "2_0", "2_1")
    )
    assert int(one["global_step"]) == int(first["global_step"]) == 2
    for key, value in one.items():
        assert torch.equal(first[key], second[key]), key
        torch.testing.assert_close(first[key], value, atol=2e-6, rtol=0)
