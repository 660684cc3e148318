"""From the configuration's ``schedule`` node to a schedule."""

from omegaconf import DictConfig, OmegaConf

from sparrow.config.check import ConfigError
from sparrow.schedule import BudgetSchedule, load_schedule, published_names, schedule_from_dict


def build_schedule(node: DictConfig) -> BudgetSchedule:
    """Build the schedule that a run uses.

    Args:
        node: either the fields of a schedule, or ``name``: the name or path that :func:`load_schedule` takes
            (``schedule=default`` sets it to the model's own default).

    Raises:
        ConfigError: the model names no default schedule, so that one must be chosen.
        ValueError: a field or a name is wrong.
    """
    fields = OmegaConf.to_container(node, resolve=True)
    assert isinstance(fields, dict)
    if "name" not in fields:
        return schedule_from_dict({str(key): value for key, value in fields.items()})
    if fields["name"] is None:
        options = ", ".join(["dense", "constant", *published_names()])
        raise ConfigError(f"this model names no default schedule: choose one by schedule=... ({options})")
    schedule = load_schedule(fields["name"])
    overrides = {str(key): value for key, value in fields.items() if key != "name" and value is not None}
    if not overrides:
        return schedule
    if "provenance" not in overrides:  # what was measured is not what runs
        overrides["provenance"] = f"{schedule.provenance}; changed in {', '.join(sorted(overrides))}"
    return schedule_from_dict({**schedule.to_dict(), **overrides})
