"""The LightningModules, and the parts they are made of: experience, passes, scores, recipe."""

from sparrow.modules.compatibility import check_together
from sparrow.modules.dense_policy import DensePolicy
from sparrow.modules.distill_settings import DistillSettings
from sparrow.modules.distill_sparse import DistillSparse
from sparrow.modules.experience import Experience, collect, collect_unjudged
from sparrow.modules.non_finite import NonFiniteUpdate
from sparrow.modules.recipe import Recipe
from sparrow.modules.reference import ReferenceSettings
from sparrow.modules.scoring import Scores, score
from sparrow.modules.settings import RolloutSettings, UpdateSettings

__all__ = [
    "DensePolicy",
    "DistillSettings",
    "DistillSparse",
    "Experience",
    "NonFiniteUpdate",
    "Recipe",
    "ReferenceSettings",
    "RolloutSettings",
    "Scores",
    "UpdateSettings",
    "check_together",
    "collect",
    "collect_unjudged",
    "score",
]
