"""One table: what each kind of operator is, and what forward, backward and the update cost.

A row of ``KINDS`` says which sizes an operator has, which of them are widths (what the paper
varies), how it changes the shape of a sample, how many parameters it holds, and its work.
Everything is per call and for a whole batch. Conventions, so that the numbers can be checked
against a count of the real operators:

- FLOPs count contractions only, two a multiply-add, as torch's FlopCounterMode does. Elementwise
  work shows in the bytes.
- Bytes are what an operator reads plus what it writes, each tensor once, caches ignored.
- Launches are kernels that a GPU framework would start, to the nearest whole number.
- Memory of forward is what stays alive until backward; memory of the update is weights, gradients
  and the optimizer's state.

Operators in a layer's tail carry no shape of their own: it follows from what stands before them.
Standing alone they have the size ``shape``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Tuple

from joulecast.errors import InputError
from joulecast.records import Layer, Network, Op, Setup, Sizes

Shape = Tuple[int, ...]

WEIGHT_BYTES = 4
# Of an update, per parameter: elements moved, elements kept beside weight and gradient; launches.
_UPDATES = {"sgd": (5, 1, 3), "adam": (7, 2, 4), "adamw": (7, 2, 1)}


@dataclass(frozen=True)
class Work:
    """What running something takes."""

    flops: float = 0.0
    size_bytes: float = 0.0
    launches: int = 0
    memory_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.size_bytes + other.size_bytes,
            self.launches + other.launches,
            self.memory_bytes + other.memory_bytes,
        )

    def times(self, calls: int) -> Work:
        return Work(
            self.flops * calls,
            self.size_bytes * calls,
            self.launches * calls,
            self.memory_bytes * calls,
        )


NO_WORK = Work()


@dataclass(frozen=True)
class StepWork:
    """The work of a layer or a network in one training step, and its parameters."""

    forward: Work = NO_WORK
    backward: Work = NO_WORK
    update: Work = NO_WORK
    params: int = 0

    def __add__(self, other: StepWork) -> StepWork:
        return StepWork(
            self.forward + other.forward,
            self.backward + other.backward,
            self.update + other.update,
            self.params + other.params,
        )

    @property
    def total(self) -> Work:
        return self.forward + self.backward + self.update


@dataclass(frozen=True)
class Context:
    """What an operator's work depends on besides its sizes."""

    batch: int
    item_bytes: int
    trains: bool
    input_grad: bool


WorkRule = Callable[[Sizes, Shape, Context], Work]


@dataclass(frozen=True)
class Kind:
    """A row of the table.

    Attributes:
        sizes: Names of the sizes it needs, with the default of those that have one.
        widths: Sizes that the paper's method varies; all others make another curve.
        in_shape: Shape of one sample that it takes, from its sizes.
        out_shape: Shape of one sample that it gives.
        params: Number of parameters, by tensor.
        forward: Work of forward; ``backward`` of both gradients, as far as they are needed.
        tailable: It may follow another operator inside a layer.
    """

    sizes: Mapping[str, Any]
    in_shape: Callable[[Sizes], Shape]
    out_shape: Callable[[Sizes, Shape], Shape]
    forward: WorkRule
    backward: WorkRule
    widths: Tuple[str, ...] = ()
    params: Callable[[Sizes, Shape], Tuple[int, ...]] = field(default=lambda s, shape: ())
    tailable: bool = False


REQUIRED = object()


# ---------------------------------------------------------------------------------------------
# What a caller asks for


def make_op(kind: str, **sizes: Any) -> Op:
    """An operator with its defaults filled in, so that equal operators compare equal."""
    return Op(kind, _fill_sizes(kind, sizes))


def make_layer(kind: str, tail: Tuple[Op, ...] = (), **sizes: Any) -> Layer:
    """A layer with its defaults filled in; set the rest with ``dataclasses.replace``."""
    return Layer(kind, _fill_sizes(kind, sizes), tail=tail)


def find_kind(name: str) -> Kind:
    """The row of a kind."""
    try:
        return KINDS[name]
    except KeyError:
        known = ", ".join(sorted(KINDS))
        raise InputError(f"there is no kind {name!r}; known are {known}") from None


