"""Options about a whole run: its parts, GPUs and first steps, units of its energy, a battery."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from joulecast.api.bill import Bill, make_bill
from joulecast.api.options import ParallelOptions, WholeRunOptions
from joulecast.cli.options import check_gpus
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
        whole: What the run consists of besides its steps.
        parallel: On how many GPUs it is trained.
    """

    seen: str | None
    grid: str | None
    price: str | None
    battery: str | None
    charge_share: float | None
    reserve_share: float | None
    rest_w: float | None
    whole: WholeRunOptions
    parallel: ParallelOptions

    def make_bill(self) -> Bill:
        """Return the bill of everything together."""
        return make_bill(1, self.grid, self.price)

    def check_battery(self, estimate: Estimate, steps: int) -> BatteryForecast | None:
        """Return whether a number of steps finishes on the battery; None without a battery."""
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
    **rest: Any,
) -> RunOptions:
    """Return the options about a run from the values of options."""
    for option, value in (("--charge", charge), ("--reserve", reserve), ("--rest-w", rest_w)):
        if value is not None and battery is None:
            raise click.UsageError(f"{option} needs --battery", click.get_current_context())
    whole = _make_whole_run(**{field.name: rest.pop(field.name) for field in _WHOLE_RUN})
    gpus = _make_parallel(**{field.name: rest.pop(field.name) for field in _PARALLEL})
    return RunOptions(
        battery=battery,
        charge_share=charge,
        reserve_share=reserve,
        rest_w=rest_w,
        whole=whole,
        parallel=gpus,
        **rest,
    )


_WHOLE_RUN, _PARALLEL = fields(WholeRunOptions), fields(ParallelOptions)


def _make_whole_run(
    eval_every: int | None, eval_samples: int | None, **rest: Any
) -> WholeRunOptions:
    if (eval_every is None) != (eval_samples is None):
        raise click.UsageError(
            "--eval-every and --eval-samples belong together", click.get_current_context()
        )
    return WholeRunOptions(eval_every, eval_samples, **rest)


def _make_parallel(gpus: int | None, parallel: str, link_gb_s: float | None) -> ParallelOptions:
    check_gpus(gpus, parallel, link_gb_s)
    return ParallelOptions(gpus or 1, parallel, link_gb_s)
