"""Cutting channels of a net until it fits an energy budget.

    groups of channels ──strategy──▶ counts ──narrow──▶ Network ──estimate──▶ within the budget?
                           ▲                                          │
                           └───────────── guide: joules or FLOPs ─────┘

    budget.py       what may be spent: a share of what it was, or joules
    guide.py        what a candidate costs: by the estimator with joint doubt, or by FLOPs
    limits.py       how far each group may go: floors, layers to keep, multiples
    strategies.py   ``marginal``, ``uniform``, ``random``: which channels go
    finish.py       gives back what is left over; never dearer for fewer channels
    run.py          ``prune``: all of it, to a Pruning
    result.py       the records of a result

Everything here works on Networks: no framework, so that thousands of candidates are looked at in
seconds. The smaller net itself is made by ``runtimes.torch.shrink.cut`` from the counts.
"""

from joulecast.uses.prune.pruning_budget import EnergyBudget, parse_budget
from joulecast.uses.prune.pruning_objectives import EnergyObjective, FlopsObjective, PruningObjective
from joulecast.uses.prune.channel_limits import ChannelLimits, make_channel_limits
from joulecast.uses.prune.pruning_result import PruningResult
from joulecast.uses.prune.network_pruning import prune_network
from joulecast.uses.prune.strategies import STRATEGIES, Strategy

__all__ = [
    "STRATEGIES",
    "EnergyBudget",
    "EstimateGuide",
    "FlopsGuide",
    "Guide",
    "Limits",
    "Pruning",
    "Strategy",
    "make_limits",
    "parse_budget",
    "prune_network",
]
