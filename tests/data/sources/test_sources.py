"""Sources: rows are reproducible, sides are disjoint, and every gold answer scores 1 by its own reward."""

import json

import pytest

from sparrow.data.schema import PromptRow
from sparrow.data.sources.chain_sum import ChainSumSource, side_of
from sparrow.data.sources.files import Files
from sparrow.data.sources.packaged import RunningSum
from sparrow.data.sources.reasoning_gym import ReasoningGymSource
from sparrow.rewards.check import RouteCheck, check_routes
from sparrow.rewards.tagged_json import loads


def questions(rows):
    return [row.prompt[-1]["content"] for row in rows]


def test_running_sum_sides_are_disjoint_and_gold_scores_one():
    source = RunningSum(count=300, validation_count=200, numbers=3)
    train, held_out = source.train_rows(), source.validation_rows()
    assert (len(train), len(held_out)) == (300, 200)
    assert not set(questions(train)) & set(questions(held_out))
    assert {row.extra_info["split"] for row in train} == {"train"}
    check = check_routes(train + held_out)
    assert check == RouteCheck({"sparrow/running_sum": 500}, {"sparrow/running_sum": 500}, {})


def test_running_sum_seed_moves_only_the_training_rows():
    first, second = RunningSum(20, 5), RunningSum(20, 5, seed=1)
    assert questions(first.train_rows()) != questions(second.train_rows())
    assert first.validation_rows() == second.validation_rows()
    with pytest.raises(ValueError, match="seed=1000000 is not for training; allowed: 0 to 999999"):
        RunningSum(seed=1_000_000)


def test_chain_sum_examples_train_and_held_out_never_share_a_sum():
    source = ChainSumSource()
    train, held_out = source.train_rows(), source.validation_rows()
    sums = [row.extra_info["sum"] for row in train + held_out]
    assert (len(train), len(held_out)) == (96, 32)
    assert len(set(sums)) == 128
    prefix = source.prefix()
    assert prefix.count("Answer: <answer>") == 32
    for sum_ in sums:
        assert f"Problem: {sum_} =\n" not in prefix
        assert eval(sum_) == int(next(row.ground_truth for row in train + held_out if row.extra_info["sum"] == sum_))
    for line in prefix.split("\n\n")[1:]:
        problem, answer = line.split("\n")
        sum_ = problem.removeprefix("Problem: ").removesuffix(" =")
        assert answer == f"Answer: <answer>{eval(sum_)}</answer>"
        assert side_of(sum_) == "example"


def test_chain_sum_prompt_is_prefix_and_problem():
    source = ChainSumSource(count=1, examples=2)
    (row,) = source.train_rows()
    assert row.prompt == [
        {"role": "user", "content": f"{source.prefix()}\n\nProblem: {row.extra_info['sum']} ="},
    ]
    assert check_routes([row]).checked == {"sparrow/chain_sum": 1}


def test_chain_sum_space_too_small_is_an_error():
    with pytest.raises(ValueError, match="terms=2, digits=1: only 122 distinct train sums of 130 in 26000 draws"):
        ChainSumSource(count=130).train_rows()


def test_reasoning_gym_mixture_has_its_shares_and_gold_scores_one():
    source = ReasoningGymSource(
        {"chain_sum": {"weight": 3.0}, "gcd": {}, "rubiks_cube": {}}, count=60, validation_count=8
    )
    train, held_out = source.train_rows(), source.validation_rows()
    assert train == source.train_rows()
    assert not set(questions(train)) & set(questions(held_out))
    check = check_routes(train + held_out)
    assert sum(check.rows.values()) == 68
    assert check.rows["reasoning_gym/chain_sum"] > check.rows["reasoning_gym/gcd"]
    assert check.checked.keys() == {"reasoning_gym/chain_sum", "reasoning_gym/gcd"}
    assert check.no_gold.keys() == {"reasoning_gym/rubiks_cube"}


def test_reasoning_gym_rows_survive_json():
    (row,) = ReasoningGymSource(
        {"spiral_matrix": {"config": {"min_n": 2, "max_n": 3}}}, count=1, validation_count=1
    ).train_rows()
    assert PromptRow.from_dict(json.loads(json.dumps(row.to_dict()))) == row
    assert loads(row.extra_info["config"]) == {"min_n": 2, "max_n": 3}
    assert isinstance(loads(row.extra_info["entry"])["metadata"]["difficulty"]["n"], tuple)


def test_neighbouring_seeds_share_items_but_never_held_out_ones():
    # What the package does: item 1 of seed 0 is item 0 of seed 1.
    first = ReasoningGymSource({"chain_sum": {}}, count=10, validation_count=5)
    second = ReasoningGymSource({"chain_sum": {}}, count=10, validation_count=5, seed=1)
    assert questions(first.train_rows())[1:] == questions(second.train_rows())[:-1]
    assert first.validation_rows() == second.validation_rows()


def test_a_small_space_is_an_error_and_not_a_leak():
    config = {"min_terms": 1, "max_terms": 1, "min_digits": 1, "max_digits": 1}
    source = ReasoningGymSource({"chain_sum": {"config": config}}, count=5, validation_count=10)
    assert len(set(questions(source.validation_rows()))) == 10  # all ten digits
    with pytest.raises(ValueError, match="train rows of chain_sum: only 0 of 5 found in 20 x 5 draws"):
        source.train_rows()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": {"chainsum": {}}}, "reasoning-gym task 'chainsum' is unknown; near: chain_sum"),
        ({"tasks": {"composite": {}}}, "reasoning-gym task 'composite' is unknown"),
        ({"tasks": {}}, "tasks is empty"),
        ({"tasks": {"gcd": {"weight": 0}}}, "task gcd: weight=0 is not allowed; it must be above 0"),
        ({"tasks": {"gcd": {"config": {"seed": 1}}}}, "task gcd: config has seed or size"),
        ({"tasks": {"gcd": {}}, "seed": -1}, "seed=-1 is not allowed; allowed: 0 to 999999999"),
    ],
)
def test_reasoning_gym_options(options, message):
    with pytest.raises(ValueError, match=message):
        ReasoningGymSource(**options)


def test_files_reads_in_order(tmp_path):
    for name, index in (("a", 0), ("b", 1), ("c", 2)):
        fields = RunningSum(3, 0).train_rows()[index].to_dict()
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(fields) + "\n")
    source = Files(train=[str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl")], validation=[str(tmp_path / "c.jsonl")])
    assert [row.extra_info["index"] for row in source.train_rows()] == [1, 0]
    assert [row.extra_info["index"] for row in source.validation_rows()] == [2]


def test_files_options():
    with pytest.raises(TypeError, match=r"files 'a\.jsonl' is one text; allowed: a list of paths"):
        Files(train="a.jsonl").train_rows()
    with pytest.raises(KeyError, match=r"mapping 'gsm8' is unknown .*did you mean 'gsm8k'"):
        Files(train=["a.jsonl"], mapping="gsm8").train_rows()
