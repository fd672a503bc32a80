"""Read what was published or measured on GPUs, and collect what the shared model is fitted to.

    NeuSight's kernels; its steps of GPUs that have none ─┐
    published steps of image models and of BERT ──────────┴─▶ durations of MeasuredDevices
    layers of the shipped H200 profile ───────────────────▶ powers of a MeasuredDevice

NeuSight's tables (Lee, Phanishayee, Mahajan, ASPLOS 2025; MIT) are ``matmul_kernels.csv``,
``vector_kernels.csv`` and ``steps.csv`` in one folder, with any number of GPUs:

    linear  b m n k   rows of n features to k features, b·m rows, with a bias
    bmm     b m n k   b products of m×n and n×k
    vector  rows columns; ``addu``, ``mulu``, ``divu`` and ``powu`` take a number as their second
            operand, ``add``, ``mul``, ``div`` and ``pow`` a second tensor

Published steps are those of timm and Lambda in ``published_steps.csv``. Networks of both are in
``networks.json.xz``, as Joulecast read the models.

Durations of the H200 are not shared. Most of its layers are small for it, and it is slow at them
for its peaks: with 900 of them in the fit, ResNets on other cards were predicted to take up to 2.5
times as long as they do, and the H200 itself has a profile of its own.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.spatial import cKDTree

from benchmarks.common import read_json
from joulecast.devices.data_sheets import find_data_sheet
from joulecast.estimators.additive.fit import MeasuredDevice
from joulecast.estimators.additive.layers import (
    SetupLayer,
    count_layers,
    list_operators,
    set_up_layer,
    split_layers,
)
from joulecast.estimators.additive.observations import DecomposedObservation, decompose_observations
from joulecast.operators import make_layer
from joulecast.records import Layer, Network, Setup
from joulecast.store.files import read_profile
from joulecast.store.profiles import SHIPPED
from joulecast.system.errors import InputError
from joulecast.variants import REPEATED, Block, make_isolated_network, split_network

HERE = Path(__file__).parent
INFERENCE, TRAINING = "inf", "train"
PRODUCT_OPS = ("linear", "bmm")
RIVALS = ("neusight", "roofline", "habitat", "li")
"""Methods whose published predictions are in NeuSight's table of steps."""
KERNEL_SETUP = Setup(batch=1, phase="inference")
"""Kernels were measured forward, in fp32; their rows are all there is of a batch."""
H200 = "nvidia-h200"
H200_LAYERS = 900
"""Layers of the H200 that powers are fitted to: a third of all gives the same errors."""
PUBLISHED_STEPS = 24
"""Steps of each published table and device that enter: networks have many different layers."""
PRODUCTS, VECTORS = 100, 15
"""Kernels of each function and device that the model is fitted to: a Gaussian process of 31,000
rows would take days, and neighbours say the same."""
_MS = 1e-3
# The mean of the fastest five of 25 runs.
_KERNEL_SD_SHARE = 0.01
# NeuSight's steps were timed with memory allocations, published ones with kernels that cuDNN had
# chosen by trial.
_STEP_SD_SHARE = 0.08
_BATCHES = (1, 2, 4, 8, 16)
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
    def counts(self) -> Mapping[SetupLayer, float]:
        """The kernel as the leaf of a network, once."""
        return {make_kernel_piece(self.op, self.sizes): 1.0}


@dataclass(frozen=True)
class StepRow:
    """A model's step and how long it takes on a device.

    Attributes:
        source: Published table that it is from; empty for NeuSight's.
        mode: ``inf``, or ``train``: forward and backward; published ones with an update.
        size: Tokens of a sequence, or height and width of images.
        rivals_s: Published predictions of other methods, of those that have one.
    """

    source: str
    device: str
    model: str
    mode: str
    size: int
    batch: int
    precision: str
    duration_s: float
    rivals_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def network(self) -> Network:
        """The model as Joulecast read it."""
        return load_network(
            "published" if self.source else "neusight", self.model, self.mode, self.size
        )

    @property
    def setup(self) -> Setup:
        """How it ran: NeuSight adds gradients to those of the step before, and updates nothing."""
        if self.mode == INFERENCE:
            return Setup(self.batch, phase="inference", precision=self.precision)
        if not self.source:
            return Setup(self.batch, phase="train", accumulate=0)
        optimizer = "adamw" if self.model.startswith("bert") else "sgd"
        return Setup(self.batch, precision=self.precision, optimizer=optimizer)

    @property
    def counts(self) -> Mapping[SetupLayer, float]:
        """The pieces of the step with how often it runs each."""
        return count_layers(split_layers(self.network, self.setup))


Row = KernelRow | StepRow


