"""Options about a whole run: its first steps, other units of its energy, and a battery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from joulecast.api.bill import Bill, make_bill
from joulecast.records import Estimate
from joulecast.units import parse_energy

if TYPE_CHECKING:
    from joulecast.uses.plan.run_forecast import BatteryForecast


@dataclass(frozen=True)
class RunOptions:
    """What is printed of the whole run besides its energy.

    Attributes:
        seen: Energy and number of the run's first steps, like ``12J/100``.
        grid: CO2e per kWh, or a region.
        price: Price per kWh.
        battery: Energy of a full battery.
        charge_share: Share of it that is charged.
        reserve_share: Share of it that must remain.
        rest_w: Power that the battery supplies and the meter does not see.
    """

    seen: str | None
    grid: str | None
    price: str | None
    battery: str | None
    charge_share: float | None
    reserve_share: float | None
    rest_w: float | None

    def make_bill(self, steps: int) -> Bill:
        """Return the bill of all steps."""
        return make_bill(steps, self.grid, self.price)

    def check_battery(self, estimate: Estimate, steps: int) -> BatteryForecast | None:
        """Return whether the run finishes on the battery; None without a battery."""
        if self.battery is None:
            return None
        # The modules of planning take a moment to import.
        from joulecast.uses.plan.run_forecast import will_finish

        charge = 1.0 if self.charge_share is None else self.charge_share
        battery_j = parse_energy(self.battery)
        return will_finish(
            estimate, steps, battery_j, charge, self.reserve_share or 0.0, self.rest_w or 0.0
        )


def make_run_options(
    battery: str | None,
    charge: float | None,
    reserve: float | None,
    rest_w: float | None,
    **units: str | None,
) -> RunOptions:
    """Return the options about a run from the values of options."""
    for option, value in (("--charge", charge), ("--reserve", reserve), ("--rest-w", rest_w)):
        if value is not None and battery is None:
            raise click.UsageError(f"{option} needs --battery", click.get_current_context())
    return RunOptions(
        battery=battery, charge_share=charge, reserve_share=reserve, rest_w=rest_w, **units
    )
