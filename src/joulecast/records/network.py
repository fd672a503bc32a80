"""Describe a network: operators with their sizes, layers, blocks, and how they connect.

Names of layers and networks are labels for people: they take no part in equality.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Annotated, Any

from joulecast.records.codec import (
    ANY_LENGTH,
    ANY_NUMBER,
    ANY_TEXT,
    Choices,
    Count,
    InvalidFieldError,
    Json,
    MaxLength,
    PositiveCount,
    Range,
    Record,
    Share,
    add_codec,
    always_stored,
    check_object,
    omit_default,
    refuse_value,
    stable_hash,
)
from joulecast.system.errors import InputError
from joulecast.system.units import format_share

Size = int | float | str | tuple[int, ...]

JOINS = ("none", "add", "mul", "concat")
MOST_LAYERS = 20_000
"""Layers that a network may have; the deepest known ones have a few thousand."""
MOST_AXES = 16
LARGEST_SIZE = 10**12
"""No device could hold more, and counting them would take forever or overflow."""

WAIT_BINS = 10
"""Parts of a forward or backward pass in which waits are counted."""

# Operators without a cost rule that are named one by one; the rest is only counted.
_MOST_NAMED = 3
_Back = Annotated[int, Range(1, 10**6)]
_Axis = Annotated[int, Range(1, LARGEST_SIZE)]
_Work = Annotated[float, Range(0.0, 1e30)]


class Sizes(Mapping[str, Any]):
    """An immutable, hashable mapping from size names to integers, tuples of them, or strings."""

    __slots__ = ("_hash", "_items")

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        self._items: dict[str, Any] = {name: _normalise(sizes[name]) for name in sorted(sizes)}
        self._hash = hash(tuple(self._items.items()))

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sizes):
            return self._hash == other._hash and self._items == other._items
        return super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self._items.items())

    def to_dict(self) -> Json:
        """Return the sizes as JSON values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self._items.items()}


def decode_sizes(data: Any) -> Sizes:
    """Return the sizes that ``Sizes.to_dict`` wrote; every one is a number, a text or a list."""
    for name, value in check_object(data).items():
        try:
            _check_size(value)
        except InvalidFieldError as error:
            raise error.within(name) from None
    return Sizes(data)


add_codec(Sizes, Sizes.to_dict, decode_sizes)


@dataclass(frozen=True)
class Op(Record):
    """An operator: its kind and its sizes per sample (the batch size belongs to the Setup)."""

    kind: str
    sizes: Sizes = always_stored(default_factory=lambda: Sizes({}))


@dataclass(frozen=True)
class Layer(Op):
    """An operator with parameters and the operators that follow it.

    Attributes:
        tail: Operators applied to the result, in order (norm, activation, pooling, dropout).
        trains: Its weights get a gradient.
        input_grad: Its input gets a gradient; false for first layers and behind frozen ones.
        reads: How many layers back each input comes from; 1 is the previous layer, and a number
            that reaches before the first layer means the network's input.
        join: How several inputs are combined.
        calls: How often one step calls it.
        tied: It shares its weights with an earlier layer, which counts them.
        channels_last: Its first image or volume arrives in channels-last memory format, so it
            runs different kernels. The network's input has the format that its readers expect.
        channels_last_weights: Its weights are in channels-last format too, as in a network that
            was converted as a whole.
        transposed: Positions of the inputs whose axes are not in the order of memory, as after
            ``x.transpose(1, 2)``; they run other kernels, or are copied first. Images in
            channels-last format are not listed.
        recomputed: Its activations are not kept for backward, which runs it forward once more:
            activation checkpointing.
        parts: The layers of a block; empty for a single layer.
    """

    tail: Annotated[tuple[Op, ...], MaxLength(1000)] = omit_default(())
    trains: bool = omit_default(True)
    input_grad: bool = omit_default(True)
    reads: Annotated[tuple[_Back, ...], MaxLength(10_000)] = omit_default((1,))
    join: Annotated[str, Choices(JOINS)] = omit_default("none")
    calls: PositiveCount = omit_default(1)
    tied: bool = omit_default(False)
    channels_last: bool = omit_default(False)
    channels_last_weights: bool = omit_default(False)
    transposed: Annotated[tuple[Count, ...], MaxLength(10_000)] = omit_default(())
    recomputed: bool = omit_default(False)
    parts: Annotated[tuple[Layer, ...], MaxLength(MOST_LAYERS)] = omit_default(())
    name: str = omit_default("", compare=False)


