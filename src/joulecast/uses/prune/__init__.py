"""Prune channels of a network until it meets an energy budget.

    channel groups ──strategy──▶ counts ──narrow──▶ Network ──estimate──▶ within the budget?
                        ▲                                          │
                        └────────── objective: energy or FLOPs ────┘

    network_pruning.py     ``prune_network``: from a network and a budget to a PruningResult
    pruning_budget.py      the budget of a step, parsed from text
    channel_limits.py      channel counts allowed in each group
    pruning_objectives.py  costs of candidates, estimated in joules or counted in FLOPs
    pruning_problem.py     candidates, their costs, and the probability of meeting the budget
    strategies.py          ``marginal``, ``uniform``, ``random``
    refinement.py          grows counts where that costs nothing or the budget allows it
    pruning_result.py      records of a result
    pruning_summary.py     ``read_pruning``: a result that was written as JSON

This package works on Networks, without a framework, so that thousands of candidates are estimated
in seconds. ``runtimes.torch.channel_pruning`` removes the channels from the module.
``PruneOptions`` is defined in ``uses/prune_options.py``.
"""

from joulecast.uses.prune.channel_limits import ChannelLimits, make_channel_limits
from joulecast.uses.prune.network_pruning import prune_network
from joulecast.uses.prune.pruning_budget import parse_pruning_budget
from joulecast.uses.prune.pruning_objectives import (
    EnergyObjective,
    FlopsObjective,
    PruningObjective,
)
from joulecast.uses.prune.pruning_result import LayerChange, PruningResult
from joulecast.uses.prune.pruning_summary import PruningSummary, read_pruning
from joulecast.uses.prune.strategies import STRATEGIES, Strategy
from joulecast.uses.prune_options import PruneOptions

__all__ = [
    "STRATEGIES",
    "ChannelLimits",
    "EnergyObjective",
    "FlopsObjective",
    "LayerChange",
    "PruneOptions",
    "PruningObjective",
    "PruningResult",
    "PruningSummary",
    "Strategy",
    "make_channel_limits",
    "parse_pruning_budget",
    "prune_network",
    "read_pruning",
]
