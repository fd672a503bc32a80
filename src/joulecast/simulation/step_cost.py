"""What a step costs on a simulated device: the machine, its habits, and the walk over a step.

Takes a Chip and a Trial, gives a Cost, purely. Numbers of a machine come from its seed.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from joulecast.errors import InputError
from joulecast.kinds import Work, find_kind, input_shape, layer_work, output_shape
from joulecast.records import Layer, Setup, Sizes, Trial



class StepCost(NamedTuple):
    """What one step costs: joules, seconds, and the part of the host in them."""

    energy_j: float
    duration_s: float
    issue_s: float


@dataclass(frozen=True)
class Chip:
    """The numbers of one simulated device.

    Attributes:
        gains: Arithmetic rate of each precision over that of fp32.
        tile_rows: Rows of a tile; a machine runs ``workers`` tiles at once.
        wave_share: How much of the last, partly empty wave is paid in full.
        overlap: Share of the shorter of arithmetic and memory time that hides behind the longer.
        gap_s: Pause of the device between two launches; a graph has a tenth of it.
        contention: How much host and device hold each other up when they take equally long.
        leak: Share of energy that a device at its power limit loses to heat.
    """

    seed: int
    rate_flops: float
    gains: dict[str, float]
    bandwidth: float
    latency_s: float
    cache_bytes: float
    reuse_share: float
    workers: int
    tile_rows: int
    wave_share: float
    overlap: float
    idle_w: float
    asleep_w: float
    compute_w: float
    memory_w: float
    limit_w: float
    begin_s: float
    launch_s: float
    gap_s: float
    replay_s: float
    contention: float
    leak: float


@dataclass(frozen=True)
class Habit:
    """How a device runs one kind of operator: by a fine or a coarse algorithm.

    Attributes:
        fine_tile: Channels that a tile of the fine algorithm spans; likewise the coarse one.
        fine_share: Share of the arithmetic rate that it reaches on deep products.
        depth_half: Half of it is reached at this depth.
        direct_share: The same where groups leave no tiles.
        width_from: The coarse one is chosen from this width and ``depth_from`` on.
        issue_factor: Host time of a launch over the usual one.
    """

    fine_tile: int
    coarse_tile: int
    fine_share: float
    coarse_share: float
    depth_half: float
    direct_share: float
    width_from: int
    depth_from: int
    issue_factor: float


def draw_chip(seed: int) -> Chip:
    """The numbers of a device, the same for the same seed."""
    rng = random.Random(f"chip {seed}")
    rate = 4e12 * 4 ** rng.random()
    bandwidth = rate / rng.uniform(35.0, 60.0)
    compute_w = rate * rng.uniform(8e-12, 13e-12)
    memory_w = bandwidth * rng.uniform(120e-12, 200e-12)
    idle_w = (compute_w + memory_w) * rng.uniform(0.15, 0.25)
    half = rng.uniform(5.0, 10.0)
    return Chip(
        seed=seed,
        rate_flops=rate,
        gains={"fp32": 1.0, "tf32": rng.uniform(3.0, 5.0), "bf16": half, "fp16": half * 1.02},
        bandwidth=bandwidth,
        latency_s=rng.uniform(1e-6, 2e-6),
        cache_bytes=2.0 ** rng.uniform(21, 24),
        reuse_share=rng.uniform(0.2, 0.5),
        workers=rng.choice((32, 40, 48, 64)),
        tile_rows=rng.choice((32, 64, 128)),
        wave_share=rng.uniform(0.3, 0.7),
        overlap=rng.uniform(0.7, 0.9),
        idle_w=idle_w,
        asleep_w=idle_w * rng.uniform(0.4, 0.7),
        compute_w=compute_w,
        memory_w=memory_w,
        limit_w=(compute_w + memory_w + idle_w) * rng.uniform(0.8, 0.95),
        begin_s=rng.uniform(30e-6, 60e-6),
        launch_s=rng.uniform(4e-6, 8e-6),
        gap_s=rng.uniform(0.8e-6, 1.6e-6),
        replay_s=rng.uniform(8e-6, 15e-6),
        contention=rng.uniform(0.03, 0.06),
        leak=rng.uniform(0.01, 0.04),
    )


@functools.lru_cache(maxsize=4096)
def _draw_habit(seed: int, kind: str, stage: str) -> Habit:
    rng = random.Random(f"habit {seed} {kind} {stage}")
    coarse = rng.uniform(0.5, 0.8)
    return Habit(
        fine_tile=rng.choice((4, 8)),
        coarse_tile=rng.choice((8, 16, 32)),
        fine_share=coarse * rng.uniform(0.65, 0.85),
        coarse_share=coarse,
        depth_half=rng.uniform(8.0, 24.0),
        direct_share=rng.uniform(0.05, 0.15),
        width_from=rng.randint(20, 80),
        depth_from=rng.randint(8, 40),
        issue_factor=rng.uniform(0.8, 1.3),
    )


@dataclass(frozen=True)
class _Kernel:
    """One operator in one stage: its work, and the matrix product that it is.

    Attributes:
        rows: Height of the result; ``width`` and ``depth`` its channels and those of its input.
        grouped: Channels fall into groups too narrow for tiles.
        inflow_bytes: What it reads of the operator before it.
    """

    kind: str
    stage: str
    work: Work
    rows: int = 1
    width: int = 1
    depth: int = 1
    grouped: bool = False
    inflow_bytes: float = 0.0


class _Run(NamedTuple):
    """What a kernel takes on the device, and of the host."""

    energy_j: float
    device_s: float
    issue_s: float
    launches: int


def _round_up(size: int, tile: int) -> float:
    return tile * math.ceil(size / tile) / size


def unfold(layer: Layer, setup: Setup) -> Iterator[Layer]:
    """A layer's operators one by one, each as a layer that stands alone."""
    if layer.parts:
        for part in layer.parts:
            yield from unfold(part, setup)
        return
    alone = replace(layer, tail=(), name="")
    for op in (*layer.tail, None):
        yield alone
        if op is not None:
            # Gradients flow on behind weights that train.
            flows = alone.input_grad or (layer.trains and layer_work(alone, setup).params > 0)
            sizes = Sizes({**op.sizes, "shape": output_shape(alone)})
            alone = replace(alone, kind=op.kind, sizes=sizes, input_grad=flows)