@dataclass(frozen=True)
class Input(Record):
    """The shape of one sample.

    Attributes:
        vocabulary: Number of distinct tokens; 0 for inputs that are not tokens.
        half: It arrives in half precision, as inside a network that trains under autocast.
    """

    shape: Annotated[tuple[_Axis, ...], MaxLength(MOST_AXES)]
    vocabulary: Annotated[int, Range(0, LARGEST_SIZE)] = always_stored(default=0)
    half: bool = omit_default(False)


@dataclass(frozen=True)
class StepTotals(Record):
    """Counts of a whole training step, made independently of the layers.

    Attributes:
        flops: Floating-point operations of matrix products and convolutions in forward and
            backward (two per multiply-add).
        size_bytes: Bytes that the operators of forward and backward read and write.
        unattributed_flops_share: Share of ``flops`` that no layer accounts for; likewise the
            shares of bytes and of the parameters that the step uses.
        overcounted_flops_share: How much the layers count beyond ``flops``, as a share of it.
        between: Function calls that forward makes between layers (views, masks, positions), and
            kernels that find what a mask selects. They cost host time and next to no device time.
        ops_without_rule: Names of operators whose FLOPs are unknown, with how often a step calls
            each.
        uncounted_bytes_share: Share of ``size_bytes`` that those operators move: a guess at how
            much of the step is unknown.
        waits: How often the host waits for a GPU, as for ``x.item()`` or the rows that a mask
            selects: in each tenth of the launches of forward, and then in each of backward. Empty
            if it never does.
        notes: What a reader should know about how the module was read, in sentences.
    """

    flops: _Work
    size_bytes: _Work
    params: Annotated[int, Range(0, 10**15)]
    unattributed_flops_share: Share = 0.0
    unattributed_bytes_share: Share = 0.0
    unattributed_params_share: Share = 0.0
    overcounted_flops_share: _Work = 0.0
    overcounted_bytes_share: _Work = 0.0
    between: Annotated[int, Range(0, 10**6)] = 0
    ops_without_rule: Annotated[tuple[tuple[str, Count], ...], MaxLength(10_000)] = omit_default(())
    uncounted_bytes_share: Share = omit_default(0.0)
    notes: Annotated[tuple[str, ...], MaxLength(1000)] = omit_default(())
    waits: Annotated[tuple[Count, ...], MaxLength(2 * WAIT_BINS)] = omit_default(())

    def __post_init__(self) -> None:
        if len(self.waits) not in (0, 2 * WAIT_BINS):
            raise InputError(f"waits has {len(self.waits)} numbers: give {2 * WAIT_BINS} or none")


@dataclass(frozen=True)
class Network(Record):
    """Layers in call order. The empty network stands for an idle device.

    Attributes:
        groups: Half-open ranges of layers that the network repeats as one module: its blocks.
        buildable: False if the network was read but cannot be rebuilt.
        totals: Independent counts of a whole step, if the network was read from a module.
    """

    layers: Annotated[tuple[Layer, ...], MaxLength(MOST_LAYERS)] = always_stored(default=())
    input: Input = always_stored(default=Input(()))
    groups: Annotated[tuple[tuple[Count, Count], ...], MaxLength(MOST_LAYERS)] = always_stored(
        default=()
    )
    buildable: bool = always_stored(default=True, compare=False)
    name: str = always_stored(default="", compare=False)
    totals: StepTotals | None = field(default=None, compare=False)

    @property
    def wait_count(self) -> int:
        """How often the host waits for a GPU in forward and backward."""
        return sum(self.totals.waits) if self.totals is not None else 0


def name_layout(layer: Layer) -> tuple[str, ...]:
    """Name what is unusual in how a layer's tensors lie in memory; empty for the default format."""
    flags = ("channels_last", "channels_last_weights")
    names = tuple(flag.replace("_", " ") for flag in flags if getattr(layer, flag))
    if not layer.transposed:
        return names
    return *names, "transposed " + " ".join(str(position + 1) for position in layer.transposed)


