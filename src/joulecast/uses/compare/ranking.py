"""Asking and ranking: one question a device, places by joules of a sample, chances between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from joulecast.errors import InputError, JoulecastError
from joulecast.estimators import Estimates, open_profile
from joulecast.fronts import find_front
from joulecast.records import Estimate, Network, Profile, Setup
from joulecast.units import format_bytes, format_share
from joulecast.uses.compare.comparison import Comparison, ComparisonRow

DISTINGUISHABLE_PROBABILITY = 0.9
"""Below this chance two combinations cannot be told apart."""
_MUCH_GUESSED = 0.5
# A row, the answers of its device, and its place there.
Placed = tuple[ComparisonRow, Estimates, int]


def compare(
    network: Network,
    profiles: Mapping[str, Profile | str],
    setups: Sequence[Setup],
    estimator: str = "additive",
    level: float = 0.95,
) -> Comparison:
    """Rank devices and setups by joules of a sample.

    Args:
        network: The net.
        profiles: What each device is called → its profile, or why there is none.
        setups: How the net may be trained.
        estimator: Which method answers.
        level: How probable each interval shall be.

    Raises:
        InputError: There is no device, or no setup.
    """
    setups = tuple(dict.fromkeys(setups))
    if not (profiles and setups):
        raise InputError("nothing to compare: give at least one device and one setup")
    left_out: list[ComparisonRow] = []
    groups: dict[str, list[Placed]] = {}
    for asked, profile in profiles.items():
        if isinstance(profile, str):
            left_out += [ComparisonRow(asked, setup, why=profile) for setup in setups]
            continue
        rows, answers = _ask(asked, profile, network, setups, estimator, level)
        left_out += [row for row in rows if row.why]
        group = groups.setdefault(profile.covers, [])
        if answers is not None:
            group += [(row, answers, at) for at, row in enumerate(rows) if not row.why]
    ranked = [row for group in groups.values() for row in _rank(group)]
    return Comparison(network.name, estimator, level, (*ranked, *left_out))


def _ask(
    asked: str,
    profile: Profile,
    network: Network,
    setups: Sequence[Setup],
    estimator: str,
    level: float,
) -> tuple[list[ComparisonRow], Estimates | None]:
    """All setups on one device, in one question."""
    rows = [ComparisonRow(asked, setup, profile.device.name, profile.covers) for setup in setups]
    try:
        pairs = [(network, setup) for setup in setups]
        answers = open_profile(profile, estimator).ask(pairs, level, joint=True)
    except JoulecastError as error:
        return [replace(row, why=str(error)) for row in rows], None
    return [
        replace(row, estimate=found, why=_refuse(found, profile, row.setup))
        for row, found in zip(rows, answers.each, strict=True)
    ], answers


def _refuse(found: Estimate, profile: Profile, setup: Setup) -> str:
    """Why an estimate is not to be ranked with others; empty where it may be."""
    memory_bytes = profile.device.memory_bytes
    if memory_bytes and found.peak_memory_bytes > memory_bytes:
        needs, has = format_bytes(found.peak_memory_bytes), format_bytes(memory_bytes)
        return f"does not fit: it needs about {needs}, and {profile.device.name} has {has}"
    if found.unseen_share <= _MUCH_GUESSED:
        return ""
    seen = [one.trial.setup for one in profile.observations if one.trial.network.layers]
    for name in ("phase", "precision", "optimizer", "batch"):
        known = dict.fromkeys(str(getattr(one, name)) for one in seen)
        if str(getattr(setup, name)) not in known:
            said = f"{name} {getattr(setup, name)} was never profiled on {profile.device.name}"
            return f"a guess: {said} (only {', '.join(known)})"
    share = format_share(found.unseen_share)
    return f"a guess: layers with {share} of the energy were never profiled so on this device"


def _rank(group: Sequence[Placed]) -> list[ComparisonRow]:
    """Rows by joules of a sample, with how surely each is cheaper than the next."""
    order = sorted(group, key=lambda item: (item[0].energy_j, item[0].duration_s))
    on = find_front([(row.duration_s, row.energy_j) for row, _, _ in order])
    ranked = []
    for place, (row, _, _) in enumerate(order):
        after = order[place + 1] if place + 1 < len(order) else None
        chance = None if after is None else _weigh(order[place], after)
        ranked.append(replace(row, rank=place + 1, on_front=on[place], chance_next=chance))
    return ranked


def _weigh(one: Placed, two: Placed) -> float:
    """Probability that one combination is really cheaper than another."""
    (row, answers, at), (other, others, there) = one, two
    # Joules of a sample are those of a step over its batch.
    return answers.chance_below(at, others, there, row.setup.batch / other.setup.batch)
