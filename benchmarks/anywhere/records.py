"""Keep what the tests found, and score it.

results/judged.json.xz      {test: {network: {"setup", "truth", "shipped", "probed", ...}}}
results/networks.json.xz    {test: {network: {"network", "setup"}}}, as Joulecast read them
results/probes.json.xz      {test: {network: [observation, ...]}}

error   estimate / truth - 1
z       ln(truth / estimate) / s, with s the standard deviation behind the log-normal interval
width   (upper - lower limit) / estimate
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.common import read_json, write_json
from joulecast.gp.lognormal import interval_log_sd
from joulecast.records import Network, Observation, Setup

Json = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
METHODS = SHIPPED, PROBED, REHEARSED = "shipped", "probed", "rehearsed"
FILLED_POWER_W = 350.0
"""A network fills the card if its training loop draws at least this power."""


@dataclass
class RunFolder:
    """The files of a run, by test and network; each is replaced as a whole after every stage."""

    path: Path
    judged: dict[str, dict[str, Json]] = field(default_factory=dict)
    networks: dict[str, dict[str, Json]] = field(default_factory=dict)
    probes: dict[str, dict[str, list[Json]]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open the folder of a run, new or not."""
        path.mkdir(parents=True, exist_ok=True)
        files = [path / f"{name}.json.xz" for name in ("judged", "networks", "probes")]
        return cls(path, *(read_json(file) if file.exists() else {} for file in files))

    def add(self, kind: str, test: str, name: str, found: Any) -> None:
        """Store what was found of a network; ``kind`` names the file."""
        data: dict[str, Json] = getattr(self, kind)
        data.setdefault(test, {})[name] = found
        write_json(self.path / f"{kind}.json.xz", data)

    def load_network(self, test: str, name: str) -> tuple[Network, Setup]:
        """Return a stored network and its setup."""
        stored = self.networks[test][name]
        return Network.from_dict(stored["network"]), Setup.from_dict(stored["setup"])

    def load_probes(self, test: str, name: str) -> tuple[Observation, ...]:
        """Return the stored observations of a network's probes; nothing without probes."""
        return tuple(map(Observation.from_dict, self.probes.get(test, {}).get(name, ())))


def read_measured(test: str) -> Iterator[tuple[str, Network, Setup, Json]]:
    """Yield the kept networks of a test that were read and measured, with their truth."""
    folder = RunFolder.open(RESULTS)
    for name in folder.networks[test]:
        truth = folder.judged[test][name].get("truth", {})
        if "energy_j" in truth:
            yield name, *folder.load_network(test, name), truth


def find_estimate(found: Json, method: str) -> Json | None:
    """Return the estimate of a method for a network; None if it was not tried."""
    own = found if method in METHODS else found.get("rivals", {})
    estimate: Json | None = own.get(method)
    return estimate


def score_network(found: Json, method: str) -> Json | None:
    """Score one estimate; None if it was not tried, or failed."""
    estimate, truth = find_estimate(found, method), found["truth"]
    if estimate is None or "error" in estimate:
        return None
    energy_j, true_j = estimate["energy_j"], truth["energy_j"]
    low_j, high_j = estimate["interval_j"]
    z = None
    if 0 < energy_j < high_j:
        log_sd = interval_log_sd(energy_j, (low_j, high_j), estimate.get("level", 0.95))
        z = math.log(true_j / energy_j) / log_sd
    duration_s = estimate.get("duration_s")
    return {
        "error_share": energy_j / true_j - 1.0,
        "is_inside": low_j <= true_j <= high_j,
        "z": z,
        "width_share": (high_j - low_j) / energy_j if energy_j > 0 else math.inf,
        "duration_error_share": duration_s / truth["duration_s"] - 1.0 if duration_s else None,
    }


def make_groups(results: dict[str, Json]) -> dict[str, list[str]]:
    """Return the names of the networks in each group that has any."""
    rules: dict[str, Callable[[Json], bool]] = {
        "all": lambda found: True,
        "fills the card": lambda found: found["truth"]["power_w"] >= FILLED_POWER_W,
        "does not fill it": lambda found: found["truth"]["power_w"] < FILLED_POWER_W,
        "bf16": lambda found: found["setup"]["precision"] == "bf16",
        "tf32 and fp32": lambda found: found["setup"]["precision"] != "bf16",
    }
    groups = {
        group: [name for name, found in results.items() if rule(found)]
        for group, rule in rules.items()
    }
    for name, found in results.items():
        groups.setdefault(found["about"]["domain"], []).append(name)
    return {group: names for group, names in groups.items() if names}


def score_group(method: str, names: Iterable[str], results: dict[str, Json]) -> Json | None:
    """Score a method on a group; None if it estimated none of its networks."""
    tried = [results[name] for name in names if find_estimate(results[name], method) is not None]
    scores = [score for found in tried if (score := score_network(found, method))]
    if not scores:
        return None
    errors = [100 * one["error_share"] for one in scores]
    sizes, zs = list(map(abs, errors)), [one["z"] for one in scores if one["z"] is not None]
    durations = [one["duration_error_share"] for one in scores]
    known = [abs(one) for one in durations if one is not None]
    return {
        "networks": len(scores),
        "failed": len(tried) - len(scores),
        "mape_percent": mean(sizes),
        "median_percent": median(sizes),
        "worst_percent": max(errors, key=abs),
        "bias_percent": mean(errors),
        "within_percent": 100 * mean(float(one["is_inside"]) for one in scores),
        "rms_z": math.sqrt(mean(z * z for z in zs)) if zs else None,
        "median_width_percent": 100 * median(one["width_share"] for one in scores),
        "duration_mape_percent": 100 * mean(known) if known else None,
    }
