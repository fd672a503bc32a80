"""Keep what one run of the benchmark finds: results, the networks as read, and probes.

    results.json       {network: {"setup": ..., "truth": ..., "shipped": ..., "rivals": ..., ...}}
    networks.json.gz   {network: {"network": ..., "setup": ...}}
    probes.json.gz     {network: [observation, ...]}

Each file is replaced as a whole after every stage, so an interrupted run resumes.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulecast.records import Network, Observation, Setup

Json = dict[str, Any]

RESULTS, NETWORKS, PROBES = "results.json", "networks.json.gz", "probes.json.gz"


@dataclass
class RunFolder:
    """The files of a run, as dictionaries by network name."""

    path: Path
    results: dict[str, Json] = field(default_factory=dict)
    networks: dict[str, Json] = field(default_factory=dict)
    probes: dict[str, list[Json]] = field(default_factory=dict)

    def add_stage(self, name: str, stage: str, found: Json) -> None:
        """Store the result of a stage of a network."""
        self.results.setdefault(name, {})[stage] = found
        _write(self.path / RESULTS, self.results)

    def add_network(self, name: str, network: Network, setup: Setup) -> None:
        """Store a network as it was read."""
        self.networks[name] = {"network": network.to_dict(), "setup": setup.to_dict()}
        _write(self.path / NETWORKS, self.networks)

    def add_probes(self, name: str, observations: list[Observation]) -> None:
        """Store what the probes of a network observed."""
        self.probes[name] = [one.to_dict() for one in observations]
        _write(self.path / PROBES, self.probes)

    def load_network(self, name: str) -> tuple[Network, Setup]:
        """Return a stored network and its setup."""
        stored = self.networks[name]
        return Network.from_dict(stored["network"]), Setup.from_dict(stored["setup"])

    def load_probes(self, name: str) -> tuple[Observation, ...]:
        """Return the stored observations of a network's probes."""
        return tuple(Observation.from_dict(one) for one in self.probes[name])


def open_folder(path: Path) -> RunFolder:
    """Open the folder of a run, new or not."""
    path.mkdir(parents=True, exist_ok=True)
    return RunFolder(path, *(_read(path / name) for name in (RESULTS, NETWORKS, PROBES)))


def _read(path: Path) -> Any:
    if not path.exists():
        return {}
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def _write(path: Path, data: Any) -> None:
    if path.suffix == ".gz":
        text = json.dumps(data, separators=(",", ":")).encode()
        content = gzip.compress(text, mtime=0)
    else:
        content = (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)
