"""Turn scores into letters from A to G.

The thresholds are ours; no standard has any. They were set so that the eight phones that DeepEn2023
published lie in the middle, and both ends are left to better and worse devices, as the energy
label of the European Union leaves class A empty when it is introduced:

    PCS                                  one letter for every 10 points; the phones have C to E
    inferences per joule, on average     one letter for every factor of two; the phones have C, D
"""

from __future__ import annotations

from dataclasses import dataclass

LETTERS = "ABCDEFG"


@dataclass(frozen=True)
class LabelScale:
    """Which letter a value gets.

    Attributes:
        quantity: What is graded.
        thresholds: The least values of A to F; everything below has G.
    """

    quantity: str
    thresholds: tuple[float, ...]

    def choose_letter(self, value: float) -> str:
        """Return the letter of a value."""
        for letter, least in zip(LETTERS, self.thresholds, strict=False):
            if value >= least:
                return letter
        return LETTERS[-1]

    def describe(self) -> str:
        """Return ``A from 90, B from 80, …, G below``."""
        steps = zip(LETTERS, self.thresholds, strict=False)
        return ", ".join(f"{letter} from {least:g}" for letter, least in steps) + ", G below"


POWER_SCALE = LabelScale("PCS", (90.0, 80.0, 70.0, 60.0, 50.0, 40.0))
ENERGY_SCALE = LabelScale("inferences per joule, on average", (16.0, 8.0, 4.0, 2.0, 1.0, 0.5))


def choose_worse(one: str, other: str) -> str:
    """Return the worse of two letters: a device needs both scores to be good."""
    return max(one, other)
