"""Hold the table of families, one row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from joulecast.families.architectures import (
    HEADS,
    Architecture,
    make_alexnet,
    make_cnn5,
    make_densenet,
    make_googlenet,
    make_har,
    make_image_resnet,
    make_lenet5,
    make_lstm,
    make_mobilenetv1,
    make_mobilenetv2,
    make_proxylessnas,
    make_resnet,
    make_shufflenetv2,
    make_squeezenet,
    make_transformer,
)
from joulecast.families.draft import NetworkDraft
from joulecast.operators import Shape
from joulecast.records import Input, Network
from joulecast.system.errors import NetError

VOCABULARY = 10_000
_IMAGE = Input((3, 96, 96))
_LARGE_IMAGE = Input((3, 224, 224))
# nn-Meter and DeepEn2023 draw the channels of their variants so.
_AROUND_ORIGINAL = (0.2, 1.8)
_LEAST_KERNEL = 3


@dataclass(frozen=True)
class Family:
    """A row of ``FAMILIES``.

    Attributes:
        params: Names of the parameters with the values of the original network.
        input: Default input; its vocabulary is above 0 for tokens.
        batch: Default batch size.
        architecture: Adds the layers of a member to a draft.
        description: One line, with the names of the parameters in capitals.
        steps: Parameters that must be multiples of a number.
        fixed: Parameters that are the same in all random members.
        share_range: The smallest and largest value of random members, as shares of the original's;
            None draws from 1 to the original, as the AMPERE paper does.
        kernels: Parameters that are sizes of convolution kernels: odd numbers, and random members
            have the original one, the next smaller or the next larger one, but at least 3.
    """

    params: Mapping[str, int]
    input: Input
    batch: int
    architecture: Architecture
    description: str
    steps: Mapping[str, int] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    share_range: tuple[float, float] | None = None
    kernels: tuple[str, ...] = ()

    def list_values(self, key: str, original: int) -> range:
        """Return the values of a parameter that random members have, around an original one."""
        if key in self.fixed:
            return range(original, original + 1)
        if key in self.kernels:
            return range(min(original, max(_LEAST_KERNEL, original - 2)), original + 3, 2)
        step = self.steps.get(key, 1)
        low, high = self.share_range or (0.0, 1.0)
        least = max(1, -(-int(low * original) // step))
        return range(step * least, max(step * least, int(high * original)) + 1, step)


def _make_resnet_family(blocks: tuple[int, int, int, int], has_bottleneck: bool) -> Family:
    params = {"width": 64, **{f"d{stage}": count for stage, count in enumerate(blocks, start=1)}}
    block = "three convolutions (1x1, 3x3, 1x1)" if has_bottleneck else "two 3x3 convolutions"
    return Family(
        params,
        _IMAGE,
        32,
        make_resnet(has_bottleneck),
        f"residual blocks of {block}: base WIDTH, number of blocks of each stage D1,D2,D3,D4",
    )


def _make_image_family(
    architecture: Architecture,
    title: str,
    *groups: tuple[str, str, tuple[int, ...]],
    steps: Mapping[str, int] | None = None,
) -> Family:
    """Return a classifier of large images whose random members have channels around its own.

    A group of parameters has a meaning, the name of its first parameter, and the original values.
    """
    params: dict[str, int] = {}
    meanings = []
    for meaning, first, values in groups:
        names = [f"{first[0]}{number}" for number, _ in enumerate(values, int(first[1:]))]
        params.update(zip(names, values, strict=True))
        meanings.append(f"{meaning} {','.join(names).upper()}")
    return Family(
        params,
        _LARGE_IMAGE,
        32,
        architecture,
        f"{title}: {', '.join(meanings)}",
        steps or {},
        fixed=tuple(name for name in params if name.startswith("d")),
        share_range=_AROUND_ORIGINAL,
        kernels=tuple(name for name in params if name.startswith("k")),
    )


IMAGE_FAMILIES: dict[str, Family] = {
    "alexnet": _make_image_family(
        make_alexnet,
        "AlexNet",
        ("channels", "c1", (64, 192, 384, 256, 256)),
        ("linear layers", "f1", (4096, 4096)),
        ("kernel sizes", "k1", (11, 5, 3, 3, 3)),
    ),
    "densenet": _make_image_family(
        make_densenet,
        "DenseNet-121",
        ("first convolution", "c0", (64,)),
        ("growth of each stage", "g1", (32,) * 4),
        ("kernel sizes", "k0", (7, 3, 3, 3, 3)),
        ("blocks", "d1", (6, 12, 24, 16)),
    ),
    "googlenet": _make_image_family(
        make_googlenet,
        "GoogLeNet",
        ("channels", "c1", (64, 64, 192)),
        ("of Inception blocks", "i1", (256, 480, 512, 512, 512, 528, 832, 832, 1024)),
        ("kernel sizes", "k1", (7, 3, 3, 3)),
    ),
    "mobilenetv1": _make_image_family(
        make_mobilenetv1,
        "MobileNet V1",
        ("channels", "c0", (32, 64, 128, 128, 256, 256, *(512,) * 6, 1024, 1024)),
        ("kernel sizes by image size", "k1", (3,) * 5),
    ),
    "mobilenetv2": _make_image_family(
        make_mobilenetv2,
        "MobileNet V2",
        ("channels", "c0", (32, 16, 24, 32, 64, 96, 160, 320, 1280)),
        ("kernel sizes of stages", "k1", (3,) * 7),
    ),
    "proxylessnas": _make_image_family(
        make_proxylessnas,
        "ProxylessNAS (Mobile)",
        ("channels", "c0", (32, 16, 32, 40, 80, 96, 192, 320, 1280)),
        ("kernel sizes of blocks", "k1", (3, 5, 3, 7, 3, 5, 5, 7, *(5,) * 7, *(7,) * 5)),
    ),
    "resnet": _make_image_family(
        make_image_resnet,
        "ResNet-18 of large images",
        ("channels", "c0", (64, 64, 128, 256, 512)),
        ("kernel sizes", "k0", (7, 3, 3, 3, 3)),
    ),
    "shufflenetv2": _make_image_family(
        make_shufflenetv2,
        "ShuffleNet V2 1x, with even C2, C3 and C4",
        ("channels", "c1", (24, 116, 232, 464, 1024)),
        ("kernel sizes", "k2", (3, 3, 3)),
        steps={"c2": 2, "c3": 2, "c4": 2},
    ),
    "squeezenet": _make_image_family(
        make_squeezenet,
        "SqueezeNet 1.0",
        ("first convolution", "c0", (96,)),
        ("squeezing", "s1", (16, 16, 32, 32, 48, 48, 64, 64)),
        ("expanding", "e1", (64, 64, 128, 128, 192, 192, 256, 256)),
        ("kernel sizes", "k0", (7, 3, 3, 3)),
    ),
}
"""The families of DeepEn2023's dataset: 1,000 classes, 3 x 224 x 224, as torchvision has them."""

