"""Compare devices, batch sizes, precisions and optimizers for training a network.

    network x devices x setups ──joint estimates per device──▶ energy and time per sample, ranked

    ranking.py          ``compare``: estimates and ranks
    comparison.py       ``Comparison`` and ``ComparisonRow``
    comparison_plot.py  energy against time

Rows are ranked only among meters that cover the same thing, such as a GPU alone or a whole board.
Each row has the probability of using less energy than the next: on one device from the joint
covariance, in which shared errors cancel; between devices as if errors were independent. Rows that
cannot be ranked are kept with the reason.
"""

from joulecast.uses.compare.comparison import Comparison, ComparisonRow
from joulecast.uses.compare.ranking import DISTINGUISHABLE_PROBABILITY, compare

__all__ = ["DISTINGUISHABLE_PROBABILITY", "Comparison", "ComparisonRow", "compare"]
