"""Read networks of ours with their measured joules on an H200.

benchmarks/anywhere    networks that people train, as they were read
benchmarks/accuracy    random members of families in ten settings
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from joulecast.features.nets import resolve_name
from joulecast.records import Network, Observation, Setup

BENCHMARKS = Path(__file__).parents[1]
FULL_POWER_W = 350.0
"""Networks that draw at least this much fill the card; the others wait for the host."""


@dataclass(frozen=True)
class MeasuredStep:
    """A network and the measured energy and duration of a step.

    Attributes:
        test: The benchmark that measured it.
    """

    test: str
    name: str
    network: Network
    setup: Setup
    energy_j: float
    duration_s: float

    @property
    def fills_card(self) -> bool:
        """Whether the device rather than the host bounds the step."""
        return self.energy_j / self.duration_s >= FULL_POWER_W


def read_steps() -> list[MeasuredStep]:
    """Return all development networks whose joules were measured."""
    folders = ("results", "results-second", "results-third")
    return [*_read_anywhere(folders), *_read_families()]


def read_fresh_steps() -> list[MeasuredStep]:
    """Return the networks that were measured after the model was final."""
    return list(_read_anywhere(("results-fourth",)))


def _read_anywhere(folders: Sequence[str]) -> Iterator[MeasuredStep]:
    for folder in folders:
        path = BENCHMARKS / "anywhere" / folder
        results: dict[str, Any] = json.loads((path / "results.json").read_text())
        networks = json.loads(gzip.decompress((path / "networks.json.gz").read_bytes()))
        for name, stored in networks.items():
            truth = results[name].get("truth", {})
            if "energy_j" in truth:
                network = Network.from_dict(stored["network"])
                setup = Setup.from_dict(stored["setup"])
                values = truth["energy_j"], truth["duration_s"]
                yield MeasuredStep("anywhere", name, network, setup, *values)


def _read_families() -> Iterator[MeasuredStep]:
    settings = {one.name: one for one in _load_settings().SETTINGS}
    path = BENCHMARKS / "accuracy" / "results" / "nets.json"
    for row in json.loads(path.read_text())["nets"]:
        if (setting := settings.get(row["setting"])) is not None:
            network = resolve_name(row["name"], input_shape=setting.input_shape).network
            values = row["measured_j"], row["measured_s"]
            yield MeasuredStep(setting.name, row["name"], network, setting.setup, *values)


def _load_settings() -> ModuleType:
    """Load the settings of benchmarks/accuracy, whose folder has other modules of our names."""
    path = BENCHMARKS / "accuracy" / "settings.py"
    spec = importlib.util.spec_from_file_location("accuracy_settings", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while they are made.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def read_atlas(seconds: float) -> list[Observation]:
    """Return what an atlas campaign observes in its first seconds of device time."""
    path = BENCHMARKS / "atlas" / "results" / "observations.json.gz"
    rows = json.loads(gzip.decompress(path.read_bytes()))
    found = []
    for one in sorted(map(Observation.from_dict, rows), key=lambda row: row.taken_at_s):
        seconds -= one.cost_s
        if seconds < 0:
            break
        found.append(one)
    return found


def read_anchors(name: str) -> list[Observation]:
    """Return the anchors of one H200, as ``measure_anchors.py`` wrote them."""
    path = Path(__file__).parent / "results" / name
    return [Observation.from_dict(json.loads(line)) for line in path.read_text().splitlines()]
