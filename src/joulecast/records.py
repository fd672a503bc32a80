"""The nouns: frozen records that flow through Joulecast, and their JSON.

    Op ─ Layer ─ Network ┐
                   Setup ├─ Trial ─ Observation ─ Profile ─ Estimate
                     How ┘

Takes and gives plain Python values. Every record turns into JSON with ``to_dict`` and back with
``from_dict``, exactly: floats keep all their digits. Names of layers and networks are labels for
people and no part of equality. Standard library only, so that a device agent can carry this file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple, Union

from joulecast.errors import FileError, InputError

Size = Union[int, float, str, Tuple[int, ...]]
Json = Dict[str, Any]

PHASES = ("train", "inference")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
OPTIMIZERS = ("sgd", "adam", "adamw")
LOSSES = ("cross_entropy", "mse", "own")
STAGES = ("step", "forward", "backward", "update")
MODES = ("eager", "graph")
UPSTREAMS = ("loss", "random")
JOINS = ("none", "add", "mul", "concat")
# From the strongest claim to the weakest; an estimate names the weakest one it rests on.
PROVENANCES = ("measured", "imported", "modelled", "simulated")
OWN_NET = "own net"
"""Source of what a user's own module took: it may do more than its network says."""


def _check_word(what: str, word: str, words: Tuple[str, ...]) -> None:
    if word not in words:
        raise InputError(f"{what} is {word!r}: choose one of {', '.join(words)}")


