"""Draw the networks that an atlas is for, with setups, and split them into distinct pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from joulecast.atlas.architectures import ARCHITECTURES, draw_network
from joulecast.atlas.device_scale import GIB, DeviceScale, assume_scale
from joulecast.atlas.draw import SizeDraw
from joulecast.estimators.additive.layers import SetupLayer, set_up_layer
from joulecast.kinds import layer_work, output_shape
from joulecast.records import Layer, Network, Setup
from joulecast.variants import BLOCK, Part, split_blocks, split_network

# Devices of this memory are the default: what fills one also shows the largest layers of others.
_DEFAULT_MEMORY_BYTES = 80 * GIB
_LARGEST_BATCH = 4096
# Networks have few blocks here, so a whole one is larger and slower by about this factor.
_DEPTH_FACTOR = 4
_LONGEST_STEP_S = 1.0
# Batches of networks that fit no device, which matter all the same.
_SMALL_BATCH = 4
_ADAMW_SHARE = 0.65
_SINGLE_SHARE = 0.5
_IMAGE_OUTPUTS = ("gan generator", "diffusion unet")
# Architectures of few layers take more turns: each network shows only one or two pieces.
_TURNS = (*ARCHITECTURES, "recurrent", "mlp", "recurrent", "torch encoder", "recurrent")
# A label has at least this many pieces in every precision, copied from another one if need be.
_FEWEST = 4
_COPY_SHARE = 0.3
# FLOPs that take as long as moving a byte, about.
_FLOPS_PER_BYTE = 100.0
# Bytes that take as long to move as a launch, about: inference is often nothing but launches.
_LAUNCH_BYTES = 5e6


@dataclass(frozen=True)
class PopulationMember:
    """A network of a population and how it is trained."""

    network: Network
    setup: Setup


@dataclass(frozen=True)
class PopulationPiece:
    """A distinct piece of a population.

    Attributes:
        part: How to run it in isolation.
        work_share: Its share of the work of the population, in which every network counts alike.
    """

    piece: SetupLayer
    part: Part
    setup: Setup
    work_share: float

    @property
    def is_block(self) -> bool:
        """Whether it is a whole repeated block."""
        return self.part.role == BLOCK


@dataclass(frozen=True)
class Population:
    """Random networks of all architectures."""

    members: tuple[PopulationMember, ...]

    @cached_property
    def pieces(self) -> tuple[PopulationPiece, ...]:
        """The distinct leaves and blocks of all networks, in order of appearance."""
        found: dict[tuple[Part, Setup], float] = {}
        for member in self.members:
            for key, share in _count_parts(member).items():
                found[key] = found.get(key, 0.0) + share / len(self.members)
        pieces: dict[str, PopulationPiece] = {}
        for (part, setup), share in found.items():
            piece = set_up_layer(part, setup)
            if piece.key in pieces:
                share += pieces[piece.key].work_share
            if piece.flops or piece.size_bytes:
                pieces[piece.key] = PopulationPiece(piece, part, setup, share)
        precisions = sorted({member.setup.precision for member in self.members})
        return _add_missing_precisions(list(pieces.values()), precisions)


def draw_population(
    seed: int, count: int, scale: DeviceScale | None = None, phase: str = "train"
) -> Population:
    """Return random networks with setups; the first ones are the same for every count.

    Args:
        seed: Equal seeds give equal populations.
        count: Number of networks. They take turns among the architectures.
        scale: What is assumed about the device: its precisions, and what fills it.
        phase: ``train`` or ``inference``; half of the networks then run one sample at a time.
    """
    scale = scale or assume_scale(is_gpu=True, memory_bytes=_DEFAULT_MEMORY_BYTES)
    members = []
    for index in range(count):
        # Precisions change with every round, and from one architecture to the next.
        turn, place = divmod(index, len(_TURNS))
        network = draw_network(_TURNS[place], f"{seed} {index}")
        draw_setup = _draw_setup if phase == "train" else _draw_inference_setup
        setup = draw_setup(network, f"{seed} {index}", scale, turn + place)
        members.append(PopulationMember(network, setup))
    return Population(tuple(members))


def _add_missing_precisions(
    pieces: Sequence[PopulationPiece], precisions: Sequence[str]
) -> tuple[PopulationPiece, ...]:
    """Return the pieces, and copies of leaves of labels that are rare in another precision."""
    groups: dict[str, list[PopulationPiece]] = {}
    for one in pieces:
        if not one.is_block:
            groups.setdefault(one.piece.label, []).append(one)
    found = {one.piece.key: one for one in pieces}
    counts = {label: len(group) for label, group in groups.items()}
    for label in sorted(groups):
        group = sorted(groups[label], key=lambda one: (one.piece.size_bytes, one.piece.key))
        spread = [group[round(at * (len(group) - 1) / _FEWEST)] for at in range(_FEWEST + 1)]
        for precision in precisions:
            for one in dict.fromkeys(spread):
                setup = replace(one.setup, precision=precision)
                piece = set_up_layer(one.part, setup)
                if piece.key not in found and counts.get(piece.label, 0) < _FEWEST:
                    counts[piece.label] = counts.get(piece.label, 0) + 1
                    share = _COPY_SHARE * one.work_share
                    found[piece.key] = PopulationPiece(piece, one.part, setup, share)
    return tuple(found.values())


def _draw_setup(network: Network, seed: str, scale: DeviceScale, turn: int) -> Setup:
    draw = SizeDraw(f"setup {seed}")
    precisions = sorted(scale.flops_per_s)
    precision = precisions[turn % len(precisions)]
    optimizer = "adamw" if draw.happens(_ADAMW_SHARE) else "sgd"
    # Cross-entropy over one class has no gradient.
    has_one = 1 in output_shape(network.layers[-1])
    loss = "mse" if has_one or network.name in _IMAGE_OUTPUTS else "cross_entropy"
    setup = Setup(1, precision=precision, optimizer=optimizer, loss=loss)
    most = _find_largest_batch(network, setup, scale)
    return Setup(draw.size(1, most), precision=precision, optimizer=optimizer, loss=loss)


def _draw_inference_setup(network: Network, seed: str, scale: DeviceScale, turn: int) -> Setup:
    draw = SizeDraw(f"setup {seed}")
    precisions = sorted(scale.flops_per_s)
    setup = Setup(1, phase="inference", precision=precisions[turn % len(precisions)])
    if draw.happens(_SINGLE_SHARE):
        return setup
    return replace(setup, batch=draw.size(1, _find_largest_batch(network, setup, scale)))


def _find_largest_batch(network: Network, setup: Setup, scale: DeviceScale) -> int:
    """Return the batch that fills the device's memory or takes a second, whichever is less."""
    sample_bytes, fixed_bytes, sample_s = 1.0, 0.0, scale.launch_s
    for layer, count in Counter(map(_keep_cost, network.layers)).items():
        work = layer_work(layer, setup)
        sample_bytes += count * work.forward.memory_bytes
        fixed_bytes += count * work.update.memory_bytes
        sample_s += count * scale.duration_s(work.forward + work.backward, setup.precision)
    free_bytes = scale.memory_bytes / _DEPTH_FACTOR - fixed_bytes
    most = min(free_bytes / sample_bytes, _LONGEST_STEP_S / _DEPTH_FACTOR / sample_s)
    return min(_LARGEST_BATCH, max(_SMALL_BATCH, int(most)))


def _keep_cost(layer: Layer) -> Layer:
    """Return what of a layer decides its cost: repeated layers become equal."""
    return Layer(layer.kind, layer.sizes, layer.tail, layer.trains, layer.input_grad)


def _count_parts(member: PopulationMember) -> dict[tuple[Part, Setup], float]:
    """Return the distinct leaves and blocks of a network with their shares of its work."""
    counts = Counter(_list_parts(member.network))
    costs = {part: count * _cost_part(part, member.setup) for part, count in counts.items()}
    total = sum(cost for part, cost in costs.items() if part.role != BLOCK)
    return {(part, member.setup): cost / max(total, 1.0) for part, cost in costs.items()}


def _list_parts(network: Network) -> Iterator[Part]:
    """Yield all leaves, then all blocks."""
    yield from (placed.part for placed in split_network(network))
    blocks = (placed.part for placed in split_blocks(network))
    yield from (part for part in blocks if part.role == BLOCK)


def _cost_part(part: Part, setup: Setup) -> float:
    work = set_up_layer(part, setup)
    launched_bytes = _LAUNCH_BYTES * work.launches if setup.phase == "inference" else 0.0
    return work.size_bytes + work.flops / _FLOPS_PER_BYTE + launched_bytes
