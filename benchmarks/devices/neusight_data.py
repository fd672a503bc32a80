"""Read NeuSight's measurements: kernels, and steps of whole models, as Joulecast's records.

The tables are those of NeuSight (Lee, Phanishayee, Mahajan, ASPLOS 2025; MIT), in one folder:
``matmul_kernels.csv``, ``vector_kernels.csv`` and ``steps.csv``. Any number of GPUs may be in them.

    linear  b m n k   rows of n features to k features, b·m rows, with a bias
    bmm     b m n k   b products of m×n and n×k
    vector  rows columns; ``addu``, ``mulu``, ``divu`` and ``powu`` take a number as their second
            operand, ``add``, ``mul``, ``div`` and ``pow`` a second tensor
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from joulecast.errors import InputError
from joulecast.estimators.additive.layers import SetupLayer, set_up_layer
from joulecast.kinds import make_layer
from joulecast.records import Layer, Network, Setup
from joulecast.variants import Part

INFERENCE, TRAINING = "inf", "train"
PRODUCT_OPS = ("linear", "bmm")
RIVALS = ("neusight", "roofline", "habitat", "li")
"""Methods whose published predictions are in the table of steps."""
NETWORKS = Path(__file__).parent / "model_networks"
KERNEL_SETUP = Setup(batch=1, phase="inference")
"""Kernels were measured forward, in fp32; their rows are all there is of a batch."""

_MS = 1e-3
_MATMUL_COLUMNS = ("b", "m", "n", "k")
_VECTOR_COLUMNS = ("rows", "columns")
_BINARY = ("add", "mul", "div", "pow")
_UNARY = {"addu": "add", "mulu": "mul", "divu": "div", "powu": "pow"}
_FUNCTIONS = ("relu", "gelu", "tanh", "softmax")


@dataclass(frozen=True)
class KernelRow:
    """A kernel and how long it takes on a device.

    Attributes:
        device: The device's name, as its driver reports it.
        op: ``linear``, ``bmm``, or the vector function.
        sizes: b, m, n, k of a product; rows and columns of a vector function.
    """

    device: str
    op: str
    sizes: tuple[int, ...]
    duration_s: float

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product."""
        return len(self.sizes) == len(_MATMUL_COLUMNS)

    @property
    def piece(self) -> SetupLayer:
        """The kernel as the leaf of a network."""
        return make_kernel_piece(self.op, self.sizes)


@dataclass(frozen=True)
class StepRow:
    """A model's step and how long it takes on a device.

    Attributes:
        mode: ``inf``, or ``train``: forward and backward without an update of the weights.
        forward_s: The forward pass; of inference, all of the step.
        rivals_s: Published predictions of other methods, of those that have one.
    """

    device: str
    model: str
    mode: str
    tokens: int
    batch: int
    duration_s: float
    forward_s: float
    backward_s: float
    rivals_s: Mapping[str, float]

    @property
    def network(self) -> Network:
        """The model as Joulecast read it."""
        return load_network(self.model, self.mode, self.tokens)

    @property
    def setup(self) -> Setup:
        """How it ran: gradients are added to those of the step before, and nothing is updated."""
        if self.mode == INFERENCE:
            return Setup(self.batch, phase="inference")
        return Setup(self.batch, phase="train", accumulate=0)


def read_kernels(folder: Path) -> list[KernelRow]:
    """Return all kernels of a folder."""
    tables = {"matmul_kernels.csv": _MATMUL_COLUMNS, "vector_kernels.csv": _VECTOR_COLUMNS}
    return [
        KernelRow(
            row["device"],
            row["op"],
            tuple(int(row[name]) for name in columns),
            float(row["latency_ms"]) * _MS,
        )
        for name, columns in tables.items()
        for row in _read_table(folder / name, ("device", "op", *columns, "latency_ms"))
    ]


def read_steps(folder: Path) -> list[StepRow]:
    """Return all steps of a folder."""
    columns = ("device", "model", "mode", "tokens", "batch", "measured_ms")
    rows = _read_table(folder / "steps.csv", columns)
    return [
        StepRow(
            row["device"],
            row["model"],
            row["mode"],
            int(row["tokens"]),
            int(row["batch"]),
            float(row["measured_ms"]) * _MS,
            float(row["measured_forward_ms"]) * _MS,
            float(row["measured_backward_ms"]) * _MS,
            {name: float(row[f"{name}_ms"]) * _MS for name in RIVALS if row.get(f"{name}_ms")},
        )
        for row in rows
    ]


@lru_cache
def load_network(model: str, mode: str, tokens: int, folder: Path = NETWORKS) -> Network:
    """Return the network of a model that ``read_models.py`` has read.

    Only models whose head depends on the mode have a network of inference.
    """
    names = [f"{model}-{one}-{tokens}.json.gz" for one in (mode, TRAINING)]
    for path in (folder / name for name in names):
        if path.is_file():
            return _read_network(path)
    raise InputError(f"there is no network {names[-1]}: run read_models.py with its models.json")


def list_networks(folder: Path = NETWORKS) -> list[Network]:
    """Return the networks of all models."""
    return [_read_network(path) for path in sorted(folder.glob("*.json.gz"))]


@lru_cache(maxsize=65536)
def make_kernel_piece(op: str, sizes: tuple[int, ...]) -> SetupLayer:
    """Return a kernel as a leaf: the same coordinates as those of a network's operators."""
    piece = set_up_layer(Part("hidden", (_make_kernel_layer(op, sizes),)), KERNEL_SETUP)
    # NeuSight adds two different tensors; Joulecast's isolated layers read one of them twice.
    return replace(piece, alone_bytes=piece.size_bytes)


def _read_network(path: Path) -> Network:
    return Network.from_dict(json.loads(gzip.decompress(path.read_bytes())))


def _make_kernel_layer(op: str, sizes: tuple[int, ...]) -> Layer:
    if op == "linear":
        b, m, n, k = sizes
        return make_layer("linear", lead=(b * m,), cin=n, cout=k, bias=1)
    if op == "bmm":
        b, m, n, k = sizes
        return replace(make_layer("matmul", count=b, m=m, k=n, n=k), reads=(1, 2))
    if op == "ln":
        return make_layer("layer_norm", shape=sizes, dims=1, affine=1, bias=1)
    if op in _BINARY:
        join = "add" if op == "add" else "mul"
        layer = make_layer("elementwise", fn=op, shape=sizes, inputs=2)
        return replace(layer, reads=(1, 2), join=join)
    if op in _UNARY or op in _FUNCTIONS:
        return make_layer("elementwise", fn=_UNARY.get(op, op), shape=sizes)
    known = ", ".join(("linear", "bmm", "ln", *_BINARY, *_UNARY, *_FUNCTIONS))
    raise InputError(f"there is no rule for the kernel {op!r}: known are {known}")


def _read_table(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: give the folder of NeuSight's tables") from None
    missing = [name for name in columns if rows and name not in rows[0]]
    if missing or not rows:
        raise InputError(f"{path} has no {', '.join(missing) or 'rows'}: it is another table")
    return rows