def input_shape(layer: Layer) -> Shape:
    """Shape of one sample that a layer takes."""
    if layer.parts:
        return input_shape(layer.parts[0])
    return find_kind(layer.kind).in_shape(layer.sizes)


def output_shape(layer: Layer) -> Shape:
    """Shape of one sample that a layer gives, behind its tail."""
    if layer.parts:
        return output_shape(layer.parts[-1])
    shape = find_kind(layer.kind).out_shape(layer.sizes, input_shape(layer))
    for op in layer.tail:
        shape = find_kind(op.kind).out_shape(op.sizes, shape)
    return shape


def layer_work(layer: Layer, setup: Setup) -> StepWork:
    """Work of one layer in one step: its operator and its tail, times its calls."""
    if layer.parts:
        return sum((layer_work(part, setup) for part in layer.parts), StepWork())
    training = setup.phase == "train"
    item_bytes = 2 if setup.precision in ("bf16", "fp16") else 4
    shape = input_shape(layer)
    grad = training and layer.input_grad
    total = StepWork()
    for op in (layer, *layer.tail):
        kind = find_kind(op.kind)
        context = Context(setup.batch, item_bytes, training and layer.trains, grad)
        weights = () if layer.tied else kind.params(op.sizes, shape)
        forward = kind.forward(op.sizes, shape, context)
        backward = kind.backward(op.sizes, shape, context) if training else NO_WORK
        total += StepWork(
            (forward if training else replace(forward, memory_bytes=0.0)).times(layer.calls),
            backward.times(layer.calls),
            _update_work(weights, setup, context.trains),
            sum(weights),
        )
        # Behind an operator whose weights train, or that got a gradient, gradients flow on.
        grad = grad or (context.trains and bool(weights))
        shape = kind.out_shape(op.sizes, shape)
    return total


def network_work(network: Network, setup: Setup) -> StepWork:
    """Work of a whole network in one step, the loss aside."""
    return sum((layer_work(layer, setup) for layer in network.layers), StepWork())


def peak_memory(network: Network, setup: Setup) -> int:
    """Bytes that training holds at its peak: weights, gradients, state, and what backward needs."""
    works = [layer_work(layer, setup) for layer in network.layers]
    if not works:
        return 0
    kept = sum(work.forward.memory_bytes for work in works)
    passing = max(setup.batch * 4 * math.prod(output_shape(layer)) for layer in network.layers)
    held = sum(work.update.memory_bytes for work in works)
    return int(kept + 2 * passing + held + setup.batch * 4 * math.prod(network.input.shape))


def free_widths(op: Op) -> Tuple[str, ...]:
    """The widths that can be chosen apart from each other (depthwise: input follows output)."""
    widths = find_kind(op.kind).widths
    if widths == ("cin", "cout") and op.sizes.get("groups", 1) > 1:
        return ("cout",)
    return widths


def width_step(op: Op) -> int:
    """Widths come in multiples of this (groups of a convolution, heads of an attention)."""
    if op.kind == "attention":
        return int(op.sizes["heads"])
    groups = int(op.sizes.get("groups", 1))
    depthwise = groups > 1 and groups == op.sizes.get("cin")
    return int(op.sizes["cout"]) // groups if depthwise else groups