def _plain(value: Any) -> Any:
    """The one way of writing a size: what compares equal (2, 2.0; 1, True) has the same JSON."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(one) for one in value)
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


class Sizes(AbstractMapping):  # type: ignore[type-arg]  # subscripting needs Python 3.9
    """An immutable, hashable mapping from size names to whole numbers, tuples of them, or words."""

    __slots__ = ("_hash", "_items")

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        self._items: Dict[str, Any] = {name: _plain(sizes[name]) for name in sorted(sizes)}
        self._hash = hash(tuple(self._items.items()))

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return ", ".join("{}={}".format(*item) for item in self._items.items())

    def to_dict(self) -> Json:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self._items.items()}


@dataclass(frozen=True)
class Op:
    """One operator: a row of the kinds table, its sizes (per sample; the batch is the Setup's)."""

    kind: str
    sizes: Sizes = field(default_factory=lambda: Sizes({}))

    def to_dict(self) -> Json:
        return {"kind": self.kind, "sizes": self.sizes.to_dict()}

    @classmethod
    def from_dict(cls, data: Json) -> Op:
        return cls(data["kind"], Sizes(data["sizes"]))


@dataclass(frozen=True)
class Layer(Op):
    """A parametric operator with the operators that follow it, as it stands in a net.

    Attributes:
        tail: Operators applied to the result, in order (norm, activation, pooling, dropout).
        trains: Its weights get a gradient.
        input_grad: Its input gets a gradient; false for first layers and behind frozen ones.
        reads: How many layers back each input stands; 1 is the one before, and a layer that
            counts back to before the first one reads the network's input.
        join: How several inputs become one.
        calls: How often one step calls it.
        tied: Its weights belong to an earlier layer and are counted there.
        channels_last: Its first image or volume arrives with its channels innermost in memory, so
            that it runs other kernels than on one in the usual order; a network's input lies as
            the layers that read it say.
        channels_last_weights: So do its weights, as in a net that was converted as a whole.
        parts: The layers of a block; empty for a leaf.
    """

    tail: Tuple[Op, ...] = ()
    trains: bool = True
    input_grad: bool = True
    reads: Tuple[int, ...] = (1,)
    join: str = "none"
    calls: int = 1
    tied: bool = False
    channels_last: bool = False
    channels_last_weights: bool = False
    parts: Tuple[Layer, ...] = ()
    name: str = field(default="", compare=False)

    def to_dict(self) -> Json:
        data: Json = {"kind": self.kind, "sizes": self.sizes.to_dict()}
        if self.tail:
            data["tail"] = [op.to_dict() for op in self.tail]
        if self.parts:
            data["parts"] = [part.to_dict() for part in self.parts]
        for key, default in _LAYER_DEFAULTS.items():
            value = getattr(self, key)
            if value != default:
                data[key] = list(value) if isinstance(value, tuple) else value
        return data

    @classmethod
    def from_dict(cls, data: Json) -> Layer:
        flags: Json = {key: data.get(key, default) for key, default in _LAYER_DEFAULTS.items()}
        flags["reads"] = tuple(flags["reads"])
        return cls(
            data["kind"],
            Sizes(data["sizes"]),
            tail=tuple(Op.from_dict(op) for op in data.get("tail", ())),
            parts=tuple(Layer.from_dict(part) for part in data.get("parts", ())),
            **flags,
        )


_LAYER_DEFAULTS: Json = {
    "trains": True,
    "input_grad": True,
    "reads": (1,),
    "join": "none",
    "calls": 1,
    "tied": False,
    "channels_last": False,
    "channels_last_weights": False,
    "name": "",
}


@dataclass(frozen=True)
class Input:
    """What one sample looks like.

    Attributes:
        vocabulary: For tokens, how many different ones there are.
        half: It arrives in half precision, as inside a net that trains under autocast.
    """

    shape: Tuple[int, ...]
    vocabulary: int = 0
    half: bool = False

    def to_dict(self) -> Json:
        data: Json = {"shape": list(self.shape), "vocabulary": self.vocabulary}
        return {**data, "half": True} if self.half else data

    @classmethod
    def from_dict(cls, data: Json) -> Input:
        return cls(tuple(data["shape"]), data["vocabulary"], data.get("half", False))


@dataclass(frozen=True)
class Totals:
    """A whole step counted apart from the layers, and what no layer accounts for.

    Attributes:
        flops: Floating-point operations of contractions in forward and backward (2 a multiply-add).
        size_bytes: Bytes that the operators of forward and backward read and write.
        params: Parameters of the net, each counted once.
        between: Functions that forward calls between layers: views, masks, positions. The device
            hardly notices; the host does.
        unattributed_flops_share: Share of ``flops`` that no layer accounts for; likewise others.
    """

    flops: float
    size_bytes: float
    params: int
    unattributed_flops_share: float = 0.0
    unattributed_bytes_share: float = 0.0
    unattributed_params_share: float = 0.0
    overcounted_flops_share: float = 0.0
    overcounted_bytes_share: float = 0.0
    between: int = 0

    def to_dict(self) -> Json:
        return dict(self.__dict__)

    @classmethod
    def from_dict(cls, data: Json) -> Totals:
        return cls(**data)


@dataclass(frozen=True)
class Network:
    """Layers in call order. The empty Network stands for a device that waits.

    Attributes:
        groups: Half-open ranges of layers that a net repeats as one module: its blocks.
        buildable: False where reading could not know how to rebuild the net.
        totals: What an independent count of the whole step found, where the net was read.
    """

    layers: Tuple[Layer, ...] = ()
    input: Input = Input(())
    groups: Tuple[Tuple[int, int], ...] = ()
    buildable: bool = field(default=True, compare=False)
    name: str = field(default="", compare=False)
    totals: Optional[Totals] = field(default=None, compare=False)

    def to_dict(self) -> Json:
        return {
            "name": self.name,
            "input": self.input.to_dict(),
            "layers": [layer.to_dict() for layer in self.layers],
            "groups": [list(group) for group in self.groups],
            "buildable": self.buildable,
            "totals": self.totals.to_dict() if self.totals else None,
        }

    @classmethod
    def from_dict(cls, data: Json) -> Network:
        totals = data.get("totals")
        return cls(
            layers=tuple(Layer.from_dict(layer) for layer in data["layers"]),
            input=Input.from_dict(data["input"]),
            groups=tuple((start, stop) for start, stop in data["groups"]),
            buildable=data["buildable"],
            name=data["name"],
            totals=Totals.from_dict(totals) if totals else None,
        )


@dataclass(frozen=True)
class Setup:
    """How a net is trained. ``threads`` 0 leaves the number to the runtime."""

    batch: int = 32
    phase: str = "train"
    precision: str = "fp32"
    optimizer: str = "sgd"
    loss: str = "cross_entropy"
    threads: int = 0
    cudnn_benchmark: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"batch is {self.batch}: give a whole number of at least 1")
        if self.threads < 0:
            raise InputError(f"threads is {self.threads}: give 0 (the runtime chooses) or more")
        _check_word("phase", self.phase, PHASES)
        _check_word("precision", self.precision, PRECISIONS)
        _check_word("optimizer", self.optimizer, OPTIMIZERS)
        _check_word("loss", self.loss, LOSSES)

    def to_dict(self) -> Json:
        return dict(self.__dict__)

    @classmethod
    def from_dict(cls, data: Json) -> Setup:
        return cls(**data)


