"""Simulated devices: a seeded law from a Trial to joules and seconds, on a virtual clock.

Takes a seed, gives a World. ``SimulatedDevice.law`` is a pure function: what one step costs, without noise.
Running steps advances the world's own clock and books joules, so that a meter can be read at any
moment and no test ever sleeps:

    host     ├─issue─┤                         ├─issue─┤
    device      ├──────── steps ────────┤         ├──────── steps ──── …
    power    idle ▔▔▔▔▔▔▔ loaded ▔▔▔▔▔▔▔▔ idle at active clocks … asleep after a while

The law walks over the operators of a step as a machine would, and shares no formula with any
estimator, so that recovering it shows something:

- a contraction is cut into tiles, sizes round up to whole tiles (cliffs), tiles run in waves over
  the workers (a layer that does not fill the machine costs the same until it does: a plateau),
  and which of two algorithms runs jumps at sizes drawn from the seed;
- memory has a latency, overlaps with arithmetic, and hands small activations on in the cache;
- the host issues every launch: a step takes about the longer of host and device time, and a
  waiting device draws idle power; a replayed graph needs no host;
- what does not add up over layers is small: the cache, a power limit that lowers the clocks, heat.

Everything that comes out of here is simulated and says so.
"""

from joulecast.simulation.device import (
    DISTURBANCES,
    Disturbance,
    SimulatedDevice,
    make_simulated_device,
)
from joulecast.simulation.step_cost import Chip, StepCost, draw_chip

__all__ = ["DISTURBANCES", "Chip", "Cost", "Disturbance", "World", "draw_chip", "make_world"]
