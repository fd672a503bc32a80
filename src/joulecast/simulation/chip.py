"""Draw the constants of a simulated device from a seed, and compute the true cost of a step on it.

The cost is a pure function of the Chip and the Trial, without noise. It follows the kernels of a
step as hardware would and shares no formula with any estimator.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from joulecast.operators import Work, find_kind, input_shape, layer_work, output_shape
from joulecast.operators.kind import WEIGHT_BYTES
from joulecast.records import Layer, Setup, Sizes, Trial
from joulecast.system.errors import InputError


class Chip:
    """The constants of one simulated device; the same seed gives the same device."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"chip {seed}")
        self.seed = seed
        self.rate_flops = 4e12 * 4 ** rng.random()
        self.bandwidth_bytes_per_s = self.rate_flops / rng.uniform(35.0, 60.0)
        self.compute_w = self.rate_flops * rng.uniform(8e-12, 13e-12)
        self.memory_w = self.bandwidth_bytes_per_s * rng.uniform(120e-12, 200e-12)
        self.idle_w = (self.compute_w + self.memory_w) * rng.uniform(0.15, 0.25)
        # Arithmetic rate of each precision over that of fp32.
        half = rng.uniform(5.0, 10.0)
        self.gains = {"fp32": 1.0, "tf32": rng.uniform(3.0, 5.0), "bf16": half, "fp16": half * 1.02}
        self.gains |= {"int8": half * 2.0, "int8_dynamic": half * 1.6}
        self.latency_s = rng.uniform(1e-6, 2e-6)
        self.cache_bytes = 2.0 ** rng.uniform(21, 24)
        # Share of an activation in the cache that needs no memory traffic.
        self.reuse_share = rng.uniform(0.2, 0.5)
        # Tiles that run at once, and their rows.
        self.workers = rng.choice((32, 40, 48, 64))
        self.tile_rows = rng.choice((32, 64, 128))
        # Share of a partly empty last wave that costs as much as a full one.
        self.wave_share = rng.uniform(0.3, 0.7)
        # Share of the shorter of arithmetic and memory time that hides behind the longer.
        self.overlap = rng.uniform(0.7, 0.9)
        self.asleep_w = self.idle_w * rng.uniform(0.4, 0.7)
        self.limit_w = (self.compute_w + self.memory_w + self.idle_w) * rng.uniform(0.8, 0.95)
        # Host time before the first launch of a step, of each launch, and to replay a graph; the
        # device idles between two launches, in a graph a tenth as long.
        self.begin_s = rng.uniform(30e-6, 60e-6)
        self.launch_s = rng.uniform(4e-6, 8e-6)
        self.gap_s = rng.uniform(0.8e-6, 1.6e-6)
        self.replay_s = rng.uniform(8e-6, 15e-6)
        # How much host and device delay each other when they take equally long.
        self.contention = rng.uniform(0.03, 0.06)
        # Share of energy that a device at its power limit loses to heat.
        self.leak = rng.uniform(0.01, 0.04)


class OperatorTuning:
    """How a device runs one kind of operator in one stage: with small or with large tiles."""

    def __init__(self, seed: int, kind: str, stage: str) -> None:
        rng = random.Random(f"habit {seed} {kind} {stage}")
        # Share of the arithmetic rate on deep products; half of it is reached at ``depth_half``.
        self.coarse_share = rng.uniform(0.5, 0.8)
        # Channels per tile.
        self.fine_tile = rng.choice((4, 8))
        self.coarse_tile = rng.choice((8, 16, 32))
        self.fine_share = self.coarse_share * rng.uniform(0.65, 0.85)
        self.depth_half = rng.uniform(8.0, 24.0)
        # Share of the rate for groups too narrow for tiles.
        self.direct_share = rng.uniform(0.05, 0.15)
        # Large tiles are used from this width and depth on.
        self.width_from = rng.randint(20, 80)
        self.depth_from = rng.randint(8, 40)
        # Host time of a launch, relative to ``Chip.launch_s``.
        self.issue_factor = rng.uniform(0.8, 1.3)


draw_tuning = functools.lru_cache(maxsize=4096)(OperatorTuning)


_COMPILED_ISSUE_SHARE = 0.4
# Kernels of each stage that may run alone; the loss is between forward and backward.
_STAGES = {
    "step": ("forward", "loss", "backward", "update"),
    "forward": ("forward", "loss"),
    "backward": ("loss", "backward"),
    "update": ("update",),
}
_ITEM_BYTES = {"bf16": 2, "fp16": 2, "int8": 1}


class StepCost(NamedTuple):
    """Energy and duration of one step, and the host time within it."""

    energy_j: float
    duration_s: float
    issue_s: float