@dataclass(frozen=True)
class How:
    """What of the step is run, and in which way.

    Attributes:
        stage: The whole step, or one stage of it.
        mode: ``eager``, or ``graph``: the step captured once and replayed.
        copies: Networks side by side, each with its own weights and input.
        upstream: Backward starts from the loss or from a random gradient.
        steps: Steps that the observed energy and time span.
    """

    stage: str = "step"
    mode: str = "eager"
    copies: int = 1
    upstream: str = "loss"
    steps: int = 1

    def __post_init__(self) -> None:
        _check_word("stage", self.stage, STAGES)
        _check_word("mode", self.mode, MODES)
        _check_word("upstream", self.upstream, UPSTREAMS)
        if self.copies < 1 or self.steps < 1:
            raise InputError(f"copies {self.copies} and steps {self.steps} must be at least 1")

    def to_dict(self) -> Json:
        return dict(self.__dict__)

    @classmethod
    def from_dict(cls, data: Json) -> How:
        return cls(**data)


@dataclass(frozen=True)
class Trial:
    """Something that can be run and measured: a network, its setup, and how."""

    network: Network
    setup: Setup
    how: How = How()

    @cached_property
    def key(self) -> str:
        """A stable name of this trial: equal trials have equal keys, on every machine."""
        data = self.to_dict()
        return stable_hash({**data, "network": _bare(data["network"])})

    def to_dict(self) -> Json:
        return {
            "network": self.network.to_dict(),
            "setup": self.setup.to_dict(),
            "how": self.how.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Json) -> Trial:
        return cls(
            Network.from_dict(data["network"]),
            Setup.from_dict(data["setup"]),
            How.from_dict(data["how"]),
        )


@dataclass(frozen=True)
class Device:
    """What runs the step. The power mode is part of its identity.

    Attributes:
        unit: Which one of many alike: they differ by a few percent. It makes no other profile.
    """

    name: str
    processor: str = ""
    memory_bytes: int = 0
    driver: str = ""
    power_mode: str = ""
    unit: str = ""

    def to_dict(self) -> Json:
        return {key: value for key, value in self.__dict__.items() if key != "unit" or value}

    @classmethod
    def from_dict(cls, data: Json) -> Device:
        return cls(**data)


@dataclass(frozen=True)
class Observation:
    """A trial and what was seen: medians over ``count`` rounds with the standard deviation.

    Energy and time are those of ``trial.how.steps`` steps. A time probe has no ``energy_j``.

    Attributes:
        issue_s: Host time to issue the steps, without waiting for the device.
        run: Which run of Joulecast saw it; observations of one run share its conditions.
        meter: The meter's name; ``covers`` what it sees (``gpu``, ``cpu``, ``board`` ...).
        source: Where an imported observation comes from.
        taken_at_s: Seconds since 1970.
    """

    trial: Trial
    energy_j: Optional[float] = None
    energy_sd_j: Optional[float] = None
    duration_s: Optional[float] = None
    duration_sd_s: Optional[float] = None
    issue_s: Optional[float] = None
    issue_sd_s: Optional[float] = None
    count: int = 1
    peak_memory_bytes: Optional[int] = None
    run: str = ""
    device: Device = Device("")
    runtime: str = ""
    meter: str = ""
    covers: str = ""
    provenance: str = "measured"
    source: str = ""
    taken_at_s: float = 0.0
    cost_s: float = 0.0

    def __post_init__(self) -> None:
        _check_word("provenance", self.provenance, PROVENANCES)

    def to_dict(self) -> Json:
        data = dict(self.__dict__)
        data["trial"] = self.trial.to_dict()
        data["device"] = self.device.to_dict()
        return data

    @classmethod
    def from_dict(cls, data: Json) -> Observation:
        rest = {k: v for k, v in data.items() if k not in ("trial", "device")}
        return cls(Trial.from_dict(data["trial"]), device=Device.from_dict(data["device"]), **rest)


@dataclass(frozen=True)
class Profile:
    """What one device has learnt: its observations and each estimator's fitted numbers.

    Keyed by device with power mode, runtime, meter coverage and provenance; a fit never mixes them.

    Attributes:
        shipped: It came with the package: it was measured on somebody else's unit of the device.
    """

    device: Device
    runtime: str
    covers: str
    provenance: str
    observations: Tuple[Observation, ...] = ()
    fits: Mapping[str, Json] = field(default_factory=dict)
    shipped: bool = field(default=False, compare=False)

    @property
    def key(self) -> str:
        # How much memory is free for use changes with the kernel; the device stays what it is.
        own = ("memory_bytes", "unit")
        device = {k: v for k, v in self.device.to_dict().items() if k not in own}
        return stable_hash([device, self.runtime, self.covers, self.provenance])

    def to_dict(self) -> Json:
        return {
            "device": self.device.to_dict(),
            "runtime": self.runtime,
            "covers": self.covers,
            "provenance": self.provenance,
            "observations": [seen.to_dict() for seen in self.observations],
            "fits": dict(self.fits),
        }

    @classmethod
    def from_dict(cls, data: Json) -> Profile:
        return cls(
            Device.from_dict(data["device"]),
            data["runtime"],
            data["covers"],
            data["provenance"],
            tuple(Observation.from_dict(seen) for seen in data["observations"]),
            data["fits"],
        )


