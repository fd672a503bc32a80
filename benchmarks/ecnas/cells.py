"""Read NAS-Bench-101 cells as Networks and EC-NAS-Bench runs as Observations.

    csv row ──▶ adjacency + ops ──▶ Network (stem, 3 stacks of 3 cells, mean, dense)
                gpu_energy_J, train_time_4ep_s ──▶ Observation (imported)

The rules are those of NAS-Bench-101: a cell's output concatenates the vertices that lead to it,
which share its channels; a vertex adds its inputs; an edge from the cell's input has a 1x1
projection, and is added to the output, never concatenated. Each convolution has no bias and is
followed by a batch norm and a ReLU. The tests compare the trainable parameters with the csv.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from joulecast.kinds import make_layer, make_op, output_shape
from joulecast.records import Device, Execution, Input, Layer, Network, Observation, Setup, Trial

Matrix = tuple[tuple[int, ...], ...]

STEM, STACKS, CELLS, CLASSES = 128, 3, 3, 10
SAMPLE = Input((3, 32, 32))
STEPS = 625
SOURCE = "ec-nas"
# They trained with RMSProp and momentum, which keeps two states per weight, as Adam does.
SETUP = Setup(batch=256, precision="fp32", optimizer="adam")
KERNELS = {"conv1x1-bn-relu": 1, "conv3x3-bn-relu": 3}
TAIL = (make_op("batch_norm"), make_op("elementwise", fn="relu"))


@dataclass(frozen=True)
class Cell:
    """A cell: a graph of vertices in order, from the input to the output."""

    matrix: Matrix
    ops: tuple[str, ...]

    def sources(self, vertex: int) -> list[int]:
        """Return the inner vertices with an edge to a vertex."""
        return [at for at in range(1, vertex) if self.matrix[at][vertex]]

    @property
    def last(self) -> int:
        """Index of the output vertex."""
        return len(self.ops) - 1


@dataclass(frozen=True)
class Run:
    """A published training run.

    Attributes:
        net: Hash of the cell; repeats have the same one.
        total_s: Duration with start-up and evaluation.
        train_s: Duration of its 625 steps.
    """

    net: str
    cell: Cell
    device: str
    params: int
    energy_j: float
    total_s: float
    train_s: float


def read_runs(path: Path) -> list[Run]:
    """Return all runs of a file."""
    with path.open(newline="") as file:
        return [_read_run(row) for row in csv.DictReader(file)]


def _read_run(row: dict[str, str]) -> Run:
    numbers = [int(mark) for mark in row["adjacency"] if mark in "01"]
    size = int(row["n_vertices"])
    matrix = tuple(tuple(numbers[at : at + size]) for at in range(0, size * size, size))
    cell = Cell(matrix, tuple(row["ops"].replace("|", ",").split(",")))
    # One file has a column for the four epochs, the other a list that ends with them.
    train_s = row.get("train_time_4ep_s") or row["train_time_s"].split("|")[-1]
    return Run(
        row["hash"],
        cell,
        row.get("gpu") or row["device"],
        int(row["trainable_params"]),
        float(row["gpu_energy_J"]),
        float(row["total_time_s"]),
        float(train_s),
    )


def observe(run: Run, network: Network) -> Observation:
    """Return a run as an observation: its total energy and the duration of its steps."""
    return Observation(
        Trial(network, SETUP, Execution(steps=STEPS)),
        energy_j=run.energy_j,
        duration_s=run.train_s,
        device=Device(run.device),
        covers="gpu",
        provenance="imported",
        source=SOURCE,
    )


# ---------------------------------------------------------------------------------------------
# Cells as layers


def make_network(cell: Cell, name: str = "") -> Network:
    """Return the whole network around a cell."""
    layers = [replace(_conv(3, STEM, SAMPLE.shape[1:], 3), input_grad=False)]
    for stack in range(STACKS):
        if stack:
            shape = output_shape(layers[-1])
            layers.append(make_layer("pool", fn="max", kernel=(2, 2), shape=shape))
        for _ in range(CELLS):
            layers += _make_cell(cell, output_shape(layers[-1]), STEM * 2**stack)
    shape = output_shape(layers[-1])
    flat = (make_op("flatten"),)
    layers.append(make_layer("pool", flat, fn="adaptive_avg", kernel=(1, 1), shape=shape))
    layers.append(make_layer("linear", cin=shape[0], cout=CLASSES))
    # If channels do not divide evenly, a vertex reads all but one channel of another, which no
    # layer kind expresses.
    uneven = any(_is_uneven(cell, STEM * 2**stack) for stack in range(STACKS))
    return Network(tuple(layers), SAMPLE, buildable=not uneven, name=name)


def _is_uneven(cell: Cell, channels: int) -> bool:
    widths = split_channels(cell, 0, channels)
    inside = range(1, cell.last)
    return any(widths[at] != widths[source] for at in inside for source in cell.sources(at))


def split_channels(cell: Cell, inside: int, outside: int) -> list[int]:
    """Return the channels of every vertex; those that the output concatenates share its own."""
    widths = [inside, *[0] * (cell.last - 1), outside]
    joined = cell.sources(cell.last)
    for place, vertex in enumerate(joined):
        widths[vertex] = outside // len(joined) + (place < outside % len(joined))
    for vertex in range(cell.last - 2, 0, -1):
        if vertex not in joined:
            readers = [at for at in range(vertex, cell.last) if cell.matrix[vertex][at]]
            widths[vertex] = max(widths[at] for at in readers)
    return widths


def _make_cell(cell: Cell, shape: Sequence[int], channels: int) -> list[Layer]:
    """Return the layers of one cell with an input of ``shape``."""
    space = tuple(shape[1:])
    widths = split_channels(cell, shape[0], channels)
    build = _Builder(space)
    for vertex in range(1, cell.last):
        read = [build.places[source] for source in cell.sources(vertex)]
        if cell.matrix[0][vertex]:
            read.append(build.add(_conv(shape[0], widths[vertex], space, 1), [0]))
        at = build.join("add", read, widths[vertex])
        layer = _make_vertex(cell.ops[vertex], widths[vertex], space)
        build.places[vertex] = build.add(layer, [at])
    joined = [build.places[source] for source in cell.sources(cell.last)]
    ends = [build.join("concat", joined, channels)] if joined else []
    if cell.matrix[0][cell.last]:
        ends.append(build.add(_conv(shape[0], channels, space, 1), [0]))
    build.join("add", ends, channels)
    return build.layers


class _Builder:
    """Builds the layers of a cell in call order; place 0 is the cell's input."""

    def __init__(self, space: tuple[int, ...]) -> None:
        self.space = space
        self.layers: list[Layer] = []
        self.places: dict[int, int] = {}

    def add(self, layer: Layer, read: Sequence[int]) -> int:
        """Append a layer that reads others by place, and return its place."""
        self.layers.append(replace(layer, reads=tuple(len(self.layers) + 1 - at for at in read)))
        return len(self.layers)

    def join(self, fn: str, read: Sequence[int], channels: int) -> int:
        """Return one place that combines several."""
        if len(read) == 1:
            return read[0]
        inputs = len(read) if fn == "add" else 1
        layer = make_layer("elementwise", fn=fn, inputs=inputs, shape=(channels, *self.space))
        return self.add(replace(layer, join=fn), read)


def _make_vertex(op: str, channels: int, space: tuple[int, ...]) -> Layer:
    if op in KERNELS:
        return _conv(channels, channels, space, KERNELS[op])
    shape = (channels, *space)
    return make_layer("pool", fn="max", kernel=(3, 3), stride=(1, 1), padding=(1, 1), shape=shape)


def _conv(cin: int, cout: int, space: Sequence[int], kernel: int) -> Layer:
    sizes = {"kernel": kernel, "padding": kernel // 2, "bias": 0}
    return make_layer("conv2d", TAIL, cin=cin, cout=cout, space=tuple(space), **sizes)
