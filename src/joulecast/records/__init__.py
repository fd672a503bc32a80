"""Define the frozen records that flow through Joulecast, and their JSON.

    Op ─ Layer ─ Network ┐
                   Setup ├─ Trial ─ Observation ─ Profile ─ Estimate
               Execution ┘

Every record converts to JSON with ``to_dict`` and back with ``from_dict``, exactly: floats keep all
their digits (``codec.py``). Standard library only: the device side carries this package.
"""

from __future__ import annotations

from joulecast.records.blocks import fold_blocks
from joulecast.records.codec import Json, Record, load_record
from joulecast.records.estimate import Estimate, LayerEstimate
from joulecast.records.hashing import stable_hash
from joulecast.records.network import (
    JOINS,
    Input,
    Layer,
    Network,
    Op,
    Size,
    Sizes,
    StepTotals,
    name_layout,
)
from joulecast.records.observation import (
    OWN_NET,
    PROVENANCES,
    Device,
    Observation,
    Profile,
    weakest_provenance,
)
from joulecast.records.trial import (
    LOSSES,
    MODES,
    OPTIMIZERS,
    PHASES,
    PRECISIONS,
    STAGES,
    UPSTREAMS,
    Execution,
    Setup,
    Trial,
)

__all__ = [
    "JOINS",
    "LOSSES",
    "MODES",
    "OPTIMIZERS",
    "OWN_NET",
    "PHASES",
    "PRECISIONS",
    "PROVENANCES",
    "STAGES",
    "UPSTREAMS",
    "Device",
    "Estimate",
    "Execution",
    "Input",
    "Json",
    "Layer",
    "LayerEstimate",
    "Network",
    "Observation",
    "Op",
    "Profile",
    "Record",
    "Setup",
    "Size",
    "Sizes",
    "StepTotals",
    "Trial",
    "fold_blocks",
    "load_record",
    "name_layout",
    "stable_hash",
    "weakest_provenance",
]
