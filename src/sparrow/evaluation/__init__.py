"""Evaluation: several samples per problem, unbiased estimators, intervals over problems, dense and sparse in pairs."""

from sparrow.evaluation.estimators import avg_at_n, maj_at_k, pass_at_k
from sparrow.evaluation.intervals import Estimate, bootstrap
from sparrow.evaluation.report import Report, flat_metrics, make_report
from sparrow.evaluation.sampling import Judged, Problem, evaluate
from sparrow.evaluation.settings import EvaluationSettings

__all__ = [
    "Estimate",
    "EvaluationSettings",
    "Judged",
    "Problem",
    "Report",
    "avg_at_n",
    "bootstrap",
    "evaluate",
    "flat_metrics",
    "maj_at_k",
    "make_report",
    "pass_at_k",
]
