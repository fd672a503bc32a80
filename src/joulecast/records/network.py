"""Describe a network: operators with their sizes, layers, and how they connect.

Names of layers and networks are labels for people: they take no part in equality.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from joulecast.records.codec import Json, Record, add_codec, always_stored, omit_default
from joulecast.records.field_checks import (
    Choices,
    Count,
    InvalidFieldError,
    MaxLength,
    PositiveCount,
    Range,
    Share,
    check_integers,
    check_list,
    check_numbers,
    check_object,
    check_texts,
    refuse_value,
)

Size = int | float | str | tuple[int, ...]

JOINS = ("none", "add", "mul", "concat")
MOST_LAYERS = 20_000
"""Layers that a network may have; the deepest known ones have a few thousand."""
MOST_AXES = 16
LARGEST_SIZE = 10**12
"""No device could hold more, and counting them would take forever or overflow."""

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
        params: Parameters of the network, each counted once.
        unattributed_flops_share: Share of ``flops`` that no layer accounts for; likewise the
            shares of bytes and parameters.
        overcounted_flops_share: How much the layers count beyond ``flops``, as a share of it.
        between: Function calls that forward makes between layers (views, masks, positions). They
            cost host time and next to no device time.
        ops_without_rule: Names of operators whose FLOPs are unknown, with how often a step calls
            each.
        uncounted_bytes_share: Share of ``size_bytes`` that those operators move: a guess at how
            much of the step is unknown.
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


def name_layout(layer: Layer) -> tuple[str, ...]:
    """Name what is unusual in how a layer's tensors lie in memory; empty for the default format."""
    flags = ("channels_last", "channels_last_weights")
    names = tuple(flag.replace("_", " ") for flag in flags if getattr(layer, flag))
    if not layer.transposed:
        return names
    return *names, "transposed " + " ".join(str(position + 1) for position in layer.transposed)


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


_check_integer = check_integers(Range(-LARGEST_SIZE, LARGEST_SIZE))
_check_number = check_numbers()
_check_text = check_texts()


def _check_size(value: Any) -> None:
    """Check the type of a size; ``check_network`` knows what each kind of layer needs."""
    if isinstance(value, list):
        if len(check_list(value)) > MOST_AXES:
            raise refuse_value(value, f"give a list of at most {MOST_AXES} integers")
        for one in value:
            _check_integer(one)
    elif isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float):
        _check_number(value)
    elif not isinstance(value, bool):
        _check_integer(value)
