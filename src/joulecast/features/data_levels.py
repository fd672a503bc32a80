"""Export the three levels of DeepEn2023's dataset as tidy CSV, each with a data card.

    kernel        fused kernels that were run alone, with the features of DeepEn2023    inference
    network       whole networks: members of families, and your own modules   training, inference
    application   the six reference applications of ``joulecast score``                 inference

Rows are observations; estimates take no part. Energies and durations are those of one inference or
training step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.errors import InputError
from joulecast.families import is_family
from joulecast.features.data_card import DatasetFacts, order_columns, write_card
from joulecast.features.data_export import write_rows
from joulecast.features.profiles import load_observed_profile
from joulecast.fusion import FusedKernel, find_fusion_table, list_kernels
from joulecast.kinds import network_work
from joulecast.records import OWN_NET, Network, Observation, Profile, Setup, compute_power
from joulecast.units import format_shape

KERNEL, NETWORK, APPLICATION = "kernel", "network", "application"
LEVELS = (KERNEL, NETWORK, APPLICATION)
# A kernel has few operators; larger networks need not be looked at.
_MOST_KERNEL_LAYERS = 16

Row = dict[str, Any]


@dataclass(frozen=True)
class DatasetExport:
    """What was written.

    Attributes:
        file: The CSV file.
        card: The data card beside it.
        rows: Number of observations in it.
        left_out: Number of observations of this level without an energy.
    """

    file: str
    card: str
    level: str
    rows: int
    left_out: int

    def to_dict(self) -> Row:
        """Return the result as JSON values."""
        return {
            "file": self.file,
            "card": self.card,
            "level": self.level,
            "observations": self.rows,
            "left_out": self.left_out,
        }


def export_dataset(
    device: str,
    file: str | os.PathLike[str],
    level: str,
    *,
    licence: str = "",
    store: str | None = None,
) -> DatasetExport:
    """Write the observations of a device at one level as CSV, with a data card in Markdown.

    Args:
        device: A device with a profile.
        file: The CSV file, which is replaced; the card has the same name and ends in ``.md``.
        level: ``kernel``, ``network`` or ``application``.
        licence: What others may do with the data, for the card.
        store: Path or URL of the store, if not the usual one.

    Raises:
        InputError: There is nothing to export at this level.
        FileError: A file cannot be written.
    """
    if level not in LEVELS:
        raise InputError(f"level is {level!r}: choose from {', '.join(LEVELS)}")
    path = Path(file)
    card = path.with_suffix(".md")
    if card == path:
        raise InputError(f"{path} is the name of the data card: give a file that ends in .csv")
    profile = load_observed_profile(device, store=store)
    chosen = _SELECTIONS[level](profile)
    rows = [row for one, row in chosen if one.energy_j is not None and one.duration_s]
    if not rows:
        raise InputError(f"{profile.device.name} has no energies at this level: {_HINTS[level]}")
    columns = order_columns({name for row in rows for name in row})
    write_rows(path, columns, rows)
    write_card(card, DatasetFacts(path.name, level, licence, columns, rows, profile))
    return DatasetExport(str(path), str(card), level, len(rows), len(chosen) - len(rows))


def _select_kernels(profile: Profile) -> list[tuple[Observation, Row]]:
    """Return observations of single kernels, whether of a campaign for kernels or not."""
    found: list[tuple[Observation, Row]] = []
    known: dict[tuple[Network, Setup], FusedKernel | None] = {}
    for one in profile.observations:
        network, setup = one.trial.network, one.trial.setup
        if setup.phase != "inference" or not 0 < len(network.layers) <= _MOST_KERNEL_LAYERS:
            continue
        key = (network, setup)
        if key not in known:
            known[key] = _find_kernel(network, setup, profile.runtime)
        kernel = known[key]
        if kernel is not None:
            found.append((one, _describe_kernel(one, kernel)))
    return found


def _find_kernel(network: Network, setup: Setup, runtime: str) -> FusedKernel | None:
    """Return the kernel that a network consists of; None if it has several or none."""
    kernels = list_kernels(network, setup, find_fusion_table(runtime, setup))
    return kernels[0] if len(kernels) == 1 and kernels[0].count == 1 else None


def _describe_kernel(one: Observation, kernel: FusedKernel) -> Row:
    features = {name: value for name, value in kernel.features.items() if name != "batch"}
    how = {"copies": one.trial.execution.copies, "mode": one.trial.mode}
    return {"kernel": kernel.kind, **features, **_describe(one), **how}


def _select_networks(profile: Profile) -> list[tuple[Observation, Row]]:
    return [
        (one, {**_describe_network(one), **_describe(one)})
        for one in profile.observations
        if one.trial.execution.is_user_step
        and one.trial.network.layers
        and (is_family(one.trial.network.name) or one.source == OWN_NET)
    ]


def _select_applications(profile: Profile) -> list[tuple[Observation, Row]]:
    from joulecast.features.reference_applications import (
        build_reference_application,
        list_reference_applications,
    )

    names = {build_reference_application(one): one for one in list_reference_applications()}
    return [
        (one, {"application": name, **_describe_network(one), **_describe(one)})
        for one in profile.observations
        if one.trial.setup.phase == "inference"
        and one.trial.execution.is_user_step
        and (name := names.get(one.trial.network)) is not None
    ]


def _describe_network(one: Observation) -> Row:
    network = one.trial.network
    work = network_work(network, one.trial.setup)
    family = network.name.partition(":")[0] if is_family(network.name) else ""
    return {
        "net": network.name,
        "family": family,
        "input": format_shape(network.input.shape),
        "layers": len(network.layers),
        "params": work.params,
        "FLOPs": work.total.flops,
    }


def _describe(one: Observation) -> Row:
    """Return the columns of every level: the setup, one inference or step, and its origin."""
    setup, execution = one.trial.setup, one.trial.execution
    count = execution.steps * execution.copies
    return {
        "phase": setup.phase,
        "batch": setup.batch,
        "precision": setup.precision,
        "optimizer": setup.optimizer if setup.phase == "train" else "",
        "processor": setup.processor,
        "threads": setup.threads,
        "steps": 1,
        "energy_j": _divide(one.energy_j, count),
        "energy_sd_j": _divide(one.energy_sd_j, count),
        "duration_s": _divide(one.duration_s, count),
        "duration_sd_s": _divide(one.duration_sd_s, count),
        "mean_power_w": compute_power(one.energy_j, one.duration_s),
        "rounds": one.count,
        "device": one.device.name,
        "power_mode": one.device.power_mode,
        "runtime": one.runtime,
        "meter": one.meter,
        "covers": one.covers,
        "provenance": one.provenance,
        "taken_at_s": one.taken_at_s,
        "run": one.run,
    }


def _divide(value: float | None, count: int) -> float | None:
    return None if value is None else value / count


_SELECTIONS: dict[str, Callable[[Profile], list[tuple[Observation, Row]]]] = {
    KERNEL: _select_kernels,
    NETWORK: _select_networks,
    APPLICATION: _select_applications,
}
_HINTS = {
    KERNEL: "measure kernels with `joulecast profile NET --inference --estimator kernel-gp`",
    NETWORK: "measure networks with `joulecast measure FAMILY --inference`",
    APPLICATION: "measure the applications with `joulecast score`",
}
