"""Convert the energy of many steps or samples to kWh, CO2e and money."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulecast.units import Price, co2e_g, joules_to_kwh, parse_grid, parse_price, price_energy

Json = dict[str, Any]


@dataclass(frozen=True)
class Bill:
    """A number of steps or samples, and the units to convert their energy to.

    Attributes:
        count: Steps or samples.
        grams_per_kwh: CO2e of the grid; None where it is not wanted.
        price: Price of a kWh; None where it is not wanted.
    """

    count: int
    grams_per_kwh: float | None = None
    price: Price | None = None

    def compute_totals(
        self, energy_j: float, interval_j: tuple[float, float], duration_s: float
    ) -> Json:
        """Return the totals as JSON values, given energy and duration of one step or sample."""
        total_j = energy_j * self.count
        data: Json = {
            "total_energy_j": total_j,
            "total_interval_j": [end_j * self.count for end_j in interval_j],
            "total_duration_s": duration_s * self.count,
            "kwh": joules_to_kwh(total_j),
        }
        if self.grams_per_kwh is not None:
            data["co2e_g"] = co2e_g(total_j, self.grams_per_kwh)
        if self.price is not None:
            data["cost"] = price_energy(total_j, self.price.amount_per_kwh)
            data["currency"] = self.price.currency
        return data


def make_bill(count: int, grid: str | None = None, price: str | None = None) -> Bill:
    """Return a bill from the text of options: ``de`` or ``400``, and ``0.30EUR``."""
    return Bill(count, parse_grid(grid) if grid else None, parse_price(price) if price else None)
