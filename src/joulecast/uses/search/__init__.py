"""Search for networks and training setups with a high score within an energy budget.

    SearchSpace ──any sampler──▶ candidates ──BudgetScreener──▶ those within the budget
                                                                   │ your function trains one
                                                                   ▼
                                  SearchResult: Pareto front of score against energy

    dimensions.py         numeric ranges and choices
    search_space.py       widths, depths, batch, precision, optimizer and your own parameters
    screening.py          ``BudgetScreener``: estimates candidates in batches
    interpolation.py      interpolates estimates between those of some candidates
    random_screening.py   the share of a space within the budget, without training
    screening_sampler.py  an Optuna sampler that proposes only candidates within the budget
    study.py              ``search``: runs an Optuna study
    study_identity.py     options that must not change when a study is continued
    search_result.py      records of a result, and the front
    search_plot.py        the front as a plot

Screening means to estimate the energy of a candidate and to rule it out before training if it
exceeds the budget. The wrapped sampler is asked again until a candidate fits, so no trial is wasted
on a network that is too expensive. Nothing is measured here. ``joulecast.budgets`` defines budgets
and run lengths, ``uses/search_options.py`` the options.
"""

from joulecast.uses.search.dimensions import Choice, Dimension, NumberRange, parse_dimension
from joulecast.uses.search.random_screening import (
    RandomScreening,
    check_reachable,
    screen_randomly,
)
from joulecast.uses.search.screening import (
    BudgetScreener,
    ScreenedCandidate,
    make_screener,
)
from joulecast.uses.search.search_result import SearchResult, TrainedTrial
from joulecast.uses.search.search_space import SearchSpace, make_search_space
from joulecast.uses.search_options import SearchOptions

__all__ = [
    "BudgetScreener",
    "Choice",
    "Dimension",
    "NumberRange",
    "RandomScreening",
    "ScreenedCandidate",
    "SearchOptions",
    "SearchResult",
    "SearchSpace",
    "TrainedTrial",
    "check_reachable",
    "make_screener",
    "make_search_space",
    "parse_dimension",
    "screen_randomly",
]