def resize(layer: Layer, **widths: int) -> Layer:
    """The same layer at other widths; what is tied to a width follows it."""
    sizes: Dict[str, Any] = dict(layer.sizes)
    groups = sizes.get("groups", 1)
    if "cout" in widths and layer.kind.startswith("conv") and groups > 1:
        share = widths["cout"] / sizes["cout"]
        if groups == sizes["cin"]:
            multiplier = sizes["cout"] // groups
            sizes["groups"] = sizes["cin"] = max(1, round(groups * share))
            widths = {**widths, "cout": sizes["cin"] * multiplier}
        else:
            sizes["cin"] = groups * max(1, round(sizes["cin"] // groups * share))
    if "channels" in widths:
        axis = channel_axis(layer)
        shape = list(sizes["shape"])
        shape[axis] = widths["channels"]
        sizes["shape"] = tuple(shape)
        widths = {}
    sizes.update(widths)
    return replace(layer, sizes=Sizes(sizes))


def width_of(layer: Layer, width: str) -> int:
    """The value of one width of a layer."""
    if width == "channels":
        return int(layer.sizes["shape"][channel_axis(layer)])
    return int(layer.sizes[width])


def channel_axis(op: Op) -> int:
    """Which axis of ``shape`` holds the channels: first for images, last for tokens."""
    last = op.kind in ("layer_norm", "rms_norm") or len(op.sizes["shape"]) == 2
    return -1 if last and op.kind not in ("batch_norm", "group_norm", "pool") else 0


# ---------------------------------------------------------------------------------------------
# Rules that rows share


def _fill_sizes(kind: str, sizes: Mapping[str, Any]) -> Sizes:
    row = find_kind(kind)
    unknown = sorted(set(sizes) - set(row.sizes) - {"shape"})
    if unknown:
        raise InputError(f"{kind} has no size {unknown[0]!r}; it has {', '.join(row.sizes)}")
    filled = {name: default for name, default in row.sizes.items() if default is not None}
    filled.update(sizes)
    missing = sorted(name for name, value in filled.items() if value is REQUIRED)
    if missing:
        raise InputError(f"{kind} needs the size {missing[0]!r}")
    dims = _spatial_dims(kind)
    if dims:
        for name in ("space", "kernel", "stride", "padding", "dilation", "output_padding"):
            if isinstance(filled.get(name), int):
                filled[name] = (filled[name],) * dims
    return Sizes(filled)


def _spatial_dims(kind: str) -> int:
    return int(kind[-2]) if kind.startswith("conv") else 0


def _update_work(weights: Tuple[int, ...], setup: Setup, trains: bool) -> Work:
    params = sum(weights)
    if not trains:
        return Work(memory_bytes=float(params * WEIGHT_BYTES))
    moved, kept, launches = _UPDATES[setup.optimizer]
    return Work(
        size_bytes=float(params * moved * WEIGHT_BYTES),
        launches=launches * len(weights),
        memory_bytes=float(params * (2 + kept) * WEIGHT_BYTES),
    )


def _stays(sizes: Sizes, shape: Shape) -> Shape:
    return tuple(sizes["out"]) if "out" in sizes else shape


def _own_shape(sizes: Sizes) -> Shape:
    try:
        return tuple(sizes["shape"])
    except KeyError:
        raise InputError("an operator that stands alone needs the size 'shape'") from None


def _contraction(
    flops: Callable[[Sizes, Shape], float],
    out_shape: Callable[[Sizes, Shape], Shape],
    params: Callable[[Sizes, Shape], Tuple[int, ...]],
) -> Tuple[WorkRule, WorkRule]:
    """Forward and backward of an operator that multiplies its input with a weight.

    ``flops`` is for one sample; each of the two gradients takes as many again.
    """

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        moved = c.batch * (math.prod(shape) + math.prod(out_shape(s, shape))) * c.item_bytes
        weights = sum(params(s, shape)) * c.item_bytes
        return Work(
            c.batch * flops(s, shape), moved + weights, 1, c.batch * math.prod(shape) * c.item_bytes
        )

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        inside = c.batch * math.prod(shape) * c.item_bytes
        outside = c.batch * math.prod(out_shape(s, shape)) * c.item_bytes
        weight, *rest = (size * c.item_bytes for size in params(s, shape))
        work = NO_WORK
        if c.input_grad:
            work += Work(c.batch * flops(s, shape), outside + weight + inside, 1)
        if c.trains:
            work += Work(c.batch * flops(s, shape), outside + inside + weight, 1)
            if rest:
                work += Work(0.0, outside + rest[0], 1)
        return work

    return forward, backward


def _pointwise(
    forward_moves: float, backward_moves: float, kept: float
) -> Tuple[WorkRule, WorkRule]:
    """An operator that passes over its input; moves and kept are in elements per input element."""

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        size = c.batch * math.prod(shape) * c.item_bytes
        return Work(0.0, size * forward_moves, 1, size * kept)

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        size = c.batch * math.prod(shape) * c.item_bytes
        return Work(0.0, size * backward_moves, 1) if c.input_grad or c.trains else NO_WORK

    return forward, backward


def _free(s: Sizes, shape: Shape, c: Context) -> Work:
    return NO_WORK


def _attend_flops(heads: int, head_dim: int, tokens: int, kv_tokens: int) -> float:
    return 4.0 * heads * head_dim * tokens * kv_tokens


# ---------------------------------------------------------------------------------------------
# Rows


def _conv_kind(dims: int, transposed: bool) -> Kind:
    def in_shape(s: Sizes) -> Shape:
        return (s["cin"], *s["space"])

    def out_shape(s: Sizes, shape: Shape) -> Shape:
        space = []
        for i, size in enumerate(shape[1:]):
            reach = s["dilation"][i] * (s["kernel"][i] - 1)
            if transposed:
                grown = (size - 1) * s["stride"][i] - 2 * s["padding"][i]
                space.append(grown + reach + s["output_padding"][i] + 1)
            else:
                space.append((size + 2 * s["padding"][i] - reach - 1) // s["stride"][i] + 1)
        if min(space) < 1:
            raise InputError(
                f"a kernel of {s['kernel']} does not fit on {tuple(shape[1:])}: give a larger input"
            )
        return (s["cout"], *space)

    def params(s: Sizes, shape: Shape) -> Tuple[int, ...]:
        weight = s["cin"] * s["cout"] // s["groups"] * math.prod(s["kernel"])
        return (weight, s["cout"]) if s["bias"] else (weight,)

    def flops(s: Sizes, shape: Shape) -> float:
        swept = shape[1:] if transposed else out_shape(s, shape)[1:]
        return 2.0 * params(s, shape)[0] * math.prod(swept)

    forward, backward = _contraction(flops, out_shape, params)
    sizes = {
        "cin": REQUIRED,
        "cout": REQUIRED,
        "space": REQUIRED,
        "kernel": REQUIRED,
        "stride": 1,
        "padding": 0,
        "dilation": 1,
        "groups": 1,
        "bias": 1,
    }
    if transposed:
        sizes["output_padding"] = 0
    return Kind(sizes, in_shape, out_shape, forward, backward, ("cin", "cout"), params)


def _linear_kind() -> Kind:
    def out_shape(s: Sizes, shape: Shape) -> Shape:
        return (*shape[:-1], s["cout"])

    def params(s: Sizes, shape: Shape) -> Tuple[int, ...]:
        weight = s["cin"] * s["cout"]
        return (weight, s["cout"]) if s["bias"] else (weight,)

    def flops(s: Sizes, shape: Shape) -> float:
        return 2.0 * math.prod(shape) * float(s["cout"])

    forward, backward = _contraction(flops, out_shape, params)
    sizes = {"cin": REQUIRED, "cout": REQUIRED, "lead": (), "bias": 1}
    return Kind(
        sizes,
        lambda s: (*s["lead"], s["cin"]),
        out_shape,
        forward,
        backward,
        ("cin", "cout"),
        params,
    )


def _embedding_kind() -> Kind:
    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        tokens = c.batch * math.prod(shape)
        return Work(0.0, tokens * (8 + 2 * s["width"] * WEIGHT_BYTES), 1, tokens * 8.0)

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        tokens = c.batch * math.prod(shape)
        table = s["vocabulary"] * s["width"] * WEIGHT_BYTES
        moved = tokens * (8 + s["width"] * WEIGHT_BYTES) + table
        return Work(0.0, moved, 2) if c.trains else NO_WORK

    return Kind(
        {"vocabulary": REQUIRED, "width": REQUIRED, "lead": REQUIRED},
        lambda s: tuple(s["lead"]),
        lambda s, shape: (*shape, s["width"]),
        forward,
        backward,
        ("width",),
        lambda s, shape: (s["vocabulary"] * s["width"],),
    )


def _recurrent_kind(gates: int) -> Kind:
    """LSTM (4 gates) and GRU (3); each layer and direction reads its weights once a token."""

    def cells(s: Sizes) -> List[Tuple[int, int]]:
        sides = 1 + s["bidirectional"]
        widths = [s["cin"]] + [s["hidden"] * sides] * (s["depth"] - 1)
        return [(width, s["hidden"]) for width in widths for _ in range(sides)]

    def params(s: Sizes, shape: Shape) -> Tuple[int, ...]:
        tensors: List[int] = []
        for width, hidden in cells(s):
            tensors += [gates * hidden * width, gates * hidden * hidden]
            tensors += [gates * hidden, gates * hidden] if s["bias"] else []
        return tuple(tensors)

    def flops(s: Sizes) -> float:
        return float(sum(2 * s["tokens"] * gates * h * (w + h) for w, h in cells(s)))

    def moved(s: Sizes, c: Context) -> float:
        """Bytes of one pass: every token's input and gates, the recurrent weights each time."""
        activations = sum(c.batch * s["tokens"] * (w + (2 * gates + 3) * h) for w, h in cells(s))
        weights = sum(gates * h * (w + s["tokens"] * h) for w, h in cells(s))
        return float(activations + weights) * c.item_bytes

    def launches(s: Sizes) -> int:
        return len(cells(s)) * (1 + 2 * int(s["tokens"]))

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        kept = sum(c.batch * s["tokens"] * (w + (gates + 2) * h) for w, h in cells(s))
        return Work(c.batch * flops(s), moved(s, c), launches(s), float(kept) * c.item_bytes)

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        # Libraries compute the gradient of the input whether it is asked for or not.
        if not (c.trains or c.input_grad):
            return NO_WORK
        weights = flops(s) if c.trains else 0.0
        return Work(c.batch * (flops(s) + weights), 2 * moved(s, c), 2 * launches(s))

    sizes = {
        "cin": REQUIRED,
        "hidden": REQUIRED,
        "tokens": REQUIRED,
        "depth": 1,
        "bidirectional": 0,
        "bias": 1,
    }
    return Kind(
        sizes,
        lambda s: (s["tokens"], s["cin"]),
        lambda s, shape: (s["tokens"], s["hidden"] * (1 + s["bidirectional"])),
        forward,
        backward,
        ("cin", "hidden"),
        params,
    )


def _sdpa_kind() -> Kind:
    """Scaled dot-product attention on queries, keys and values that stand side by side."""

    def moved(s: Sizes, c: Context) -> float:
        queries = s["tokens"] * s["heads"] * s["head_dim"]
        keys = s["kv_tokens"] * s["kv_heads"] * s["head_dim"]
        return float(c.batch * (2 * queries + 2 * keys)) * c.item_bytes

    def flops(s: Sizes) -> float:
        return _attend_flops(s["heads"], s["head_dim"], s["tokens"], s["kv_tokens"])

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        return Work(c.batch * flops(s), moved(s, c), 1, moved(s, c))

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        # A fused backward multiplies five times where forward multiplies twice.
        if not c.input_grad:
            return NO_WORK
        return Work(2.5 * c.batch * flops(s), 2.5 * moved(s, c), 2)

    def in_shape(s: Sizes) -> Shape:
        return (s["tokens"], (s["heads"] + 2 * s["kv_heads"]) * s["head_dim"])

    sizes = {
        "heads": REQUIRED,
        "kv_heads": REQUIRED,
        "head_dim": REQUIRED,
        "tokens": REQUIRED,
        "kv_tokens": REQUIRED,
        "causal": 0,
    }
    return Kind(
        sizes,
        in_shape,
        lambda s, shape: (s["tokens"], s["heads"] * s["head_dim"]),
        forward,
        backward,
        ("head_dim",),
    )


def _attention_kind() -> Kind:
    """A whole multi-head attention: three projections, attention, one projection."""
    linear = _linear_kind()
    sdpa = _sdpa_kind()

    def pieces(s: Sizes) -> List[Tuple[Kind, Sizes, Shape]]:
        width, bias = s["width"], s["bias"]
        out: List[Tuple[Kind, Sizes, Shape]] = []
        for tokens in (s["tokens"], s["kv_tokens"], s["kv_tokens"], s["tokens"]):
            sizes = Sizes({"cin": width, "cout": width, "lead": (tokens,), "bias": bias})
            out.append((linear, sizes, (tokens, width)))
        heads = s["heads"]
        inner = {"heads": heads, "kv_heads": heads, "head_dim": width // heads}
        inner.update(tokens=s["tokens"], kv_tokens=s["kv_tokens"])
        out.append((sdpa, Sizes(inner), (s["tokens"], 3 * width)))
        return out

    def add_up(stage: str) -> WorkRule:
        def work(s: Sizes, shape: Shape, c: Context) -> Work:
            inner = replace(c, input_grad=c.input_grad or c.trains)
            total = NO_WORK
            for i, (kind, sizes, piece_shape) in enumerate(pieces(s)):
                rule: WorkRule = getattr(kind, stage)
                total += rule(sizes, piece_shape, c if i < 3 else inner)
            return total

        return work

    def params(s: Sizes, shape: Shape) -> Tuple[int, ...]:
        square = s["width"] * s["width"]
        biases = (3 * s["width"], s["width"]) if s["bias"] else ()
        return (3 * square, square, *biases)

    sizes = {
        "width": REQUIRED,
        "heads": REQUIRED,
        "tokens": REQUIRED,
        "kv_tokens": REQUIRED,
        "bias": 1,
    }
    return Kind(
        sizes,
        lambda s: (s["tokens"], s["width"]),
        lambda s, shape: (s["tokens"], s["width"]),
        add_up("forward"),
        add_up("backward"),
        ("width",),
        params,
    )


def _matmul_kind() -> Kind:
    """A product of two activations: ``count`` times (m, k) with (k, n) for each sample."""

    def flops(s: Sizes) -> float:
        return float(2 * s["count"] * s["m"] * s["k"] * s["n"])

    def moved(s: Sizes, c: Context) -> float:
        elements = s["m"] * s["k"] + s["k"] * s["n"] + s["m"] * s["n"]
        return float(c.batch * s["count"] * elements) * c.item_bytes

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        kept = c.batch * s["count"] * (s["m"] + s["n"]) * s["k"] * c.item_bytes
        return Work(c.batch * flops(s), moved(s, c), 1, float(kept))

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        if not c.input_grad:
            return NO_WORK
        return Work(2 * c.batch * flops(s), 2 * moved(s, c), 2)

    def lead(s: Sizes) -> Shape:
        return (s["count"],) if s["count"] > 1 else ()

    return Kind(
        {"count": 1, "m": REQUIRED, "k": REQUIRED, "n": REQUIRED},
        lambda s: (*lead(s), s["m"], s["k"]),
        lambda s, shape: (*lead(s), s["m"], s["n"]),
        forward,
        backward,
        ("m", "k", "n"),
    )


def _norm_kind(sizes: Mapping[str, Any], params: Callable[[Sizes, Shape], Tuple[int, ...]]) -> Kind:
    forward, backward = _pointwise(2, 3, 1)
    return Kind(sizes, _own_shape, _stays, forward, backward, ("channels",), params, tailable=True)


def _channel_params(s: Sizes, shape: Shape) -> Tuple[int, ...]:
    return (shape[0], shape[0]) if s["affine"] else ()


def _layer_norm_params(s: Sizes, shape: Shape) -> Tuple[int, ...]:
    size = math.prod(shape[len(shape) - s["dims"] :])
    return ((size, size) if s["bias"] else (size,)) if s["affine"] else ()


def _elementwise_kind() -> Kind:
    """Activations, sums, products, reductions: whatever passes over its elements once."""

    def out_shape(s: Sizes, shape: Shape) -> Shape:
        if s["axes"]:
            return tuple(size for i, size in enumerate(shape) if i not in s["axes"])
        return _stays(s, shape)

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        inside = c.batch * math.prod(shape) * s["inputs"]
        outside = c.batch * math.prod(out_shape(s, shape))
        size = float(inside + outside) * c.item_bytes
        kept = 0 if s["fn"] == "add" else outside * s["passes"]
        return Work(0.0, size * s["passes"], s["passes"], float(kept * c.item_bytes))

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        if not c.input_grad:
            return NO_WORK
        inside = c.batch * math.prod(shape) * s["inputs"]
        outside = c.batch * math.prod(out_shape(s, shape))
        if s["fn"] == "add":
            return NO_WORK  # the gradient of a sum is handed on as it is
        return Work(0.0, float(2 * inside + outside) * c.item_bytes * s["passes"], s["passes"])

    sizes = {"fn": REQUIRED, "axes": (), "inputs": 1, "passes": 1, "params": 0, "out": None}
    return Kind(
        sizes,
        _own_shape,
        out_shape,
        forward,
        backward,
        ("channels",),
        lambda s, shape: (s["params"],) if s["params"] else (),
        tailable=True,
    )


def _pool_kind() -> Kind:
    def out_shape(s: Sizes, shape: Shape) -> Shape:
        if s["fn"].startswith("adaptive"):
            return (shape[0], *s["kernel"])
        space = []
        for i, size in enumerate(shape[1:]):
            reach = size + 2 * s["padding"][i] - s["kernel"][i]
            rounded = -(-reach // s["stride"][i]) if s["ceil"] else reach // s["stride"][i]
            # A window that would begin in the padding behind the input is left out.
            outside = s["ceil"] and rounded * s["stride"][i] >= size + s["padding"][i]
            space.append(rounded + (0 if outside else 1))
        if min(space) < 1:
            raise InputError(
                f"pooling of {s['kernel']} does not fit on {tuple(shape[1:])}: give a larger input"
            )
        return (shape[0], *space)

    def forward(s: Sizes, shape: Shape, c: Context) -> Work:
        inside = c.batch * math.prod(shape) * c.item_bytes
        outside = c.batch * math.prod(out_shape(s, shape)) * c.item_bytes
        kept = 2 * outside if "max" in s["fn"] else 0  # where each maximum stood
        return Work(0.0, float(inside + outside), 1, float(kept))

    def backward(s: Sizes, shape: Shape, c: Context) -> Work:
        inside = c.batch * math.prod(shape) * c.item_bytes
        outside = c.batch * math.prod(out_shape(s, shape)) * c.item_bytes
        if not (c.input_grad or c.trains):
            return NO_WORK
        return Work(0.0, float((2 if "max" in s["fn"] else 1) * inside + 2 * outside), 1)

    return Kind(
        {"fn": REQUIRED, "kernel": REQUIRED, "stride": (), "padding": (), "ceil": 0},
        _own_shape,
        out_shape,
        forward,
        backward,
        ("channels",),
        tailable=True,
    )


def _view_kind(out_shape: Callable[[Sizes, Shape], Shape], sizes: Mapping[str, Any]) -> Kind:
    return Kind(sizes, _own_shape, out_shape, _free, _free, tailable=True)


def _dropout_kind() -> Kind:
    forward, backward = _pointwise(2.25, 2.25, 0.25)
    return Kind(
        {"p": REQUIRED}, _own_shape, _stays, forward, backward, ("channels",), tailable=True
    )


KINDS: Dict[str, Kind] = {
    "conv1d": _conv_kind(1, transposed=False),
    "conv2d": _conv_kind(2, transposed=False),
    "conv3d": _conv_kind(3, transposed=False),
    "conv_transpose1d": _conv_kind(1, transposed=True),
    "conv_transpose2d": _conv_kind(2, transposed=True),
    "conv_transpose3d": _conv_kind(3, transposed=True),
    "linear": _linear_kind(),
    "embedding": _embedding_kind(),
    "lstm": _recurrent_kind(4),
    "gru": _recurrent_kind(3),
    "attention": _attention_kind(),
    "sdpa": _sdpa_kind(),
    "matmul": _matmul_kind(),
    "batch_norm": _norm_kind({"affine": 1}, _channel_params),
    "group_norm": _norm_kind({"groups": REQUIRED, "affine": 1}, _channel_params),
    "layer_norm": _norm_kind({"dims": 1, "affine": 1, "bias": 1}, _layer_norm_params),
    "rms_norm": _norm_kind({"affine": 1}, lambda s, shape: (shape[-1],) if s["affine"] else ()),
    "elementwise": _elementwise_kind(),
    "pool": _pool_kind(),
    "dropout": _dropout_kind(),
    "flatten": _view_kind(lambda s, shape: (math.prod(shape),), {}),
    "view": _view_kind(lambda s, shape: tuple(s["out"]), {"out": REQUIRED}),
    "permute": _view_kind(
        lambda s, shape: tuple(shape[i] for i in s["order"]), {"order": REQUIRED}
    ),
    "last": _view_kind(lambda s, shape: shape[1:], {}),
}
