"""Families of nets by name and widths: ``cnn5:16,32,64,128`` → Network, without any framework.

The paper names its families but not their exact shapes; these are ours, sensible and documented.
A family is a function from widths, input shape and classes to a Network. ``FAMILIES`` says which
parameters it has, their defaults (the "original" net, whose widths are the upper bounds of random
draws) and the default input and batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from joulecast.errors import NetError
from joulecast.kinds import make_layer, make_op, output_shape
from joulecast.records import Input, Layer, Network, Op

Shape = tuple[int, ...]
Widths = Mapping[str, int]
Layers = tuple[list[Layer], list[tuple[int, int]]]
Make = Callable[[Widths, Input], Layers]
Tail = tuple[Op, ...]

RELU = make_op("elementwise", fn="relu")
GELU = make_op("elementwise", fn="gelu")
NORM = make_op("batch_norm")
FLATTEN = make_op("flatten")
CLASSES = 10
VOCABULARY = 10_000
WIDEST = 65_536
DEEPEST = 1_000


@dataclass(frozen=True)
class Family:
    """A row of the table of families.

    Attributes:
        params: Parameter names with the original net's values; also the largest values drawn.
        input: Default input; ``vocabulary`` above 0 means tokens.
        batch: Default batch.
        make: Parameters and input → layers and groups.
        steps: Parameters that come in multiples.
        fixed: Parameters that random draws keep.
        about: One line for people.
    """

    params: Mapping[str, int]
    input: Input
    batch: int
    make: Make
    about: str
    steps: Mapping[str, int]
    fixed: tuple[str, ...] = ()


def is_family(name: str) -> bool:
    """Whether a net's name begins with the name of a family."""
    return name.split(":", 1)[0] in FAMILIES


def make_family(name: str, input_shape: Shape | None = None) -> Network:
    """The Network that ``cnn5:16,32,64,128`` or ``transformer:width=64,depth=2`` means."""
    family_name, _, text = name.partition(":")
    if family_name not in FAMILIES:
        raise NetError(f"there is no family {family_name!r}; known are {', '.join(FAMILIES)}")
    family = FAMILIES[family_name]
    return build_family(family_name, _parse_params(name, family, text), input_shape)


def build_family(family_name: str, params: Widths, input_shape: Shape | None = None) -> Network:
    """A member of a family at the given parameters."""
    family = FAMILIES[family_name]
    _check_params(family_name, family, params)
    sample = family.input if input_shape is None else _fit_input(family_name, family, input_shape)
    layers, groups = family.make(params, sample)
    name = family_name + ":" + ",".join(str(params[key]) for key in family.params)
    return Network(
        layers=(replace(layers[0], input_grad=False), *layers[1:]),
        input=sample,
        groups=tuple(groups),
        name=name,
    )