def _measure_grid(layer: Layer, batch: int) -> tuple[int, int, int, bool]:
    """Rows, width and depth of the product that an operator is, and whether groups cut it small."""
    sizes, out = layer.sizes, output_shape(layer)
    names = ("cout", "hidden", "width", "head_dim", "n")
    width = next((int(sizes[name]) for name in names if name in sizes), out[0] if out else 1)
    depth = next((int(sizes[n]) for n in ("cin", "width", "head_dim", "k") if n in sizes), width)
    row = find_kind(layer.kind)
    if row.is_recurrent:
        return batch, width, depth, False
    rows = max(1, batch * math.prod(out) // width)
    groups = int(sizes.get("groups", 1)) if row.is_convolution else 1
    return rows, max(1, width // groups), max(1, depth // groups), groups > 1 and width < 8 * groups


def _list_kernels(trial: Trial) -> list[_Kernel]:
    """Everything that one step of one copy runs, in order, the loss included."""
    setup, execution = trial.setup, trial.execution
    item_bytes = 2 if setup.precision in ("bf16", "fp16") else 4
    operators = [op for layer in trial.network.layers for op in unfold(layer, setup)]
    kernels = []
    for place, op in enumerate(operators):
        inflow = setup.batch * math.prod(input_shape(op)) * item_bytes if place else 0
        grid = _measure_grid(op, setup.batch)
        work = layer_work(op, setup)
        for stage in ("forward", "backward", "update"):
            part: Work = getattr(work, stage)
            if part.launches and execution.stage in ("step", stage):
                hot = float(inflow) if stage == "forward" else 0.0
                kernels.append(_Kernel(op.kind, stage, part, *grid, inflow_bytes=hot))
    if (
        operators
        and setup.phase == "train"
        and execution.upstream == "loss"
        and execution.stage != "update"
    ):
        kernels.append(_make_loss(operators[-1], setup))
    return kernels


def _list_calls(chip: Chip, trial: Trial) -> list[_Run]:
    """What the host does between layers of a net that was read: it runs nothing on the device."""
    totals, stage = trial.network.totals, trial.execution.stage
    calls = totals.between if totals is not None and stage in ("step", "forward") else 0
    ways = 2 if trial.setup.phase == "train" and stage == "step" else 1
    each_s = 0.5 * chip.launch_s * _draw_habit(chip.seed, "between", "forward").issue_factor
    return [_Run(0.0, 0.0, calls * ways * each_s, 0)] if calls else []


def _make_loss(last: Layer, setup: Setup) -> _Kernel:
    moved = 6.0 * setup.batch * math.prod(output_shape(last)) * 4
    return _Kernel("loss:" + setup.loss, "forward", Work(0.0, moved, 4))


def _time_algorithm(chip: Chip, kernel: _Kernel, rate: float, tile: int) -> tuple[float, float]:
    """Seconds of arithmetic, and the share of the machine that it fills."""
    padded = _round_up(kernel.width, tile) * _round_up(kernel.depth, max(4, tile // 2))
    tiles = math.ceil(kernel.rows / chip.tile_rows) * math.ceil(kernel.width / tile)
    waves = tiles / chip.workers
    paid = (1 - chip.wave_share) * max(1.0, waves) + chip.wave_share * math.ceil(waves)
    return kernel.work.flops * padded / rate * paid / waves, min(1.0, waves)


def _time_arithmetic(
    chip: Chip, habit: Habit, kernel: _Kernel, setup: Setup
) -> tuple[float, float]:
    """Seconds of arithmetic by the algorithm that is chosen, and the share that it fills."""
    if not kernel.work.flops:
        return 0.0, 1.0
    deep = kernel.depth / (kernel.depth + habit.depth_half)
    rate = chip.rate_flops * chip.gains[setup.precision] * deep
    if kernel.grouped:
        return kernel.work.flops / (chip.rate_flops * habit.direct_share), 1.0
    fine = _time_algorithm(chip, kernel, rate * habit.fine_share, habit.fine_tile)
    coarse = _time_algorithm(chip, kernel, rate * habit.coarse_share, habit.coarse_tile)
    if setup.cudnn_benchmark:
        return min(fine, coarse)
    wide = kernel.width >= habit.width_from and kernel.depth >= habit.depth_from
    return coarse if wide else fine


def _run_kernel(chip: Chip, kernel: _Kernel, setup: Setup) -> _Run:
    habit = _draw_habit(chip.seed, kernel.kind, kernel.stage)
    arithmetic_s, filled = _time_arithmetic(chip, habit, kernel, setup)
    hot = max(0.0, 1.0 - kernel.inflow_bytes / chip.cache_bytes) * kernel.inflow_bytes
    moved = kernel.work.size_bytes - min(chip.reuse_share * hot, kernel.work.size_bytes / 2)
    launches = kernel.work.launches
    memory_s = moved / chip.bandwidth + chip.latency_s * launches
    shorter, longer = sorted((arithmetic_s, memory_s))
    device_s = longer + (1 - chip.overlap) * shorter
    # A busy unit does not draw in proportion: half busy is more than half the power.
    power_w = chip.idle_w + chip.compute_w * filled * (arithmetic_s / device_s) ** 0.8
    power_w += chip.memory_w * (moved / chip.bandwidth / device_s) ** 0.7
    issue_s = launches * chip.launch_s * habit.issue_factor
    return _Run(power_w * device_s, device_s, issue_s, launches)


def _limit_power(chip: Chip, energy_j: float, device_s: float) -> tuple[float, float]:
    """Lower the clocks of a device above its power limit: longer, and a little cheaper."""
    over = max(0.0, energy_j / device_s / chip.limit_w - 1.0)
    return energy_j * (1 - 0.3 * over / (1 + over)), device_s * (1 + 0.6 * over)


def _cost_step(chip: Chip, runs: list[_Run], graph: bool) -> StepCost:
    """Put host and device side by side: the longer decides, the waiting device idles."""
    launches = sum(run.launches for run in runs)
    pauses_s = launches * chip.gap_s * (0.1 if graph else 1.0)
    energy_j, device_s = _limit_power(
        chip,
        sum(run.energy_j for run in runs) + pauses_s * chip.idle_w,
        sum(run.device_s for run in runs) + pauses_s,
    )
    issue_s = chip.replay_s if graph else chip.begin_s + sum(run.issue_s for run in runs)
    shorter, longer = sorted((issue_s, device_s))
    duration_s = longer + (0.0 if graph else chip.contention * shorter * shorter / longer)
    energy_j += chip.idle_w * (duration_s - device_s)
    heat = chip.leak * energy_j / duration_s / chip.limit_w
    return StepCost(energy_j * (1 + heat), duration_s, issue_s)


def cost_trial(chip: Chip, trial: Trial) -> StepCost:
    """What one step costs without noise; the empty network is a second of waiting, awake."""
    if not trial.network.layers:
        return StepCost(chip.idle_w, 1.0, 0.0)
    kernels = _list_kernels(trial)
    if not kernels:
        stage, phase = trial.execution.stage, trial.setup.phase
        raise InputError(f"there is no {stage} to run in {phase}: choose another stage")
    runs = [_run_kernel(chip, kernel, trial.setup) for kernel in kernels]
    runs += _list_calls(chip, trial)
    return _cost_step(chip, runs * trial.execution.copies, trial.execution.mode == "graph")
