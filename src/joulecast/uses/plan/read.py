"""A plan's file: jobs and devices in TOML → an Ask. Whatever is wrong is one line with its place.

    [[job]]       name net steps | epochs samples · batch input precision optimizer loss threads
                  inference · release deadline devices priority
    [[device]]    name profile | power_w flops_per_s doubt · battery_wh charge reserve charger_w
                  idle_w rest_w asleep_w memory at_once
    [[device.charging]]   from to charger_w

Moments are durations from now (``2h``) or times (``2030-05-01T22:00``, in the zone of ``now``, else
in that of this machine's clock).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from joulecast.errors import FileError, InputError
from joulecast.units import JOULES_PER_WH
from joulecast.uses.plan.ask import Ask, Job, Station
from joulecast.uses.plan.problem import Battery, Window
from joulecast.uses.plan.words import (
    Json,
    Reader,
    make_moment_reader,
    read_bytes,
    read_count,
    read_flag,
    read_number,
    read_shape,
    read_share,
    read_tables,
    read_text,
    read_texts,
    read_words,
    refuse_strange,
)

_JOB: dict[str, Reader] = {
    "name": read_text,
    "net": read_text,
    "devices": read_texts,
    **dict.fromkeys(("steps", "epochs", "samples", "priority"), read_count),
}
_SETUP: dict[str, Reader] = {
    **dict.fromkeys(("batch", "threads"), read_count),
    **dict.fromkeys(("precision", "optimizer", "loss"), read_text),
}


def read_ask(path: str | Path, now: datetime) -> Ask:
    """The jobs and devices of a file.

    Raises:
        FileError: It is absent, no TOML, or something in it cannot be.
    """
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"{path} cannot be read ({reason}): give the path of a file") from error
    except ValueError as error:
        raise FileError(f"{path} is no TOML: {str(error).splitlines()[0]}") from error
    try:
        return parse_ask(data, now)
    except InputError as error:
        raise FileError(f"{path}: {error}") from error


def parse_ask(data: Mapping[str, Any], now: datetime) -> Ask:
    """The jobs and devices of a file's content."""
    refuse_strange("the file", data, ("job", "device"))
    jobs = tuple(_read_job(*row, now) for row in _list_tables(data, "job"))
    stations = tuple(_read_station(*row, now) for row in _list_tables(data, "device"))
    for what, rows in (("job", jobs), ("device", stations)):
        names = [row.name for row in rows]
        if twice := {name for name in names if names.count(name) > 1}:
            raise InputError(f"two [[{what}]] are called {twice.pop()!r}: give each its own name")
    return Ask(jobs, stations)


def _list_tables(data: Mapping[str, Any], what: str) -> list[tuple[str, Json]]:
    rows = data.get(what, [])
    if not isinstance(rows, list) or not rows:
        raise InputError(f"there is no [[{what}]]: give at least one, with a name")
    named = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise InputError(f"[[{what}]] number {number} is {row!r}: give a table with a name")
        name = row.get("name")
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"[[{what}]] number {number} has no name: give one in quotes")
        named.append((f"[[{what}]] {name}", row))
    return named


def _read_job(where: str, row: Json, now: datetime) -> Job:
    moment = make_moment_reader(now)
    times: dict[str, Reader] = {"release": moment, "deadline": moment}
    others: dict[str, Reader] = {"input": read_shape, "inference": read_flag}
    found = read_words(where, row, {**_JOB, **times, **_SETUP, **others})
    if "net" not in found:
        raise InputError(f"{where}: net is missing: give a family, file.py:make_net or a .json")
    whole = "epochs" in found and "samples" in found
    if ("steps" in found) == whole or (("epochs" in found) != ("samples" in found)):
        raise InputError(f"{where}: give steps, or epochs and samples")
    phase = {"phase": "inference"} if found.get("inference") else {}
    job = Job(
        setup={**_pick(found, _SETUP), **phase},
        input_shape=found.get("input"),
        release_s=max(0.0, found.get("release", 0.0)),
        deadline_s=found.get("deadline", math.inf),
        **_pick(found, _JOB),
    )
    if job.deadline_s <= job.release_s:
        raise InputError(f"{where}: deadline is over before the job may begin: give a later one")
    return job


def _pick(found: Json, keys: Iterable[str]) -> Json:
    return {key: found[key] for key in keys if key in found}


def _read_station(where: str, row: Json, now: datetime) -> Station:
    words: dict[str, Reader] = {"name": read_text, "profile": read_text, "memory": read_bytes}
    words |= {"doubt": read_share, "at_once": read_count}
    words |= dict.fromkeys(("power_w", "idle_w", "rest_w", "asleep_w", "charger_w"), read_number)
    words |= {
        "flops_per_s": read_number,
        "battery_wh": read_number,
        "charge": read_share,
        "reserve": read_share,
    }
    words |= {"charging": read_tables}
    found = read_words(where, row, words)
    stated = "power_w" in found and "flops_per_s" in found
    if ("power_w" in found) != ("flops_per_s" in found) or (stated and "profile" in found):
        raise InputError(f"{where}: give profile, or power_w and flops_per_s")
    kept = ("name", "profile", "power_w", "flops_per_s", "idle_w", "rest_w", "asleep_w", "at_once")
    try:
        return Station(
            doubt_share=found.get("doubt", Station.doubt_share),
            memory_bytes=found.get("memory"),
            battery=_read_battery(where, found, now),
            **_pick(found, kept),
        )
    except InputError as error:
        raise InputError(
            str(error) if str(error).startswith("[[") else f"{where}: {error}"
        ) from error


def _read_battery(where: str, found: Json, now: datetime) -> Battery | None:
    alone = [key for key in ("charge", "reserve", "charger_w", "charging") if key in found]
    if "battery_wh" not in found:
        if alone:
            raise InputError(f"{where}: {alone[0]} without battery_wh: say what the battery holds")
        return None
    if ("charger_w" in found) and not found.get("charging"):
        raise InputError(f"{where}: charger_w without [[device.charging]]: say from when to when")
    windows = [
        _read_window(f"{where}, charging {number}", window, found.get("charger_w"), now)
        for number, window in enumerate(found.get("charging", ()), start=1)
    ]
    capacity_j = found["battery_wh"] * JOULES_PER_WH
    held = (found.get("charge", 1.0) * capacity_j, found.get("reserve", 0.0) * capacity_j)
    return Battery(capacity_j, *held, tuple(sorted(windows, key=lambda window: window.from_s)))


def _read_window(where: str, row: Any, charger_w: float | None, now: datetime) -> Window:
    moment = make_moment_reader(now)
    if not isinstance(row, dict):
        raise InputError(f"{where} is {row!r}: give a table with from and to")
    found = read_words(where, row, {"from": moment, "to": moment, "charger_w": read_number})
    found.setdefault("charger_w", charger_w)
    for key in ("from", "to", "charger_w"):
        if found.get(key) is None:
            raise InputError(f"{where}: {key} is missing")
    # What has begun already goes on from now.
    return Window(max(0.0, found["from"]), found["to"], found["charger_w"])
