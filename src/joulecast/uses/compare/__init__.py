"""Where and how to train a net: devices, batches, precisions and optimizers, side by side.

    net x devices x setups ──one question a device──▶ joules and seconds of a sample, ranked
                                                      the front: nobody is better in both

    result.py   ``ComparisonRow``, ``Comparison``: the records
    rank.py     ``compare``: asks, ranks, and says what cannot be told apart
    pictures.py joules against seconds

Meters that cover different things (a GPU alone, a whole board) are never ranked together: their
joules are not of the same thing. Whether one combination is really cheaper than the next says a
chance: on one device from the joint covariance, since most errors are shared and cancel; between
devices as if they were strangers. What cannot be compared is kept, with the reason.
"""

from joulecast.uses.compare.ranking import DISTINGUISHABLE_PROBABILITY, compare
from joulecast.uses.compare.comparison import Comparison, ComparisonRow

__all__ = ["SURE", "Comparison", "Row", "compare"]
