"""Read jobs and devices from a TOML file; every error is one line that names table and key.

    [[job]]       name net steps | inferences | epochs samples, batch input precision optimizer
                  loss threads processor cuda_graphs accumulate compiled checkpoint inference,
                  release deadline devices priority
    [[device]]    name profile | power_w flops_per_s launch_s uncertainty, battery_wh charge
                  reserve charger_w idle_w rest_w asleep_w memory max_parallel
    [[device.charging]]   from to charger_w

Times are durations from now (``2h``) or dates (``2030-05-01T22:00``, in the zone of ``now``, or
local without one).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from joulecast.features.budgets import MAX_COUNT
from joulecast.features.plan.problem import Battery, ChargingWindow, Job, PlanDevice, PlanRequest
from joulecast.system.errors import FileError, InputError
from joulecast.system.files import read_toml, show_value
from joulecast.system.toml_tables import (
    Json,
    Parser,
    list_tables,
    parse_number,
    parse_share_value,
    parse_table,
    parse_text,
    refuse_unknown,
)
from joulecast.system.units import JOULES_PER_WH, parse_bytes, parse_duration, parse_shape

_MOST_CHARACTERS = 200


def read_plan_request(path: str | Path, now: datetime) -> PlanRequest:
    """Read the jobs and devices of a file."""
    data = read_toml(Path(path))
    try:
        return parse_plan_request(data, now)
    except InputError as error:
        raise FileError(f"{path}: {error}") from error


def parse_plan_request(data: Mapping[str, Any], now: datetime) -> PlanRequest:
    """Parse the jobs and devices of a file's content."""
    refuse_unknown("the file", data, ("job", "device"))
    parse_time = partial(_parse_time, now=now)
    jobs = tuple(_parse_job(*row, parse_time) for row in list_tables(data, "job"))
    devices = tuple(_parse_device(*row, parse_time) for row in list_tables(data, "device"))
    return PlanRequest(jobs, devices)


def _parse_job(where: str, row: Json, parse_time: Parser) -> Job:
    times = dict.fromkeys(("release", "deadline"), parse_time)
    values = parse_table(where, row, {**_JOB, **_SETUP, **_OTHER, **times})
    if "net" not in values:
        raise InputError(f"{where}: net is missing: give a family, file.py:make_net or a .json")
    if values.get("inference"):
        for key in ("optimizer", "loss"):
            if key in values:
                raise InputError(f"{where}: {key} is for training: leave it out with inference")
        if "steps" in values and "inferences" in values:
            raise InputError(f"{where}: steps and inferences mean the same: give one of them")
    elif "inferences" in values:
        raise InputError(f"{where}: inferences needs inference = true: give steps to train")
    if "inferences" in values:
        values["steps"] = values.pop("inferences")
    given = tuple(key in values for key in ("steps", "epochs", "samples"))
    if given not in ((True, False, False), (False, True, True)):
        raise InputError(f"{where}: give steps, or epochs and samples")
    phase = {"phase": "inference"} if values.get("inference") else {}
    job = Job(
        setup={**{key: values[key] for key in _SETUP if key in values}, **phase},
        input_shape=values.get("input"),
        checkpoint=values.get("checkpoint", False),
        release_s=max(0.0, values.get("release", 0.0)),
        deadline_s=values.get("deadline", math.inf),
        **{key: values[key] for key in _JOB if key in values},
    )
    if job.deadline_s <= job.release_s:
        raise InputError(f"{where}: deadline is before the job may start: give a later one")
    return job


def _parse_device(where: str, row: Json, parse_time: Parser) -> PlanDevice:
    values = parse_table(where, row, {**_DEVICE, **_BATTERY})
    is_stated = "power_w" in values
    if is_stated != ("flops_per_s" in values) or (is_stated and "profile" in values):
        raise InputError(f"{where}: give profile, or power_w and flops_per_s")
    if values.get("flops_per_s") == 0:
        raise InputError(f"{where}: flops_per_s is 0: give more")
    if "launch_s" in values and not is_stated:
        raise InputError(f"{where}: launch_s needs flops_per_s: a profile knows its own")
    renamed = {_FIELDS.get(key, key): values[key] for key in _DEVICE if key in values}
    try:
        return PlanDevice(battery=_parse_battery(where, values, parse_time), **renamed)
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith("[[") else f"{where}: {text}") from error


