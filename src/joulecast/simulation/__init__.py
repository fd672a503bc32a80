"""Simulate devices: draw one from a seed, and run steps on its virtual clock.

``SimulatedDevice.true_cost`` is a pure function: energy and duration of one step, without noise.
Running steps advances the device's own clock and adds to its energy, so that a meter can be read at
any moment and no test ever sleeps:

    host     ├─issue─┤                         ├─issue─┤
    device      ├──────── steps ────────┤         ├──────── steps ──── …
    power    idle ▔▔▔▔▔▔▔ loaded ▔▔▔▔▔▔▔▔ idle at active clocks … asleep after 30 s

The cost follows the kernels of a step and shares no formula with any estimator, so that recovering
it from measurements is a real test:

- a matrix product is cut into tiles: sizes round up to whole tiles (cliffs), tiles run in waves
  over the workers (a layer that does not fill the device costs the same until it does: a plateau),
  and which of two algorithms runs changes at sizes drawn from the seed;
- memory has a latency, overlaps with arithmetic, and keeps small activations in the cache;
- the host issues every launch: a step takes about the longer of host and device time, and a
  waiting device draws idle power; a replayed graph needs no host;
- what does not add up over layers is small: the cache, heat, and lower clocks at the power limit.

Observations made here have the provenance ``simulated``.
"""

from joulecast.simulation.chip import Chip, StepCost
from joulecast.simulation.device import (
    DISTURBANCES,
    Disturbance,
    SimulatedDevice,
    make_simulated_device,
)