def read_kernels(folder: Path) -> list[KernelRow]:
    """Return all kernels of a folder of NeuSight's tables."""
    tables = {"matmul_kernels.csv": ("b", "m", "n", "k"), "vector_kernels.csv": ("rows", "columns")}
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
    """Return all steps of a folder of NeuSight's tables."""
    return _read_steps(folder / "steps.csv", "tokens", "measured_ms")


def read_published_steps(without: str | None = None) -> list[StepRow]:
    """Return all published steps, without those of a device by any of its names."""
    left_out = find_data_sheet(without).name if without else ""
    rows = _read_steps(HERE / "published_steps.csv", "size", "step_ms")
    return [row for row in rows if find_data_sheet(row.device).name != left_out]


def _read_steps(path: Path, size: str, duration_ms: str) -> list[StepRow]:
    """Return the steps of a table with these columns; only published ones say where they are from.

    Only NeuSight's table has predictions of other methods; all of its steps are in fp32.
    """
    columns = ("device", "model", "mode", size, "batch", duration_ms)
    return [
        StepRow(
            row.get("source", ""),
            row["device"],
            row["model"],
            row["mode"],
            int(row[size]),
            int(row["batch"]),
            row.get("precision", "fp32"),
            float(row[duration_ms]) * _MS,
            {name: float(row[f"{name}_ms"]) * _MS for name in RIVALS if row.get(f"{name}_ms")},
        )
        for row in _read_table(path, columns)
    ]


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


@lru_cache
def load_network(source: str, model: str, mode: str, size: int) -> Network:
    """Return the network of a model; few have one of their own for inference."""
    networks = _read_networks()[source]
    for name in (f"{model}-{mode}-{size}", f"{model}-{TRAINING}-{size}"):
        if name in networks:
            return Network.from_dict(networks[name])
    raise InputError(f"there is no network of {model} at {size} in networks.json.xz")


@lru_cache
def _read_networks() -> Mapping[str, Mapping[str, dict[str, object]]]:
    networks: Mapping[str, Mapping[str, dict[str, object]]] = read_json(HERE / "networks.json.xz")
    return networks


def list_models() -> list[Network]:
    """Return NeuSight's models."""
    return [Network.from_dict(one) for _, one in sorted(_read_networks()["neusight"].items())]


@lru_cache(maxsize=65536)
def make_kernel_piece(op: str, sizes: tuple[int, ...]) -> SetupLayer:
    """Return a kernel as a leaf: the same coordinates as those of a network's operators."""
    piece = set_up_layer(Block("hidden", (_make_kernel_layer(op, sizes),)), KERNEL_SETUP)
    # NeuSight adds two different tensors; Joulecast's isolated layers read one of them twice.
    return replace(piece, alone_bytes=piece.size_bytes)


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


# ---------------------------------------------------------------------------------------------
# What the shared model is fitted to


def collect_devices(kernels: Iterable[KernelRow], steps: Iterable[StepRow]) -> list[MeasuredDevice]:
    """Return the GPUs of the tables, with their durations.

    Args:
        kernels: Kernels of the GPUs to use.
        steps: Steps of the GPUs to use; NeuSight's only of GPUs without kernels, since they contain
            allocations of memory.
    """
    rows: dict[str, list[Row]] = defaultdict(list)
    for kernel in choose_kernels(kernels):
        rows[kernel.device].append(kernel)
    has_kernels = set(rows)
    for step in thin_steps(steps):
        if step.source or step.device not in has_kernels:
            rows[step.device].append(step)
    return [
        MeasuredDevice(find_data_sheet(name), [observe_row(row) for row in own])
        for name, own in sorted(rows.items())
    ]


def collect_all_devices(folder: Path) -> list[MeasuredDevice]:
    """Return the GPUs of NeuSight's tables and of the published steps."""
    return collect_devices(read_kernels(folder), [*read_steps(folder), *read_published_steps()])