def _parse_battery(where: str, values: Json, parse_time: Parser) -> Battery | None:
    if "battery_wh" not in values:
        for key in _BATTERY:
            if key in values:
                raise InputError(f"{where}: {key} needs battery_wh: give the battery's capacity")
        return None
    charger_w, tables = values.get("charger_w"), values.get("charging", [])
    if charger_w is not None and not tables:
        raise InputError(f"{where}: charger_w needs [[device.charging]]: give its from and to")
    parsers = {"from": parse_time, "to": parse_time, "charger_w": parse_number}
    windows = []
    for number, table in enumerate(tables, start=1):
        what = f"{where}, charging {number}"
        if not isinstance(table, dict):
            raise InputError(f"{what} is {show_value(table)}: give a table with from and to")
        row = {"charger_w": charger_w, **parse_table(what, table, parsers)}
        for key in parsers:
            if row.get(key) is None:
                raise InputError(f"{what}: {key} is missing")
        # A window that has already begun continues from now.
        windows.append(ChargingWindow(max(0.0, row["from"]), row["to"], row["charger_w"]))
    windows.sort(key=lambda window: window.start_s)
    full_j = values["battery_wh"] * JOULES_PER_WH
    charge_j, reserve_j = full_j * values.get("charge", 1.0), full_j * values.get("reserve", 0.0)
    return Battery(full_j, charge_j, reserve_j, tuple(windows))


def _parse_time(value: Any, now: datetime) -> float:
    """Return the seconds from now of a duration or a date.

    Without time zones both are local times, whose offset may change between them.
    """
    if not isinstance(value, (str, datetime)):
        raise InputError("give a duration like 2h in quotes, or a time like 2030-05-01T22:00")
    try:
        date = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return parse_duration(str(value))
    if date.tzinfo is None:
        date = date.replace(tzinfo=now.tzinfo) if now.tzinfo else date.astimezone()
    return (date - (now if now.tzinfo else now.astimezone())).total_seconds()


def _parse_list(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise InputError('give a list like ["phone", "laptop"]')
    return tuple(map(parse_text, value))


def _parse_tables(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InputError("give [[device.charging]] tables with from and to")
    return value


def _parse_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
        raise InputError(f"give a whole number from 1 to {MAX_COUNT:,}")
    return value


def _parse_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError("give true or false")
    return value


def _parse_input(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (str, list)) or len(value) > _MOST_CHARACTERS:
        raise InputError("give the sizes of one sample, like 3x96x96")
    return parse_shape("x".join(map(str, value)) if isinstance(value, list) else value)


_JOB: dict[str, Parser] = {
    "name": parse_text,
    "net": parse_text,
    "devices": _parse_list,
    **dict.fromkeys(("steps", "epochs", "samples", "priority"), _parse_count),
}
_SETUP: dict[str, Parser] = {
    **dict.fromkeys(("batch", "threads", "accumulate"), _parse_count),
    **dict.fromkeys(("precision", "optimizer", "loss", "processor"), parse_text),
    **dict.fromkeys(("cuda_graphs", "compiled"), _parse_flag),
}
_OTHER: dict[str, Parser] = {
    "input": _parse_input,
    **dict.fromkeys(("inference", "checkpoint"), _parse_flag),
    "inferences": _parse_count,
}
_NUMBERS = ("power_w", "flops_per_s", "launch_s", "idle_w", "rest_w", "asleep_w")
_DEVICE: dict[str, Parser] = {
    **dict.fromkeys(("name", "profile"), parse_text),
    **dict.fromkeys(_NUMBERS, parse_number),
    "memory": lambda value: parse_bytes(parse_text(value)),
    "uncertainty": parse_share_value,
    "max_parallel": _parse_count,
}
_FIELDS = {"memory": "memory_bytes", "uncertainty": "uncertainty_share"}
_BATTERY: dict[str, Parser] = {
    **dict.fromkeys(("charge", "reserve"), parse_share_value),
    **dict.fromkeys(("battery_wh", "charger_w"), parse_number),
    "charging": _parse_tables,
}
