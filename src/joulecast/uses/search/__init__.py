"""Searching nets and how they train, under an energy budget.

    Space ──any sampler──▶ candidates ──Screen: many at once──▶ those within the budget
                                                                   │ one is trained: your score
                                                                   ▼
                                        Search: the front of quality against joules, intervals

    dimensions.py  ranges and choices, as people type them
    space.py       what may vary: widths, depths, batch, precision, optimizer, anything of yours
    screen.py      ``BudgetScreener``: candidates → verdicts, in one question to the profile
    survey.py      ``survey``: which share of a space fits, without training anything
    sampling.py    any of Optuna's samplers, asked until a candidate fits
    study.py       ``search``: Optuna's studies, storage and dashboard; these two alone know it
    identity.py    what a study is about, and must not change in it
    result.py      the records of a result, and the front
    pictures.py    the front as a picture

The estimate rules a candidate out before a single step is trained. Samplers are asked again while
their candidates cost too much, so that no trial is wasted on one: what is trained was drawn as the
sampler draws, on condition that it fits (sampling.py). Nothing is measured here. What a budget is
and how long a run is, say ``joulecast.budgets``.
"""

from joulecast.budgets import EnergyBudget, RunLength, parse_budget
from joulecast.uses.search.dimensions import Choice, Dimension, NumberRange, parse_dimension
from joulecast.uses.search.search_result import TrainedTrial, SearchResult, make_trained_trials, hide_password
from joulecast.uses.search.screening import BudgetScreener, ScreenedCandidate, count_work, make_screener
from joulecast.uses.search.search_space import SearchSpace, make_search_space
from joulecast.uses.search.random_screening import RandomScreening, check_reachable, survey

__all__ = [
    "Choice",
    "Dimension",
    "EnergyBudget",
    "Point",
    "Range",
    "RunLength",
    "Screen",
    "Search",
    "Space",
    "Survey",
    "Verdict",
    "check_reachable",
    "count_work",
    "find_points",
    "hide_password",
    "make_space",
    "open_screen",
    "parse_budget",
    "parse_dimension",
    "survey",
]