def draw_family(
    family_name: str, draw: Callable[[int, int], int], input_shape: Shape | None = None
) -> Network:
    """A random member as the paper draws them: every parameter uniform in 1..original.

    Args:
        family_name: The name of a family; with parameters, they are the largest ones.
        input_shape: Shape of one sample, where it is not the family's own.
        draw: ``draw(low, high)`` gives a whole number in low..high, both included.
    """
    bare_name, _, text = family_name.partition(":")
    family = FAMILIES[bare_name]
    params = {}
    for key, most in _parse_params(family_name, family, text).items():
        step = family.steps.get(key, 1)
        params[key] = most if key in family.fixed else step * draw(1, most // step)
    return build_family(bare_name, params, input_shape)


def _parse_params(name: str, family: Family, text: str) -> dict[str, int]:
    params = dict(family.params)
    names = list(family.params)
    for place, word in enumerate(text.split(",") if text else []):
        key, equals, value = word.rpartition("=")
        if not equals:
            if place >= len(names):
                raise NetError(f"{name}: at most {len(names)} values ({', '.join(names)})")
            key = names[place]
        if key not in params:
            raise NetError(f"{name}: there is no {key!r}; it has {', '.join(names)}")
        try:
            params[key] = int(value)
        except ValueError:
            raise NetError(f"{name}: {key} is {value!r}; give a whole number") from None
    return params


def _check_params(name: str, family: Family, params: Widths) -> None:
    for key, value in params.items():
        step = family.steps.get(key, 1)
        # Depths and numbers of blocks are called d...; everything else is a width.
        most = DEEPEST if key.startswith("d") else WIDEST
        if not step <= value <= most or value % step:
            rule = f"a multiple of {step}" if step > 1 else "a whole number"
            raise NetError(
                f"{name}: {key} is {value}; give {rule} of at least {step}, at most {most:,}"
            )


def _fit_input(name: str, family: Family, shape: Shape) -> Input:
    expected = len(family.input.shape)
    if max(shape, default=0) > WIDEST:
        raise NetError(f"{name}: the input has the size {max(shape)}; give at most {WIDEST:,}")
    if len(shape) != expected or min(shape, default=0) < 1:
        example = "x".join(map(str, family.input.shape))
        raise NetError(
            f"{name} takes an input of {expected} sizes like {example}, not "
            f"{'x'.join(map(str, shape)) or 'none'}"
        )
    return replace(family.input, shape=shape)


# ---------------------------------------------------------------------------------------------
# Pieces


def _conv2d(
    cin: int, cout: int, space: Sequence[int], name: str, tail: Tail = (), **sizes: int
) -> Layer:
    layer = make_layer("conv2d", tail, cin=cin, cout=cout, space=tuple(space), **sizes)
    return replace(layer, name=name)


def _linear(cin: int, cout: int, name: str, lead: Shape = (), tail: Tail = ()) -> Layer:
    return replace(make_layer("linear", tail, cin=cin, cout=cout, lead=lead), name=name)


def _pool(size: int, dims: int = 2) -> Op:
    sizes = (size,) * dims
    return make_op("pool", fn="max", kernel=sizes, stride=sizes, padding=(0,) * dims)


def _make_lenet5(p: Widths, sample: Input) -> Layers:
    channels, *space = sample.shape
    first = _conv2d(channels, p["c1"], space, "conv1", (RELU, _pool(2)), kernel=5, padding=2)
    space = list(output_shape(first)[1:])
    second = _conv2d(p["c1"], p["c2"], space, "conv2", (RELU, _pool(2), FLATTEN), kernel=5)
    return [
        first,
        second,
        _linear(output_shape(second)[0], p["f1"], "fc1", tail=(RELU,)),
        _linear(p["f1"], p["f2"], "fc2", tail=(RELU,)),
        _linear(p["f2"], CLASSES, "fc3"),
    ], []


def _make_cnn5(p: Widths, sample: Input) -> Layers:
    layers: list[Layer] = []
    cin, *space = sample.shape
    for number in (1, 2, 3, 4):
        tail = (RELU, _pool(2)) + ((FLATTEN,) if number == 4 else ())
        cout = p[f"c{number}"]
        layers.append(_conv2d(cin, cout, space, f"conv{number}", tail, kernel=3, padding=1))
        cin, space = cout, list(output_shape(layers[-1])[1:])
    return [*layers, _linear(output_shape(layers[-1])[0], CLASSES, "fc")], []


def _make_har(p: Widths, sample: Input) -> Layers:
    layers: list[Layer] = []
    cin, length = sample.shape
    for number in (1, 2, 3):
        tail = (RELU, _pool(2, dims=1)) + ((FLATTEN,) if number == 3 else ())
        cout = p[f"c{number}"]
        conv = make_layer("conv1d", tail, cin=cin, cout=cout, space=(length,), kernel=5, padding=2)
        layers.append(replace(conv, name=f"conv{number}"))
        cin, length = cout, output_shape(conv)[-1]
    layers.append(_linear(output_shape(layers[-1])[0], p["f1"], "fc1", tail=(RELU,)))
    return [*layers, _linear(p["f1"], 6, "fc2")], []


def _make_lstm(p: Widths, sample: Input) -> Layers:
    (tokens,) = sample.shape
    hidden = p["hidden"]
    embedding = make_layer("embedding", vocabulary=sample.vocabulary, width=hidden, lead=(tokens,))
    lstm = make_layer(
        "lstm",
        (make_op("last"),),
        cin=hidden,
        hidden=hidden,
        tokens=tokens,
        depth=p["depth"],
    )
    return [
        replace(embedding, name="embedding"),
        replace(lstm, name="lstm"),
        _linear(hidden, CLASSES, "fc"),
    ], []


def _make_transformer(p: Widths, sample: Input) -> Layers:
    (tokens,) = sample.shape
    width = p["width"]
    embedding = make_layer("embedding", vocabulary=sample.vocabulary, width=width, lead=(tokens,))
    layers = [replace(embedding, name="embedding")]
    groups = []
    for number in range(p["depth"]):
        start = len(layers)
        layers += _encoder_block(width, tokens, f"block{number}")
        groups.append((start, len(layers)))
    mean = make_op("elementwise", fn="mean", axes=(0,))
    norm = make_layer("layer_norm", (mean,), shape=(tokens, width))
    return [*layers, replace(norm, name="norm"), _linear(width, CLASSES, "fc")], groups


HEADS = 4


def _encoder_block(width: int, tokens: int, name: str) -> list[Layer]:
    """Pre-norm attention and a four times wider pair of linears, each with its residual sum."""
    lead = (tokens,)
    norm = make_layer("layer_norm", shape=(tokens, width))
    sdpa = make_layer(
        "sdpa",
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=width // HEADS,
        tokens=tokens,
        kv_tokens=tokens,
    )
    plus = make_layer("elementwise", fn="add", inputs=2, shape=(tokens, width))
    return [
        replace(norm, name=f"{name}.norm1"),
        _linear(width, 3 * width, f"{name}.qkv", lead),
        replace(sdpa, name=f"{name}.sdpa"),
        _linear(width, width, f"{name}.out", lead),
        replace(plus, name=f"{name}.add1", reads=(1, 5), join="add"),
        replace(norm, name=f"{name}.norm2"),
        _linear(width, 4 * width, f"{name}.fc1", lead, (GELU,)),
        _linear(4 * width, width, f"{name}.fc2", lead),
        replace(plus, name=f"{name}.add2", reads=(1, 4), join="add"),
    ]


def _make_resnet(bottleneck: bool) -> Make:
    def make(p: Widths, sample: Input) -> Layers:
        channels, *space = sample.shape
        pool = make_op("pool", fn="max", kernel=(3, 3), stride=(2, 2), padding=(1, 1))
        stem = _conv2d(
            channels,
            p["width"],
            space,
            "stem",
            (NORM, RELU, pool),
            kernel=7,
            stride=2,
            padding=3,
            bias=0,
        )
        layers, groups = [stem], []
        for stage in range(4):
            for number in range(p[f"d{stage + 1}"]):
                start = len(layers)
                stride = 2 if stage and not number else 1
                layers += _residual_block(
                    output_shape(layers[-1]),
                    p["width"] * 2**stage,
                    stride,
                    bottleneck,
                    f"stage{stage + 1}.{number}",
                )
                groups.append((start, len(layers)))
        shape = output_shape(layers[-1])
        mean = make_layer("pool", (FLATTEN,), fn="adaptive_avg", kernel=(1, 1), shape=shape)
        return [*layers, replace(mean, name="pool"), _linear(shape[0], CLASSES, "fc")], groups

    return make


def _residual_block(
    shape: Shape, width: int, stride: int, bottleneck: bool, name: str
) -> list[Layer]:
    """Convolutions with norms, a projection where the shape changes, the sum and its activation."""
    cin, *space = shape
    cout = 4 * width if bottleneck else width
    plan = [(1, 1), (3, stride), (1, 1)] if bottleneck else [(3, stride), (3, 1)]
    widths = [width] * (len(plan) - 1) + [cout]
    layers: list[Layer] = []
    channels = cin
    for number, ((kernel, step), out) in enumerate(zip(plan, widths, strict=False), start=1):
        tail = (NORM,) if number == len(plan) else (NORM, RELU)
        sizes = {"kernel": kernel, "stride": step, "padding": kernel // 2, "bias": 0}
        layers.append(_conv2d(channels, out, space, f"{name}.conv{number}", tail, **sizes))
        channels, space = out, list(output_shape(layers[-1])[1:])
    back = len(plan) + 1
    if stride != 1 or cin != cout:
        project = _conv2d(
            cin, cout, shape[1:], f"{name}.project", (NORM,), kernel=1, stride=stride, bias=0
        )
        layers.append(replace(project, reads=(back,)))
        reads = (2, 1)
    else:
        reads = (1, back)
    plus = make_layer("elementwise", (RELU,), fn="add", inputs=2, shape=(cout, *space))
    return [*layers, replace(plus, name=f"{name}.add", reads=reads, join="add")]


_IMAGE = Input((3, 96, 96))


def _resnet_family(blocks: tuple[int, int, int, int], bottleneck: bool) -> Family:
    params = {"width": 64, **{f"d{stage}": count for stage, count in enumerate(blocks, start=1)}}
    block = "three convolutions (1x1, 3x3, 1x1)" if bottleneck else "two 3x3 convolutions"
    about = f"residual blocks of {block}: base WIDTH, blocks of each stage D1,D2,D3,D4"
    return Family(params, _IMAGE, 32, _make_resnet(bottleneck), about, {})


FAMILIES: dict[str, Family] = {
    "lenet5": Family(
        {"c1": 6, "c2": 16, "f1": 120, "f2": 84},
        Input((1, 28, 28)),
        10,
        _make_lenet5,
        "two 5x5 convolutions with pooling, three linears: channels C1,C2 and widths F1,F2",
        {},
    ),
    "cnn5": Family(
        {"c1": 64, "c2": 128, "c3": 256, "c4": 512},
        _IMAGE,
        32,
        _make_cnn5,
        "four 3x3 convolutions with ReLU and pooling, one linear: channels C1,C2,C3,C4",
        {},
    ),
    "har": Family(
        {"c1": 64, "c2": 128, "c3": 128, "f1": 128},
        Input((9, 128)),
        32,
        _make_har,
        "activity recognition from 9 sensors: three 1-D convolutions C1,C2,C3, linear F1",
        {},
    ),
    "lstm": Family(
        {"hidden": 128, "depth": 1},
        Input((32,), VOCABULARY),
        32,
        _make_lstm,
        "tokens, embedding and LSTM of the same width, last state, linear: HIDDEN,DEPTH",
        {},
    ),
    "transformer": Family(
        {"width": 256, "depth": 4},
        Input((64,), VOCABULARY),
        32,
        _make_transformer,
        "encoder with 4 heads for classification, no position embedding: WIDTH (times 4), DEPTH",
        {"width": HEADS},
    ),
    "resnet18": _resnet_family((2, 2, 2, 2), bottleneck=False),
    "resnet34": _resnet_family((3, 4, 6, 3), bottleneck=False),
    "resnet50": _resnet_family((3, 4, 6, 3), bottleneck=True),
}