def fold_blocks(network: Network) -> Network:
    """Return the block view: each repeated group becomes one layer with its parts."""
    stops = dict(network.groups)
    spans = []
    index = 0
    while index < len(network.layers):
        spans.append((index, stops.get(index, index + 1)))
        index = spans[-1][1]
    position = {flat: at for at, span in enumerate(spans) for flat in range(*span)}
    folded = []
    for at, (start, stop) in enumerate(spans):
        layers = network.layers[start:stop]
        layer = _make_block(layers) if start in stops else layers[0]
        sources = [start + i - back for i, part in enumerate(layers) for back in part.reads]
        if start in stops:
            sources = [source for source in dict.fromkeys(sources) if source < start]
        reads = tuple(at - position.get(source, -1) for source in sources)
        folded.append(replace(layer, reads=reads))
    return replace(network, layers=tuple(folded), groups=(), buildable=False)


def group_by_block(blocks: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the half-open ranges of layers of one block and more than one, given each one's block.

    A layer outside of blocks has -1.
    """
    layers: dict[int, list[int]] = {}
    for index, block in enumerate(blocks):
        if block >= 0:
            layers.setdefault(block, []).append(index)
    groups = [(found[0], found[-1] + 1) for _, found in sorted(layers.items())]
    return tuple((start, stop) for start, stop in groups if stop - start > 1)


def find_common_path(names: Sequence[str]) -> str:
    """Return the dotted path that all names begin with, or the first name."""
    steps = zip(*(name.split(".") for name in names), strict=False)
    common = takewhile(lambda parts: len(set(parts)) == 1, steps)
    return ".".join(parts[0] for parts in common) or names[0]


def _make_block(parts: tuple[Layer, ...]) -> Layer:
    structure = [
        [part.kind, [op.kind for op in part.tail], list(part.reads), part.join, *name_layout(part)]
        for part in parts
    ]
    first = parts[0]
    return Layer(
        "block:" + stable_hash(structure)[:8],
        first.sizes,
        trains=any(part.trains for part in parts),
        input_grad=first.input_grad,
        calls=first.calls,
        channels_last=first.channels_last,
        parts=parts,
        name=find_common_path([part.name for part in parts]),
    )


@dataclass(frozen=True)
class EqualBlocks:
    """Blocks of a network that are equal; a block that differs from all others is alone.

    Attributes:
        name: Names of the first and the last one: ``h.0–23``, or ``h.0…22`` with others between.
        starts: Index of each one's first layer.
        layer_count: Number of layers in one of them.
    """

    name: str
    starts: tuple[int, ...]
    layer_count: int

    @property
    def count(self) -> int:
        """Number of equal blocks."""
        return len(self.starts)


def find_equal_blocks(network: Network) -> tuple[EqualBlocks, ...]:
    """Return the blocks of a network, equal ones together, by the first one's position.

    Blocks are equal if their layers and the connections between these are. What a block reads from
    outside may be at any distance.
    """
    positions: dict[tuple[Layer, ...], list[int]] = {}
    groups = sorted(network.groups)
    for position, (start, stop) in enumerate(groups):
        # Everything outside of the block is at the same distance.
        block = tuple(
            replace(layer, reads=tuple(min(back, index + 1) for back in layer.reads))
            for index, layer in enumerate(network.layers[start:stop])
        )
        positions.setdefault(block, []).append(position)
    equal = []
    for block, found in positions.items():
        layers = [network.layers[slice(*groups[at])] for at in (found[0], found[-1])]
        name, last = (find_common_path([one.name or one.kind for one in part]) for part in layers)
        if len(found) > 1:
            is_consecutive = found[-1] - found[0] == len(found) - 1
            path, _, end = last.rpartition(".")
            is_sibling = path == name.rpartition(".")[0]
            name += ("–" if is_consecutive else "…") + (end if is_sibling else last)
        equal.append(EqualBlocks(name, tuple(groups[at][0] for at in found), len(block)))
    return tuple(equal)


def order_operands(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return layers in the same order whose sums and products list the longest branch first.

    What is added or multiplied in which order changes nothing; residual blocks are usually written
    so.
    """
    depths: list[int] = []
    ordered: list[Layer] = []
    for index, layer in enumerate(layers):
        found = [depths[index - back] if 0 < back <= index else 0 for back in layer.reads]
        depths.append(1 + max(found, default=0))
        places = sorted(range(len(found)), key=lambda at: (-found[at], layer.reads[at]))
        if layer.join in ("add", "mul") and places != sorted(places):
            transposed = tuple(at for at, place in enumerate(places) if place in layer.transposed)
            reads = tuple(layer.reads[place] for place in places)
            layer = replace(layer, reads=reads, transposed=transposed)
        ordered.append(layer)
    return tuple(ordered)


def order_branches(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers of a block in canonical order: each after all that it reads.

    Starting from the last layer, what an operand is computed from comes before the next operand.
    Layers that the last one does not depend on keep their places at the end.
    """
    layers = order_operands(layers)
    sequence = _list_dependencies(layers, len(layers) - 1)
    sequence += [index for index in range(len(layers)) if index not in set(sequence)]
    place = {index: at for at, index in enumerate(sequence)}
    if sequence == sorted(sequence):
        return layers
    ordered = []
    for at, index in enumerate(sequence):
        reads = [
            at - place[index - back] if back <= index else at + back - index
            for back in layers[index].reads
        ]
        ordered.append(replace(layers[index], reads=tuple(reads)))
    return tuple(ordered)


def _list_dependencies(layers: Sequence[Layer], last: int) -> list[int]:
    """Return the layers that one depends on, and itself, each after all that it reads."""
    found: list[int] = []
    seen: set[int] = set()
    open_layers = [(last, False)]
    while open_layers:
        index, is_done = open_layers.pop()
        if is_done:
            found.append(index)
        elif index not in seen:
            seen.add(index)
            open_layers.append((index, True))
            sources = [index - back for back in layers[index].reads if back <= index]
            open_layers += [(source, False) for source in reversed(sources)]
    return found


def list_reading_notes(network: Network) -> list[str]:
    """Return notes on how a net was read, and the operators whose cost is not known."""
    totals = network.totals
    if totals is None:
        return []
    notes = list(totals.notes)
    if network.wait_count:
        notes.append(f"On a GPU {describe_waits(network)}")
    ops = sorted(totals.ops_without_rule, key=lambda op: (-op[1], op[0]))
    if not ops:
        return notes
    named = [
        f"{name} ({count} call{'s' if count > 1 else ''})" for name, count in ops[:_MOST_NAMED]
    ]
    if len(ops) > _MOST_NAMED:
        named.append(f"{len(ops) - _MOST_NAMED} more")
    return [
        *notes,
        f"No cost rule for {', '.join(named)}: FLOPs that they compute are missing, in "
        f"{format_share(totals.uncounted_bytes_share)} of the bytes of a step.",
    ]


def describe_waits(network: Network) -> str:
    """Return how often a step waits for its device, as the end of a sentence."""
    count = network.wait_count
    times = f"{count:,} times" if count > 1 else "once"
    return f"the host waits {times} per step for values from the device (`x.item()`, masks)."


def _normalise(value: Any) -> Any:
    """Return one representation for sizes that compare equal (2 and 2.0, 1 and True)."""
    # Nearly all sizes are plain integers, and profiles hold tens of thousands of them.
    if type(value) is int:
        return value
    if isinstance(value, (list, tuple)):
        return tuple([_normalise(one) for one in value])
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


_SIZES = Range(-LARGEST_SIZE, LARGEST_SIZE)


def _check_size(value: Any) -> None:
    """Check the type of a size; ``check_network`` knows what each kind of layer needs."""
    if isinstance(value, list):
        if len(ANY_LENGTH.check_list(value)) > MOST_AXES:
            raise refuse_value(value, f"give a list of at most {MOST_AXES} integers")
        for one in value:
            _SIZES.check_integer(one)
    elif isinstance(value, str):
        ANY_TEXT.check_text(value)
    elif isinstance(value, float):
        ANY_NUMBER.check_number(value)
    elif not isinstance(value, bool):
        _SIZES.check_integer(value)