def thin_steps(steps: Iterable[StepRow]) -> list[StepRow]:
    """Return the steps, at most so many published ones of each table and device, evenly spaced."""
    groups: dict[tuple[str, str], list[StepRow]] = defaultdict(list)
    for step in steps:
        groups[step.source, step.device].append(step)
    chosen = []
    for (source, _), own in groups.items():
        chosen += own[:: -(-len(own) // PUBLISHED_STEPS) if source else 1]
    return chosen


def observe_row(row: Row) -> DecomposedObservation:
    """Return a kernel or a step as an observation of the device alone."""
    is_kernel = isinstance(row, KernelRow)
    sd_share = _KERNEL_SD_SHARE if is_kernel else _STEP_SD_SHARE
    return DecomposedObservation(
        counts=row.counts,
        mode="graph",
        energy_j=None,
        energy_relative_var=0.0,
        duration_s=row.duration_s,
        duration_relative_var=sd_share**2,
        issue_s=None,
        is_isolated=is_kernel,
        trial_key="",
        is_imported=True,
    )


def collect_metered(count: int = H200_LAYERS) -> list[MeasuredDevice]:
    """Return the devices whose energies were measured: the H200, with layers of every kind."""
    groups: dict[str, list[DecomposedObservation]] = defaultdict(list)
    profile = read_profile(SHIPPED / f"{H200}.json")
    for one in decompose_observations(profile.observations):
        piece = next(iter(one.counts), None)
        is_timed_alone = one.mode == "graph" and one.duration_s and one.is_isolated
        if is_timed_alone and piece is not None and not piece.is_block:
            groups[piece.label].append(one)
    generator = np.random.default_rng(0)
    roots = sum(math.sqrt(len(own)) for own in groups.values())
    chosen = []
    for _, own in sorted(groups.items()):
        wanted = min(len(own), max(2, round(count * math.sqrt(len(own)) / roots)))
        # Of each kind those with energy first, then at random.
        order = generator.permutation(len(own))
        ranked = sorted(order.tolist(), key=lambda at: own[at].energy_j is None)
        chosen += [own[at] for at in sorted(ranked[:wanted])]
    return [MeasuredDevice(find_data_sheet(H200), chosen)]


def choose_kernels(kernels: Iterable[KernelRow]) -> list[KernelRow]:
    """Return kernels of each device and function that are like operators of transformers.

    Of those that are nearest to some operator, so many are taken at random. Those that are farthest
    from each other would be the extremes, where GPUs differ most: with them steps of a left-out
    V100 were off by 21 to 34 %, with random ones by 18 to 29 %.
    """
    groups: dict[tuple[str, str], list[KernelRow]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.device, kernel.op].append(kernel)
    chosen = []
    for (_, op), group in groups.items():
        tree = cKDTree(np.log(np.array([row.sizes for row in group], float)))
        sizes = sorted(find_operator_sizes()[op if op in PRODUCT_OPS else "vector"])
        near = np.unique(tree.query(np.log(np.array(sizes, float)))[1])
        count = PRODUCTS if op in PRODUCT_OPS else VECTORS
        drawn = np.sort(np.random.default_rng(0).permutation(len(near))[:count])
        chosen += [group[near[number]] for number in drawn]
    return chosen


@lru_cache
def find_operator_sizes() -> Mapping[str, set[tuple[int, ...]]]:
    """Return the sizes that NeuSight's models run products and vector functions at."""
    setups = [Setup(batch, phase="inference") for batch in _BATCHES]
    setups += [Setup(batch, accumulate=0) for batch in _BATCHES]
    found: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for network in list_models():
        for setup in setups:
            for operator, piece in list_step_operators(network, setup):
                products = list(list_products(operator, setup))
                for op, sizes in products:
                    found[op].add(sizes)
                if not products:
                    rows, columns = (round(math.exp(one)) for one in piece.point[:2])
                    found["vector"].add((rows, columns))
    return found


def list_step_operators(network: Network, setup: Setup) -> Iterator[tuple[Layer, SetupLayer]]:
    """Yield the operators of a step as leaves; losses are left out, which take next to no time."""
    for placed in split_layers(network, setup):
        block = placed.placed_block.block
        layers = list(block.layers)
        if block.role == REPEATED:
            inner = split_network(make_isolated_network(block))
            layers = [layer for one in inner for layer in one.block.layers]
        for layer in layers:
            for operator, half in list_operators(layer, False):
                piece = set_up_layer(Block("hidden", (operator,), half), setup)
                if piece.flops or piece.size_bytes:
                    yield operator, piece


def list_products(operator: Layer, setup: Setup) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """Yield the matrix products of an operator, forward and backward, as kernels."""
    sizes, trains = operator.sizes, setup.phase == "train"
    if operator.kind == "linear":
        rows, width, out = setup.batch * math.prod(sizes["lead"]), sizes["cin"], sizes["cout"]
        yield "linear", (1, rows, width, out)
        if trains and operator.input_grad:
            yield "linear", (1, rows, out, width)
        if trains:
            yield "linear", (1, out, rows, width)
    elif operator.kind == "matmul":
        b, m, n, k = setup.batch * sizes["count"], sizes["m"], sizes["k"], sizes["n"]
        yield "bmm", (b, m, n, k)
        if trains:
            yield "bmm", (b, m, k, n)
            yield "bmm", (b, n, m, k)
