"""The command on data sets: rows in the common schema are left behind, and the dry run finds what is wrong."""

import json

import pytest
from hydra import compose, initialize_config_dir

from sparrow.config import check_config
from sparrow.config_dir import config_dir
from sparrow.data.readers import read_rows
from sparrow.prepare import prepare


def run(folder, *overrides):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("prepare", overrides=[*overrides, f"paths.run_dir={folder}"])
    check_config(cfg)
    prepare(cfg, folder)


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(prompt, answer, source="sparrow/math"):
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": prompt}],
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": "train", "index": 4},
    }


def test_own_files_with_a_layout(tmp_path, capsys):
    path = write(tmp_path / "raw.jsonl", {"question": "1+1?", "answer": "so\n#### 2"})
    run(tmp_path, "data=files", f"data.source.train=[{path}]", "data.source.mapping=gsm8k", "check=true")
    said = capsys.readouterr().out
    assert "train: 1 rows, lengths not counted (model=... counts them), in" in said
    assert "openai/gsm8k: 1 rows route, 1 prompts ask for what their checker looks for; 1 gold answers score 1" in said
    (found,) = read_rows(tmp_path / "train.jsonl")
    assert (found.ground_truth, found.data_source) == ("2", "openai/gsm8k")


def test_lengths_are_counted_by_a_model(tmp_path, capsys):
    sizes = ("data.source.count=5", "data.source.validation_count=2", "data.source.numbers=6")
    run(tmp_path, "data=running-sum", "model=tiny", "check=true", "data.max_prompt_tokens=100", *sizes)
    said = capsys.readouterr().out
    assert "train: 5 of 5 rows kept (0 left out over 100 tokens), prompts of" in said
    assert "sparrow/running_sum: 7 rows route, 0 prompts ask for" in said
    assert len(read_rows(tmp_path / "validation.jsonl")) == 2


@pytest.mark.parametrize(
    ("found", "error", "message"),
    [
        (row("Put it in \\boxed{}.", "\\frac{1}{"), ValueError, "1 of 1 gold answers do not score 1"),
        (row("What is it?", "7"), ValueError, r"1 of 1 prompts do not ask for .*Math looks for one of \\boxed"),
        (row("What is it?", "7", "nobody/knows"), KeyError, "no reward is registered for this data_source"),
    ],
)
def test_the_dry_run_finds(found, error, message, tmp_path):
    path = write(tmp_path / "raw.jsonl", found)
    with pytest.raises(error, match=message):
        run(tmp_path, "data=files", f"data.source.train=[{path}]", "check=true")


def test_nothing_to_do_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="nothing to prepare; allowed: model=..., data=..., or both"):
        run(tmp_path)
    with pytest.raises(ValueError, match="nothing to prepare"):
        run(tmp_path, "check=true")


def test_a_tokenizer_that_refuses_a_prompt_names_the_row(tmp_path):
    path = write(tmp_path / "raw.jsonl", row("Natalia sold clips. \\boxed", "7"))
    with pytest.raises(
        ValueError, match=r"row {'split': 'train', 'index': 4} of data_source 'sparrow/math': field prompt"
    ):
        run(tmp_path, "data=files", f"data.source.train=[{path}]", "model=tiny")
