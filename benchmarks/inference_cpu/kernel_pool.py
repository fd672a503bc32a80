"""Draw the kernels that are measured: those of random networks, never those of the benchmark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from joulecast.campaign.atlas import load_networks
from joulecast.fusion import FusedKernel, find_fusion_table, list_kernels
from joulecast.kinds import find_kind
from joulecast.records import Layer, Network, Setup

RUNTIME = "onnxruntime"
SEED = 16
ARCHITECTURES = (
    "gpt",
    "resnet",
    "vit",
    "mobilenet",
    "bert",
    "convnext",
    "mlp",
    "speech transformer",
    "swin",
    "segformer",
    "conv1d",
    "torch encoder",
    "densenet",
    "mixer",
    "waveform encoder",
    "vgg",
    "grouped resnet",
    "small image resnet",
)
"""Classifiers, encoders and language models; no generators of images, mixtures or volumes."""
# What small networks on a processor run: about 15 ms at most.
_MOST_FLOPS, _MOST_BYTES = 1e9, 48e6
# Contractions below this take no time that matters.
_FEWEST_FLOPS = 1e5
# Kernels of each kind; contractions take nearly all of the time.
_COUNTS = {
    "fc": 110,
    "conv": 55,
    "conv+relu": 55,
    "attention": 50,
    "conv1d": 30,
    "dwconv": 30,
    "dwconv+relu": 30,
}
_OTHERS = 14


def draw_kernels(setup: Setup, seed: int = SEED) -> list[FusedKernel]:
    """Return random kernels, as many of each kind as the table above says."""
    pools: dict[str, dict[FusedKernel, None]] = {}
    for kernel in _list_pool(setup):
        pools.setdefault(kernel.kind, {}).setdefault(kernel)
    drawn = []
    for kind in sorted(pools):
        pool = [*pools[kind]]
        count = _COUNTS.get(kind, _OTHERS)
        drawn += random.Random(f"{seed} {kind}").sample(pool, min(count, len(pool)))
    return drawn


def _list_pool(setup: Setup) -> Iterator[FusedKernel]:
    table = find_fusion_table(RUNTIME, setup)
    networks = (one for one in load_networks() if one.name in ARCHITECTURES)
    for network in networks:
        for kernel in list_kernels(_fold_norms(network), setup, table):
            is_small = kernel.flops <= _MOST_FLOPS and kernel.size_bytes <= _MOST_BYTES
            is_tiny = 0 < kernel.flops < _FEWEST_FLOPS
            if is_small and not is_tiny and kernel.network.buildable:
                yield replace(kernel, count=1, layers=())


def _fold_norms(network: Network) -> Network:
    """Return a network without batch norms after convolutions: an exported file has none."""
    return replace(network, layers=tuple(map(_fold_norm, network.layers)))


def _fold_norm(layer: Layer) -> Layer:
    if (
        find_kind(layer.kind).is_convolution
        and layer.tail[:1]
        and layer.tail[0].kind == "batch_norm"
    ):
        return replace(layer, tail=layer.tail[1:])
    return layer
