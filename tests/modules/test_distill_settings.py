"""The settings of DistillSparse refuse what makes no sense, by key."""

from typing import Any

import pytest

from sparrow.modules import DistillSettings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rank": 0}, "distill.rank=0: must be 1 or more"),
        ({"every": 0}, "distill.every=0: must be 1 or more"),
        ({"alpha": 0.0}, "distill.alpha=0.0: must be above 0"),
        ({"lr_factor": -1.0}, "distill.lr_factor=-1.0: must be above 0"),
        ({"weight": -0.1}, "distill.weight=-0.1: must be 0 or more"),
        ({"weight": 0.0, "policy_loss": False}, "the adapter would have no loss"),
        ({"weight": float("inf")}, "distill.weight=inf: must be 0 or more"),
        ({"targets": ["q_proj", "lm_head"]}, r"distill.targets=\['q_proj', 'lm_head'\]: must be all-linear or some of"),
        ({"base": "later"}, "distill.base='later': must be sampled or updated"),
        ({"schedule": {"scale": 0.5}}, r"distill.schedule={'scale': 0.5} with distill.policy_loss=True"),
        ({"schedule": "tiny", "policy_loss": False, "replay": True}, r"distill.replay=True: .* both must be false"),
    ],
)
def test_wrong_settings_name_the_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DistillSettings(**values)
