"""Hold the table of families, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joulecast.families.architectures import (
    HEADS,
    Architecture,
    make_cnn5,
    make_har,
    make_lenet5,
    make_lstm,
    make_resnet,
    make_transformer,
)
from joulecast.records import Input

VOCABULARY = 10_000
_IMAGE = Input((3, 96, 96))


@dataclass(frozen=True)
class Family:
    """A row of ``FAMILIES``.

    Attributes:
        params: Names of the parameters with the values of the original network, which are also
            the largest values of random members.
        input: Default input; its vocabulary is above 0 for tokens.
        batch: Default batch size.
        architecture: Function from parameters and input to layers and groups.
        description: One line, with the names of the parameters in capitals.
        steps: Parameters that must be multiples of a number.
        fixed: Parameters that are the same in all random members.
    """

    params: Mapping[str, int]
    input: Input
    batch: int
    architecture: Architecture
    description: str
    steps: Mapping[str, int] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()


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
}