FAMILIES: dict[str, Family] = {
    "lenet5": Family(
        {"c1": 6, "c2": 16, "f1": 120, "f2": 84},
        Input((1, 28, 28)),
        10,
        make_lenet5,
        "two 5x5 convolutions with pooling, three linear layers: channels C1,C2, widths F1,F2",
    ),
    "cnn5": Family(
        {"c1": 64, "c2": 128, "c3": 256, "c4": 512},
        _IMAGE,
        32,
        make_cnn5,
        "four 3x3 convolutions with ReLU and pooling, one linear layer: channels C1,C2,C3,C4",
    ),
    "har": Family(
        {"c1": 64, "c2": 128, "c3": 128, "f1": 128},
        Input((9, 128)),
        32,
        make_har,
        "activity recognition from 9 sensors: three 1-D convolutions C1,C2,C3, linear layer F1",
    ),
    "lstm": Family(
        {"hidden": 128, "depth": 1},
        Input((32,), VOCABULARY),
        32,
        make_lstm,
        "embedding and LSTM of the same width, last state, linear layer: HIDDEN,DEPTH",
    ),
    "transformer": Family(
        {"width": 256, "depth": 4},
        Input((64,), VOCABULARY),
        32,
        make_transformer,
        "classifier with 4 heads, no position embedding: WIDTH (a multiple of 4), DEPTH",
        {"width": HEADS},
    ),
    "resnet18": _make_resnet_family((2, 2, 2, 2), has_bottleneck=False),
    "resnet34": _make_resnet_family((3, 4, 6, 3), has_bottleneck=False),
    "resnet50": _make_resnet_family((3, 4, 6, 3), has_bottleneck=True),
    **IMAGE_FAMILIES,
}


WIDEST = 65_536
DEEPEST = 1_000
LARGEST_KERNEL = 63
_MOST_KEPT, _MOST_KEPT_LAYERS = 2048, 300
_KEPT: dict[tuple[str, tuple[tuple[str, int], ...], Shape | None], Network] = {}


def is_family(name: str) -> bool:
    """Return whether the name of a network begins with the name of a family."""
    return name.split(":", 1)[0] in FAMILIES