@dataclass(frozen=True)
class LayerEstimate:
    """What one layer of a network costs in a step."""

    name: str
    kind: str
    energy_j: float
    calls: int = 1
    seen: bool = True

    def to_dict(self) -> Json:
        return dict(self.__dict__)


@dataclass(frozen=True)
class Estimate:
    """Joules per step with an interval, and what they rest on.

    Attributes:
        interval_j: Low and high end that hold the true value with probability ``level``.
        duration_interval_s: Likewise of the seconds; None where nobody knows.
        device_j: The device's own joules, the same whatever host it stands in; None where nobody
            can tell them from waiting for the host.
        host_share: Share of the energy spent waiting for the host; None where it is not known.
        doubts: Where the interval comes from: words, and their shares of the variance.
        unseen_share: Share of the energy in layers of a kind that was never profiled.
        basis: The weakest provenance it rests on (measured, imported, modelled, simulated).
        covers: What the meter behind it sees.
    """

    energy_j: float
    interval_j: Tuple[float, float]
    level: float
    duration_s: float
    peak_memory_bytes: int
    layers: Tuple[LayerEstimate, ...]
    unseen_share: float
    basis: str
    covers: str
    device: str
    estimator: str
    device_j: Optional[float] = None
    host_share: Optional[float] = None
    doubts: Mapping[str, float] = field(default_factory=dict)
    duration_interval_s: Optional[Tuple[float, float]] = None

    def to_dict(self) -> Json:
        data = dict(self.__dict__)
        data["doubts"] = dict(self.doubts)
        data["interval_j"] = list(self.interval_j)
        if self.duration_interval_s is not None:
            data["duration_interval_s"] = list(self.duration_interval_s)
        data["layers"] = [layer.to_dict() for layer in self.layers]
        return data


def weakest_provenance(provenances: Any) -> str:
    """The weakest of some provenances."""
    return max(provenances, key=PROVENANCES.index, default="measured")


def fold_blocks(network: Network) -> Network:
    """The block view: each repeated group becomes one layer with its parts."""
    stops = dict(network.groups)
    spans = []
    index = 0
    while index < len(network.layers):
        spans.append((index, stops.get(index, index + 1)))
        index = spans[-1][1]
    where = {flat: place for place, span in enumerate(spans) for flat in range(*span)}
    folded = []
    for place, (start, stop) in enumerate(spans):
        layers = network.layers[start:stop]
        layer = _make_block(layers) if start in stops else layers[0]
        sources = [start + i - back for i, part in enumerate(layers) for back in part.reads]
        if start in stops:
            sources = [source for source in dict.fromkeys(sources) if source < start]
        reads = tuple(place - where.get(source, -1) for source in sources)
        folded.append(replace(layer, reads=reads))
    return replace(network, layers=tuple(folded), groups=(), buildable=False)


def name_layout(layer: Layer) -> Tuple[str, ...]:
    """Words for what of a layer lies channels last; none for the usual order of memory."""
    flags = ("channels_last", "channels_last_weights")
    return tuple(flag.replace("_", " ") for flag in flags if getattr(layer, flag))


def stable_hash(data: Any) -> str:
    """Sixteen hex digits that depend on the JSON value only."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_record(cls: Any, data: Any, what: str) -> Any:
    """``cls.from_dict`` for data from outside: anything wrong becomes one FileError."""
    try:
        return cls.from_dict(data)
    except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{what} is damaged ({reason}); export it again") from error


def _make_block(parts: Tuple[Layer, ...]) -> Layer:
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
        name=_common_name([part.name for part in parts]),
    )


def _common_name(names: Sequence[str]) -> str:
    """The dotted path that all names begin with, or the first name."""
    paths = [name.split(".") for name in names]
    common = []
    for words in zip(*paths):
        if len(set(words)) > 1:
            break
        common.append(words[0])
    return ".".join(common) or names[0]


def _bare(network: Json) -> Json:
    """A network's JSON without what is no part of its equality."""
    layers = [_bare_layer(layer) for layer in network["layers"]]
    return {"input": network["input"], "layers": layers, "groups": network["groups"]}


def _bare_layer(layer: Json) -> Json:
    bare = {key: value for key, value in layer.items() if key != "name"}
    if "parts" in bare:
        bare["parts"] = [_bare_layer(part) for part in bare["parts"]]
    return bare
