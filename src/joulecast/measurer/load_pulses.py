"""Run load pulses, by which a power trace is aligned with the clock of the run.

    load  ▁▁▁▔▔▔▁▁▔▔▔▔▔▁▁▁▁▔▔▔▁▁▁▔▔▔▔▁▁▁    windows of the trial    ▁▁▁▔▔▔▔▁▁▔▔▔ …
          └─ before ──────────────────┘                            └─ after ─ …

Each trial draws the lengths of its pulses and gaps from its key, so that no two trials look alike
in the trace. Steps are not interrupted: a pulse lasts for a whole number of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from joulecast.records import Trial

PULSES = 4
"""Pulses before a trial, and after it."""
# An instrument with 100 samples a second has at least ten of them in a pulse.
_SHORTEST_S, _LONGEST_S = 0.12, 0.3


def draw_pulses(trial: Trial, place: str) -> Iterator[tuple[float, float]]:
    """Yield seconds without and then with load; a last gap follows the pulses.

    Args:
        trial: The trial whose pulses these are.
        place: ``before`` or ``after`` its windows.
    """
    rng = random.Random(f"{trial.key} {place}")
    for _ in range(PULSES):
        yield rng.uniform(_SHORTEST_S, _LONGEST_S), rng.uniform(_SHORTEST_S, _LONGEST_S)


LAST_GAP_S = _LONGEST_S
"""Seconds without load after the last pulse."""
