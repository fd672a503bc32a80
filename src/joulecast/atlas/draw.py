"""Draw sizes at random, log-uniformly, from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class SizeDraw:
    """A seeded source of sizes: the same seed draws the same sizes on every machine."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def size(self, low: int, high: int, multiple: int = 1) -> int:
        """Return a log-uniform integer between two bounds, a multiple of a number."""
        value = math.exp(self._random.uniform(math.log(low), math.log(high)))
        least, most = -(-low // multiple), max(high // multiple, 1)
        return multiple * min(max(round(value / multiple), least), most)

    def width(self, low: int, high: int) -> int:
        """Return a number of channels: usually a multiple of 8, sometimes of 64, seldom odd."""
        return self.size(low, high, self.choose((8, 8, 8, 16, 64, 1)) if low >= 64 else 8)

    def choose(self, options: Sequence[T]) -> T:
        """Return one of the options, all equally likely."""
        return self._random.choice(options)

    def happens(self, probability: float) -> bool:
        """Return true with a probability."""
        return self._random.random() < probability
