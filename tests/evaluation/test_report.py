"""Reports: sets, arms and differences hold the numbers that the samples give."""

import json

import pytest

from sparrow.evaluation import EvaluationSettings, Judged, Problem, flat_metrics, make_report
from sparrow.evaluation.report import measure

SETTINGS = EvaluationSettings(samples=4, ks=(1, 2, 4), resamples=50)


def problem(key, marks, source="a", answers=True):
    """A problem from marks: C correct, W wrong, T truncated, E error."""
    labels = {"C": "correct", "W": "wrong", "T": "truncated", "E": "error"}
    samples = [
        Judged(
            labels[mark],
            float(mark == "C"),
            10 * (place + 1),
            mark == "T",
            {"C": "7", "W": "8"}.get(mark) if answers else None,
        )
        for place, mark in enumerate(marks)
    ]
    return Problem(key, source, key, tuple(samples))


def test_the_metrics_of_a_problem():
    found = measure(problem(0, "CWTE"), SETTINGS)
    assert found == {
        "avg@4": 0.25, "pass@1": 0.25, "pass@2": 0.5, "pass@4": 1.0,
        "maj@2": pytest.approx((0.5 + 1 + 1) / 6), "maj@4": 0.5, "tokens": 25.0, "truncated": 0.25,
        "outcome/correct": 0.25, "outcome/wrong": 0.25, "outcome/unparsable": 0.0, "outcome/timeout": 0.0,
        "outcome/error": 0.25, "outcome/truncated": 0.25,
    }  # fmt: skip


def test_without_answers_there_is_no_vote():
    assert not [name for name in measure(problem(0, "CWCC", answers=False), SETTINGS) if name.startswith("maj")]


def test_sets_all_and_pairs():
    dense = [problem(0, "CCCC"), problem(1, "CWWW"), problem(2, "WWWW", "b")]
    sparse = [problem(0, "CCCW"), problem(1, "CWWW"), problem(2, "CCWT", "b")]
    report = make_report({"dense": dense, "sparse": sparse}, SETTINGS)
    assert report.problems == {"a": 2, "b": 1, "all": 3}
    assert report.arms["dense"]["a"]["avg@4"].value == 0.625
    assert report.arms["sparse"]["all"]["avg@4"].value == pytest.approx((0.75 + 0.25 + 0.5) / 3)
    assert report.paired["a"]["avg@4"].value == -0.125
    assert report.paired["b"]["truncated"].value == 0.25
    assert (report.paired["a"]["avg@4"].low, report.paired["a"]["avg@4"].high) == (-0.25, 0.0)
    flat = flat_metrics(report)
    assert flat["val/dense/a/avg@4"] == 0.625
    assert flat["val/paired/b/pass@4"] == 1.0
    assert json.loads(json.dumps(report.to_dict()))["arms"]["dense"]["b"]["pass@4"]["value"] == 0.0
    columns = [column.header for column in report.table().columns]
    assert columns == ["set", "problems", "metric", "dense", "sparse", "sparse - dense"]


def test_pairing_is_tighter_than_two_arms_that_share_their_problems():
    marks = ["CCCC", "WWWW"] * 20
    dense = [problem(key, mark) for key, mark in enumerate(marks)]
    report = make_report({"dense": dense, "sparse": dense}, SETTINGS)
    paired, alone = report.paired["a"]["avg@4"], report.arms["dense"]["a"]["avg@4"]
    assert (paired.low, paired.high) == (0.0, 0.0)
    assert alone.high - alone.low > 0.1


def test_arms_with_other_problems_are_refused():
    with pytest.raises(ValueError, match="arms dense, sparse hold different problems"):
        make_report({"dense": [problem(0, "CCCC")], "sparse": [problem(1, "CCCC")]}, SETTINGS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "evaluation.samples=0: must be 1 or more"),
        ({"samples": 2, "ks": (4,)}, "evaluation.ks has 4: each must be from 1 to samples=2"),
        ({"arms": ("spare",)}, r"evaluation.arms=\['spare'\]: must be one or more of dense, sparse"),
        ({"temperature": 0.0}, "evaluation.temperature=0.0 with samples=16"),
        ({"level": 1.0}, "evaluation.level=1.0: must be between 0 and 1"),
        ({"top_p": 2.0}, "evaluation.top_p=2.0: must be above 0 and at most 1"),
        ({"min_p": -0.5}, "evaluation.min_p=-0.5: must be from 0 to 1"),
        ({"temperature": float("inf")}, "evaluation.temperature=inf: must be a finite number"),
        ({"max_problems": 0}, "evaluation.max_problems=0: must be 1 or more, or null"),
    ],
)
def test_wrong_settings_name_the_key(change, message):
    with pytest.raises(ValueError, match=message):
        EvaluationSettings(**change)


def test_no_problems_and_a_set_named_all():
    with pytest.raises(ValueError, match="arms dense hold no problems; allowed: 1 or more"):
        make_report({"dense": []}, SETTINGS)
    with pytest.raises(ValueError, match="data_source 'all' beside others is not allowed"):
        make_report({"dense": [problem(0, "CCCC", "all"), problem(1, "CCCC", "b")]}, SETTINGS)
    assert make_report({"dense": [problem(0, "CCCC", "all")]}, SETTINGS).problems == {"all": 1}