def compute_step_cost(chip: Chip, trial: Trial) -> StepCost:
    """Return the cost of one step without noise.

    The empty network costs one second of idling at active clocks.
    """
    if not trial.network.layers:
        return StepCost(chip.idle_w, 1.0, 0.0)
    kernels = _list_kernels(trial)
    if not kernels:
        stage, phase = trial.execution.stage, trial.setup.phase
        raise InputError(f"there is no {stage} to run in {phase}: choose another stage")
    costs = [_cost_kernel(chip, kernel, trial.setup) for kernel in kernels]
    costs += _list_host_calls(chip, trial)
    if trial.setup.compiled:
        # Compiled code issues kernels without PyTorch's dispatcher.
        costs = [cost._replace(issue_s=_COMPILED_ISSUE_SHARE * cost.issue_s) for cost in costs]
    return _combine_costs(chip, costs * trial.execution.copies, trial.mode == "graph")


def list_operators(layer: Layer, setup: Setup) -> Iterator[Layer]:
    """Yield the operators of a layer, each as a layer of its own."""
    if layer.parts:
        for part in layer.parts:
            yield from list_operators(part, setup)
        return
    alone = replace(layer, tail=(), name="")
    for op in (*layer.tail, None):
        yield alone
        if op is not None:
            # Gradients reach the operators after trainable weights.
            flows = alone.input_grad or (layer.trains and layer_work(alone, setup).params > 0)
            sizes = Sizes({**op.sizes, "shape": output_shape(alone)})
            alone = replace(alone, kind=op.kind, sizes=sizes, input_grad=flows, transposed=())


@dataclass(frozen=True)
class _Kernel:
    """One operator in one stage: its work, and rows, width and depth of its matrix product.

    Attributes:
        is_grouped: Channels are in groups too narrow for tiles.
        inflow_bytes: Bytes that it reads from the operator before it.
    """

    kind: str
    stage: str
    work: Work
    rows: int = 1
    width: int = 1
    depth: int = 1
    is_grouped: bool = False
    inflow_bytes: float = 0.0


class _KernelCost(NamedTuple):
    """Energy and time of a kernel on the device, and the host time to issue it."""

    energy_j: float
    device_s: float
    issue_s: float
    launches: int


def _list_kernels(trial: Trial) -> list[_Kernel]:
    """Return the kernels of one step of one copy in order, including the loss.

    Every batch of a step runs forward and backward; checkpointed layers run forward once more.
    """
    setup, execution = trial.setup, trial.execution
    one_batch, batches = replace(setup, accumulate=1), max(1, setup.accumulate)
    found: dict[str, list[_Kernel]] = {stage: [] for stage in _STAGES["step"]}
    operators: list[Layer] = []
    for layer in trial.network.layers:
        for place, op in enumerate(list_operators(layer, setup)):
            kernels = _make_kernels(op, one_batch, is_first=not operators, follows=place > 0)
            for stage, more in kernels.items():
                found[stage] += more
            operators.append(op)
    if operators and setup.phase == "train" and execution.upstream == "loss":
        moved = 6.0 * setup.batch * math.prod(output_shape(operators[-1])) * 4
        found["loss"].append(_Kernel("loss:" + setup.loss, "forward", Work(0.0, moved, 4)))
    for stage in ("forward", "loss", "backward"):
        found[stage] *= batches
    if setup.accumulate != 1:
        # Gradients are added to those of earlier batches.
        params = [layer_work(op, one_batch).params for op in operators if op.trains]
        works = [Work(0.0, 3.0 * WEIGHT_BYTES * count, 1) for count in params if count]
        added = [_Kernel("accumulate", "backward", work) for work in works]
        found["backward"] += added * max(1, batches - 1)
    if not setup.accumulate:
        found["update"] = []
    return [kernel for stage in _STAGES[execution.stage] for kernel in found[stage]]


def _make_kernels(
    op: Layer, setup: Setup, *, is_first: bool, follows: bool
) -> dict[str, list[_Kernel]]:
    """Return the kernels of an operator, which may follow another of its layer, by stage."""
    work = layer_work(replace(op, recomputed=False), setup)
    grid = _find_product_shape(op, setup.batch)
    item_bytes = _ITEM_BYTES.get(setup.precision, 4)
    inflow = 0.0 if is_first else float(setup.batch * math.prod(input_shape(op)) * item_bytes)
    is_fused = setup.compiled and follows and not work.forward.flops
    found: dict[str, list[_Kernel]] = {"forward": [], "backward": [], "update": []}
    for stage in found:
        part: Work = getattr(work, stage)
        if not part.launches or not (part.size_bytes or part.flops):
            continue
        if is_fused and stage != "update":
            # It reads registers instead of memory, in the kernel of the operator before it.
            part = replace(part, size_bytes=part.size_bytes / 2, launches=0)
        hot = inflow if stage == "forward" else 0.0
        found[stage].append(_Kernel(op.kind, stage, part, *grid, inflow_bytes=hot))
    if op.recomputed and found["backward"]:
        found["backward"] = [*found["forward"], *found["backward"]]
    return found


