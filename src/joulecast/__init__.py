"""Estimate the energy of training a neural network on your device, before you run it.

    import joulecast

    joulecast.profile("cnn5", on="cpu", seconds=120)           # once: profile the device
    estimate = joulecast.estimate("cnn5:8,16,32,64")           # then estimate any net
    print(estimate.energy_j, estimate.interval_j, estimate.provenance)

A net is a name (a family, ``file.py:make_net``, ``package.module:make_net``, a ``network.json``), a
Network, or a PyTorch module with example inputs. A ``Setup`` or its fields (``batch=128,
precision="tf32"``) say how it is trained; by default with the net's own batch, SGD and fp32.
Importing joulecast imports neither PyTorch nor NumPy before they are needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulecast.features.catalogue import list_devices
    from joulecast.features.compare import compare
    from joulecast.features.data.attach import attach_trace
    from joulecast.features.data.export import export_dataset, export_observations
    from joulecast.features.data.import_runs import import_runs, predict_run
    from joulecast.features.device_score import score_phones
    from joulecast.features.estimate import estimate, estimate_run, update
    from joulecast.features.evaluate import evaluate
    from joulecast.features.fleet import estimate_fleet
    from joulecast.features.generate import generate
    from joulecast.features.inspect import inspect
    from joulecast.features.measure import measure
    from joulecast.features.monitor import monitor
    from joulecast.features.plan import plan
    from joulecast.features.profile import profile
    from joulecast.features.profiles import load_profile
    from joulecast.features.prune import load_pruned, prune
    from joulecast.features.records import (
        Estimate,
        JoulecastError,
        Network,
        Observation,
        Profile,
        Setup,
    )
    from joulecast.features.report import report
    from joulecast.features.score import score
    from joulecast.features.search import search

__all__ = [
    "Estimate",
    "JoulecastError",
    "Network",
    "Observation",
    "Profile",
    "Setup",
    "__version__",
    "attach_trace",
    "compare",
    "estimate",
    "estimate_fleet",
    "estimate_run",
    "evaluate",
    "export_dataset",
    "export_observations",
    "generate",
    "import_runs",
    "inspect",
    "list_devices",
    "load_profile",
    "load_pruned",
    "measure",
    "monitor",
    "plan",
    "predict_run",
    "profile",
    "prune",
    "report",
    "score",
    "score_phones",
    "search",
    "update",
]

# Names whose module is not called like them.
_MODULES = {
    "Estimate": "records",
    "JoulecastError": "records",
    "Network": "records",
    "Observation": "records",
    "Profile": "records",
    "Setup": "records",
    "attach_trace": "data.attach",
    "estimate_fleet": "fleet",
    "estimate_run": "estimate",
    "export_dataset": "data.export",
    "export_observations": "data.export",
    "import_runs": "data.import_runs",
    "list_devices": "catalogue",
    "load_profile": "profiles",
    "load_pruned": "prune",
    "predict_run": "data.import_runs",
    "score_phones": "device_score",
    "update": "estimate",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("joulecast")
    if name not in __all__:
        raise AttributeError(f"module 'joulecast' has no attribute {name!r}")
    return getattr(import_module(f"joulecast.features.{_MODULES.get(name, name)}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
