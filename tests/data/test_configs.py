"""Every shipped data set: its configuration asks the hub for the right thing, and rows of its layout come out sound."""

import datasets
import pytest
from hydra import compose, initialize_config_dir

from sparrow.config import build, check_config
from sparrow.config_dir import config_dir
from sparrow.rewards import Scorer, check_routes
from sparrow.rewards.code import Code
from sparrow.rewards.sandbox import Limits

NAMES = sorted(path.stem for path in (config_dir() / "data").glob("*.yaml"))
BOXED = {"problem": "p", "answer": "7", "solution": "so \\boxed{7}"}
PARTS = ("train", "test")
TESTS = '{"inputs": ["1"], "outputs": ["1"]}'
CASE = '[{"input": "1", "output": "1", "testtype": "stdin"}]'
URLS = [{**BOXED, "url": f"https://x/{year}_AMC_12A"} for year in (2022, 2023, 2024)]
VERL = {
    "data_source": "code", "prompt": [{"role": "user", "content": "a ```python block"}], "ability": "coding",
    "reward_model": {"style": "rule", "ground_truth": TESTS},
    "extra_info": {"index": 0, "reference": "print(input())", "dataset": "likaixin/TACO-verified"},
}  # fmt: skip
DAPO = {
    "data_source": "math_dapo", "prompt": [{"role": "user", "content": "p Answer: x"}], "ability": "MATH",
    "reward_model": {"style": "rule", "ground_truth": "34"}, "extra_info": {"index": "uuid"},
}  # fmt: skip

# Name -> what the hub must be asked for as (set, configuration, split), rows that it would give, rows that come out.
EXPECTED = {
    "polaris-53k": ([("POLARIS-Project/Polaris-Dataset-53K", None, "train")], [BOXED], 1),
    "deepscaler": ([("agentica-org/DeepScaleR-Preview-Dataset", None, "train")], [BOXED], 1),
    "dapo-math-17k": ([("BytedTsinghua-SIA/DAPO-Math-17k", None, "train")], [DAPO] * 5, 1),
    "math": ([("DigitalLearningGmbH/MATH-lighteval", "default", part) for part in ("train", "test")], [BOXED], 2),
    "gsm8k": ([("openai/gsm8k", "main", part) for part in PARTS], [{"question": "p", "answer": "#### 7"}], 2),
    "math-500": ([("HuggingFaceH4/MATH-500", None, "test")], [BOXED], 1),
    "aime-2024": ([("HuggingFaceH4/aime_2024", None, "train")], [BOXED], 1),
    "aime-2025": ([("MathArena/aime_2025", None, "train")], [BOXED], 1),
    "aime-2026": ([("MathArena/aime_2026", None, "train")], [BOXED], 1),
    "amc-2022": ([("AI-MO/aimo-validation-amc", None, "train")], URLS, 1),
    "amc-2023": ([("math-ai/amc23", None, "test")], [{"question": "p", "answer": "27.0"}], 1),
    "amc-2024": ([("scottgeng00/amc_22-24", None, "test")], URLS, 1),
    "taco-verified": (
        [("likaixin/TACO-verified", None, "train")],
        [{"question": "p", "input_output": TESTS, "starter_code": "", "solutions": ["print(input())"]}],
        1,
    ),
    "code-r1": ([("ganler/code-r1-12k", None, part) for part in ("train", "test")], [VERL], 2),
    "livecodebench": (
        [("json", {"test": ["hf://datasets/livecodebench/code_generation_lite/test6.jsonl"]}, "test")],
        [{"question_content": "p", "starter_code": "", "metadata": "{}", "public_test_cases": CASE,
          "private_test_cases": "[]", "question_id": "1", "contest_date": "2025-01-04"}],
        1,
    ),
    "humaneval-plus": (
        [("evalplus/humanevalplus", None, "test")],
        [{"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "    return 1",
          "test": "def check(c):\n    assert c() == 1"}],
        1,
    ),
    "mbpp-plus": (
        [("evalplus/mbppplus", None, "test")],
        [{"task_id": 2, "prompt": "p", "code": "f = int", "test_imports": [], "test_list": ["assert f() == 0"],
          "test": "assert f() == 0"}],
        1,
    ),
}  # fmt: skip
LIVE = "livecodebench/code_generation_lite"
OWN = {"chain-sum", "running-sum", "reasoning-gym", "files", "long-texts"}


class Letters:
    """A tokenizer of one token per character."""

    chat_template = "{{ enable_thinking }}"

    def apply_chat_template(self, conversation, **options):
        return [ord(letter) for message in conversation for letter in message["content"]]

    def encode(self, text, *, add_special_tokens):
        return list(map(ord, text))


def composed(name, *overrides):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("prepare", overrides=[f"data={name}", "paths.run_dir=out", *overrides])
    check_config(cfg)
    return cfg


@pytest.fixture(scope="module")
def scorer():
    """One for all tests, so that its worker imports the mathematics only once."""
    reward = Code(sandbox="limits", limits=Limits(seconds=30.0))
    sources = ("code", "likaixin/TACO-verified", "evalplus/humanevalplus", "evalplus/mbppplus")
    with Scorer(routes={**dict.fromkeys(sources, reward), LIVE: reward}, workers=1, timeout_s=60.0) as shared:
        yield shared


def test_every_configuration_is_tested():
    assert {*EXPECTED, *OWN} == set(NAMES)


@pytest.mark.parametrize("name", EXPECTED)
def test_hub_sets(name, monkeypatch, scorer):
    calls, rows, count = EXPECTED[name]
    asked = []

    def load(path, config=None, *, split, data_files=None):
        asked.append((path, config if data_files is None else data_files, split))
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    data = build(composed(name).data, tokenizer=Letters())
    data.setup()
    assert sorted(asked, key=str) == sorted(calls, key=str)
    found = [prompt.row for prompt in (*data.train_prompts, *data.validation_prompts)]
    assert len(found) == count
    checked = check_routes(found, scorer)
    assert sum(checked.agreeing.values()) == count
    assert sum(checked.checked.values()) == (0 if name == "livecodebench" else count)


@pytest.mark.parametrize("name", ["chain-sum", "running-sum", "reasoning-gym", "long-texts"])
def test_own_sets(name):
    sizes = ["data.source.count=8", "data.source.validation_count=4"]
    data = build(composed(name, *sizes, "data.prompts_per_step=2").data, tokenizer=Letters())
    data.setup()
    assert (len(data.train_prompts), len(data.validation_prompts)) == (8, 4)
    with Scorer() as scorer:
        checked = check_routes([prompt.row for prompt in (*data.train_prompts, *data.validation_prompts)], scorer)
    assert sum(checked.checked.values()) == 12


def test_a_set_that_cannot_be_had_says_what_to_do(monkeypatch):
    def load(*_, **__):
        raise ConnectionError("Offline mode is enabled.")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(FileNotFoundError, match=r"data set 'openai/gsm8k' cannot be had \(Offline.*a local folder"):
        build(composed("gsm8k").data.source).train_rows()


def test_the_year_of_a_set_that_lacks_it():
    from sparrow.data.readers import Choice, _rows

    with pytest.raises(ValueError, match=r"amc: no rows of 2 match {'url': '2031'}; at least one is needed"):
        _rows([("amc:0", URLS[0]), ("amc:1", URLS[1])], "amc", None, Choice(where={"url": "2031"}))
    with pytest.raises(ValueError, match="amc:0: field url is missing, by which rows are chosen"):
        _rows([("amc:0", BOXED)], "amc", None, Choice(where={"url": "2022"}))
