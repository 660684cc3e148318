"""Page budgets over the sequence length: schedules as data, the published ones, and their cost."""

from sparrow.schedule.budget import ALL_PAGES, ESTIMATORS, BudgetSchedule, schedule_from_dict
from sparrow.schedule.derive import derive_schedule
from sparrow.schedule.loading import load_schedule
from sparrow.schedule.published import published_names, published_schedule
from sparrow.schedule.table import MAX_BINS, BudgetTable

__all__ = [
    "ALL_PAGES",
    "ESTIMATORS",
    "MAX_BINS",
    "BudgetSchedule",
    "BudgetTable",
    "derive_schedule",
    "load_schedule",
    "published_names",
    "published_schedule",
    "schedule_from_dict",
]
