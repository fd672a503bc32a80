"""Which job runs when on which device, at least energy, with every battery above its reserve.

    jobs.toml ──read──▶ Ask ──estimates──▶ Costs ──upper bounds──▶ Problem ──solve──▶ Plan
                                                                      ▲         │
                                                                      └─ replay ┘

    ask.py, read.py, words.py    what a person asks for, and the file that says it
    costs.py                     what each job takes on each device, from its profile
    problem.py                   the question in numbers; nothing below knows of nets or files
    replay.py                    a plan lived through from event to event: does it hold?
    ticks.py                     the question on whole ticks
    sheet.py, batteries.py, model.py    the same for CP-SAT (the extra ``plan``)
    packing.py                   how much of a machine each job has while it runs
    relax.py                     a bound, and where jobs belong, by a linear program
    board.py, place.py, improve.py    first plans, mended plans, better plans of hundreds of jobs
    tidy.py                      as early as can be, when it is known who runs where
    solve.py                     all of these together
    blame.py                     why a job is left out, and how much is missing
    spread.py                    joules and seconds of a run, and how unsure each is
    follow.py                    a plan in its order when jobs take other times than planned
    result.py, pictures.py       the finished plan, for people and programs
    charge.py                    will one run finish on this charge?

Not modelled: that jobs at once slow each other down, that charging loses energy or slows down near
full, that batteries age or give less in the cold, and moving data or weights between devices.
"""

from joulecast.uses.plan.ask import Ask, Job, Station
from joulecast.uses.plan.blame import LeftOut, Reason
from joulecast.uses.plan.charge import Finish, will_finish
from joulecast.uses.plan.costs import JobCost, estimate_jobs, make_problem
from joulecast.uses.plan.problem import Battery, Cost, Machine, Problem, Slot, Task, Window
from joulecast.uses.plan.read import parse_ask, read_ask
from joulecast.uses.plan.replay import Break, MachineRun, Moment, Replay, replay
from joulecast.uses.plan.result import Plan, plan_jobs
from joulecast.uses.plan.solve import Solution, solve

__all__ = [
    "Ask",
    "Battery",
    "Break",
    "Cost",
    "Finish",
    "Job",
    "JobCost",
    "LeftOut",
    "Machine",
    "MachineRun",
    "Moment",
    "Plan",
    "Problem",
    "Reason",
    "Replay",
    "Slot",
    "Solution",
    "Station",
    "Task",
    "Window",
    "estimate_jobs",
    "make_problem",
    "parse_ask",
    "plan_jobs",
    "read_ask",
    "replay",
    "solve",
    "will_finish",
]