def make_family(name: str, input_shape: Shape | None = None) -> Network:
    """Return the network with a name such as ``cnn5:16,32`` or ``transformer:width=64,depth=2``.

    Raises:
        NetError: The family, a parameter, its value or the input shape is invalid.
    """
    return build_family(name.partition(":")[0], parse_params(name), input_shape)


def parse_params(name: str) -> dict[str, int]:
    """Return all parameters of the network with a name; those left out are the original's.

    Raises:
        NetError: There is no such family or parameter, or a value is not an integer.
    """
    family_name, _, text = name.partition(":")
    if family_name not in FAMILIES:
        raise NetError(f"unknown family {family_name!r}; known families: {', '.join(FAMILIES)}")
    params = dict(FAMILIES[family_name].params)
    names = list(params)
    for position, word in enumerate(text.split(",") if text else []):
        key, equals, value = word.rpartition("=")
        if not equals:
            if position >= len(names):
                raise NetError(f"{name}: give at most {len(names)} values ({', '.join(names)})")
            key = names[position]
        if key not in params:
            raise NetError(f"{name}: unknown parameter {key!r}; give {', '.join(names)}")
        try:
            params[key] = int(value)
        except ValueError:
            raise NetError(f"{name}: {key} is {value!r}; give an integer") from None
    return params


def build_family(
    family_name: str, params: Mapping[str, int], input_shape: Shape | None = None
) -> Network:
    """Return the member of a family with the given parameters.

    Raises:
        NetError: A parameter or the input shape is invalid.
    """
    key = (family_name, tuple(params.items()), input_shape)
    found = _KEPT.get(key)
    if found is None:
        family = FAMILIES[family_name]
        _check_params(family_name, family, params)
        sample = family.input
        if input_shape is not None:
            sample = _make_input(family_name, family, input_shape)
        draft = NetworkDraft(sample.shape, sample.vocabulary)
        family.architecture(params, draft)
        found = draft.finish(name_member(family_name, params))
        # A search builds the same members again: to estimate, to compare and to show them. Deep
        # ones take megabytes each, and many of them must not fill the memory of a server.
        if len(found.layers) <= _MOST_KEPT_LAYERS:
            if len(_KEPT) >= _MOST_KEPT:
                _KEPT.clear()
            _KEPT[key] = found
    return found


def name_member(family_name: str, params: Mapping[str, int]) -> str:
    """Return the name of a member, such as ``cnn5:16,32,64,128``."""
    values = (str(params[key]) for key in FAMILIES[family_name].params)
    return f"{family_name}:{','.join(values)}"


def count_members(family_name: str) -> int:
    """Return the number of distinct random members that a family has."""
    family = FAMILIES[family_name]
    return math.prod(len(family.list_values(*one)) for one in family.params.items())


def draw_family(
    family_name: str, draw: Callable[[int, int], int], input_shape: Shape | None = None
) -> Network:
    """Return a random member: every parameter is uniform over the values that its family has.

    Args:
        family_name: Name of a family; parameters in it take the place of the original's.
        draw: Function of two bounds that returns a random integer, both bounds included.
        input_shape: Shape of one sample; the family's default if None.
    """
    bare_name = family_name.partition(":")[0]
    params = parse_params(family_name)
    family = FAMILIES[bare_name]
    for key, original in params.items():
        values = family.list_values(key, original)
        params[key] = original if key in family.fixed else values[draw(1, len(values)) - 1]
    return build_family(bare_name, params, input_shape)


def _check_params(name: str, family: Family, params: Mapping[str, int]) -> None:
    for key, value in params.items():
        step = family.steps.get(key, 1)
        if key in family.kernels and not (0 < value <= LARGEST_KERNEL and value % 2):
            raise NetError(
                f"{name}: {key} is {value}; give an odd number of at most {LARGEST_KERNEL}"
            )
        # Names of depths and numbers of blocks begin with d; all other parameters are widths.
        most = DEEPEST if key.startswith("d") else WIDEST
        if not step <= value <= most or value % step:
            number = f"a multiple of {step}" if step > 1 else "an integer"
            raise NetError(
                f"{name}: {key} is {value}; give {number} of at least {step} and at most {most:,}"
            )


def _make_input(name: str, family: Family, shape: Shape) -> Input:
    expected = len(family.input.shape)
    if max(shape, default=0) > WIDEST:
        raise NetError(f"{name}: the input has the size {max(shape)}; give at most {WIDEST:,}")
    if len(shape) != expected or min(shape, default=0) < 1:
        example = "x".join(map(str, family.input.shape))
        given = "x".join(map(str, shape)) or "none"
        raise NetError(f"{name}: the input is {given}; give {expected} sizes, such as {example}")
    return replace(family.input, shape=shape)