def _find_product_shape(layer: Layer, batch: int) -> tuple[int, int, int, bool]:
    """Return rows, width and depth of an operator's product, and whether groups are narrow."""
    sizes, out = layer.sizes, output_shape(layer)
    row = find_kind(layer.kind)
    width = int(sizes.get(row.outer_width, out[0] if out else 1))
    depth = int(sizes.get(row.inner_width, width))
    if row.is_recurrent:
        return batch, width, depth, False
    rows = max(1, batch * math.prod(out) // width)
    groups = int(sizes.get("groups", 1)) if row.is_convolution else 1
    return rows, max(1, width // groups), max(1, depth // groups), groups > 1 and width < 8 * groups


def _list_host_calls(chip: Chip, trial: Trial) -> list[_KernelCost]:
    """Return the host time of what launches nothing: calls between layers, further batches."""
    totals, stage = trial.network.totals, trial.execution.stage
    calls = totals.between if totals is not None and stage in ("step", "forward") else 0
    ways = 2 if trial.setup.phase == "train" and stage == "step" else 1
    calls *= max(1, trial.setup.accumulate)
    each_s = 0.5 * chip.launch_s * draw_tuning(chip.seed, "between", "forward").issue_factor
    # Every further batch of a step begins anew, without an optimizer.
    begin_s = 0.7 * chip.begin_s * max(0, trial.setup.accumulate - 1)
    issue_s = calls * ways * each_s + begin_s
    return [_KernelCost(0.0, 0.0, issue_s, 0)] if issue_s else []


def _cost_kernel(chip: Chip, kernel: _Kernel, setup: Setup) -> _KernelCost:
    tuning = draw_tuning(chip.seed, kernel.kind, kernel.stage)
    arithmetic_s, filled = _time_arithmetic(chip, tuning, kernel, setup)
    hot = max(0.0, 1.0 - kernel.inflow_bytes / chip.cache_bytes) * kernel.inflow_bytes
    moved = kernel.work.size_bytes - min(chip.reuse_share * hot, kernel.work.size_bytes / 2)
    launches = kernel.work.launches
    memory_s = moved / chip.bandwidth_bytes_per_s + chip.latency_s * launches
    shorter, longer = sorted((arithmetic_s, memory_s))
    device_s = longer + (1 - chip.overlap) * shorter
    # Power is not proportional to activity: a half-busy unit draws more than half.
    power_w = chip.idle_w + chip.compute_w * filled * (arithmetic_s / device_s) ** 0.8
    power_w += chip.memory_w * (moved / chip.bandwidth_bytes_per_s / device_s) ** 0.7
    issue_s = launches * chip.launch_s * tuning.issue_factor
    return _KernelCost(power_w * device_s, device_s, issue_s, launches)


def _time_arithmetic(
    chip: Chip, tuning: OperatorTuning, kernel: _Kernel, setup: Setup
) -> tuple[float, float]:
    """Return seconds and filled share of the algorithm that the device chooses."""
    if not kernel.work.flops:
        return 0.0, 1.0
    deep = kernel.depth / (kernel.depth + tuning.depth_half)
    rate = chip.rate_flops * chip.gains[setup.precision] * deep
    if kernel.is_grouped:
        return kernel.work.flops / (chip.rate_flops * tuning.direct_share), 1.0
    fine = _time_algorithm(chip, kernel, rate * tuning.fine_share, tuning.fine_tile)
    coarse = _time_algorithm(chip, kernel, rate * tuning.coarse_share, tuning.coarse_tile)
    if setup.cudnn_benchmark:
        return min(fine, coarse)
    wide = kernel.width >= tuning.width_from and kernel.depth >= tuning.depth_from
    return coarse if wide else fine


def _time_algorithm(chip: Chip, kernel: _Kernel, rate: float, tile: int) -> tuple[float, float]:
    """Return the seconds of arithmetic, and the share of workers that it fills."""

    def round_up(size: int, tile: int) -> float:
        return tile * math.ceil(size / tile) / size

    padded = round_up(kernel.width, tile) * round_up(kernel.depth, max(4, tile // 2))
    tiles = math.ceil(kernel.rows / chip.tile_rows) * math.ceil(kernel.width / tile)
    waves = tiles / chip.workers
    paid = (1 - chip.wave_share) * max(1.0, waves) + chip.wave_share * math.ceil(waves)
    return kernel.work.flops * padded / rate * paid / waves, min(1.0, waves)


def _combine_costs(chip: Chip, costs: list[_KernelCost], graph: bool) -> StepCost:
    """Combine host and device: the slower one decides, and a waiting device idles."""
    pauses_s = sum(cost.launches for cost in costs) * chip.gap_s * (0.1 if graph else 1.0)
    energy_j = sum(cost.energy_j for cost in costs) + pauses_s * chip.idle_w
    device_s = sum(cost.device_s for cost in costs) + pauses_s
    # A device above its power limit lowers its clocks: slower, with a little less energy.
    over = max(0.0, energy_j / device_s / chip.limit_w - 1.0)
    energy_j, device_s = energy_j * (1 - 0.3 * over / (1 + over)), device_s * (1 + 0.6 * over)
    issue_s = chip.replay_s if graph else chip.begin_s + sum(cost.issue_s for cost in costs)
    shorter, longer = sorted((issue_s, device_s))
    duration_s = longer + (0.0 if graph else chip.contention * shorter * shorter / longer)
    energy_j += chip.idle_w * (duration_s - device_s)
    heat = chip.leak * energy_j / duration_s / chip.limit_w
    return StepCost(energy_j * (1 + heat), duration_s, issue_s)
