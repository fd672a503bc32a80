"""Add up what a whole run costs: training, evaluation, waiting for data, and a sweep of runs.

run_cost.py        the parts of a run and their totals
data_loading.py    what loading a batch takes, and how much of it the device waits for
"""

from joulecast.uses.whole_run.data_loading import DataWait, LoadingTime, find_wait, time_loader
from joulecast.uses.whole_run.run_cost import (
    EVALUATION,
    TRAINING,
    WAITING,
    RunCost,
    RunPart,
    RunSchedule,
    add_up_run,
    average_step,
)

__all__ = [
    "EVALUATION",
    "TRAINING",
    "WAITING",
    "DataWait",
    "LoadingTime",
    "RunCost",
    "RunPart",
    "RunSchedule",
    "add_up_run",
    "average_step",
    "find_wait",
    "time_loader",
]
