"""Plan which job runs when on which device: least energy, with every battery above its reserve.

    jobs.toml --plan_file--> PlanRequest --job_costs--> Problem --solve--> Solution --> Plan

    plan_request, plan_file    jobs and devices, and the TOML file that describes them
    job_costs, run_forecast    energy and duration of each job on each device, with uncertainty
    problem                    the scheduling problem in numbers; nothing below knows networks
    replay                     check a schedule event by event, independently of the solver
    time_grid                  the problem on whole time steps
    schedule_model, charge_model    the CP-SAT model (the extra ``plan``), and its batteries
    relaxation                 a lower bound by a linear program
    insertion, improvement     first solutions, and better ones for hundreds of tasks
    solve                      all of these together
    left_out                   why a job cannot run
    plan_result, plan_plot     the finished plan

Not modelled: slowdown of jobs that run at the same time, charging losses, cold or aged batteries,
and moving data between devices.
"""

from joulecast.estimators.forecast import BatteryForecast, RunForecast, will_finish
from joulecast.uses.plan.job_costs import JobCost, estimate_jobs, make_problem
from joulecast.uses.plan.left_out import LeftOut, LeftOutReason
from joulecast.uses.plan.plan_file import parse_plan_request, read_plan_request
from joulecast.uses.plan.plan_request import DeviceSpec, Job, PlanRequest
from joulecast.uses.plan.plan_result import Plan, plan_jobs
from joulecast.uses.plan.plan_summary import PlanSummary, read_plan
from joulecast.uses.plan.problem import (
    Assignment,
    Battery,
    ChargingWindow,
    PlanDevice,
    Problem,
    Task,
    TaskCost,
)
from joulecast.uses.plan.replay import DeviceRun, Replay, Violation, replay
from joulecast.uses.plan.solve import Solution, solve

__all__ = [
    "Assignment",
    "Battery",
    "BatteryForecast",
    "ChargingWindow",
    "DeviceRun",
    "DeviceSpec",
    "Job",
    "JobCost",
    "LeftOut",
    "LeftOutReason",
    "Plan",
    "PlanDevice",
    "PlanRequest",
    "PlanSummary",
    "Problem",
    "Replay",
    "RunForecast",
    "Solution",
    "Task",
    "TaskCost",
    "Violation",
    "estimate_jobs",
    "make_problem",
    "parse_plan_request",
    "plan_jobs",
    "read_plan",
    "read_plan_request",
    "replay",
    "solve",
    "will_finish",
]
