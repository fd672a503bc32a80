"""Measure the peaks of a device: its rates, and what an empty launch costs.

    products in each precision     FLOP/s: square; for data sheets also tall, wide and batched
    one large copy                 bytes per second
    one layer too small to matter  seconds per launch
    layers of ordinary sizes       what each kind reaches of the peaks, for data sheets
    eager steps of small networks  how fast the host issues kernels, for data sheets

Sizes follow from what is assumed about the device (``DeviceScale``), so that a step takes about ten
milliseconds. Being wrong by a factor of five makes trials five times as long or short; nothing that
is assumed enters an estimate. A campaign measures the first three rows, in about two seconds,
``profile --anchors`` all of them: their durations, and energies of square products and of the copy.
What was measured before is not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from joulecast.campaign.trial_log import (
    STOPPED_BY_REQUEST,
    ObservationLog,
    Progress,
    TrialLog,
    describe_profile,
)
from joulecast.devices.detect import multiplies_bf16
from joulecast.families import make_family
from joulecast.measurer import TrialMeasurer
from joulecast.operators import Work, make_layer, network_work
from joulecast.records import (
    FLOAT_PRECISIONS,
    PHASES,
    DataSheet,
    Device,
    Layer,
    Observation,
    Setup,
    Trial,
)
from joulecast.system.errors import ContaminatedError, MeasurementError
from joulecast.variants import Block, make_isolated_trial

ANCHORS_NAME = "anchors"
GIB = 2**30
TARGET_S = 0.01
# A simulated device may have no limit.
_UNLIMITED_MEMORY_BYTES = 16 * GIB
# Per GiB of memory: an H200 (141 GB) does some 650 TFLOP/s in bf16 and 350 in TF32 and moves
# 3.5 TB/s; small GPUs have less of all three.
_GPU_FLOPS_PER_GIB = {"fp32": 3.5e11, "tf32": 2.5e12, "bf16": 4.5e12}
_GPU_BYTES_PER_GIB = 2.5e10
_GPU_LAUNCH_S, _CPU_LAUNCH_S = 2e-6, 1e-5
# A processor with some ten cores. One that cannot multiply bf16 takes a hundred times as long.
_CPU_FLOPS = {"fp32": 3e11, "bf16": 3e11}
_CPU_BYTES_PER_S = 2e10
_CPU_COPIES = 2
# A training step multiplies three times, and trials have at least two copies.
_PRODUCT_FLOPS = 2 * 3 * 2
# Forward reads and writes, backward reads twice and writes; fp32, two copies.
_COPY_BYTES = 5 * 4 * 2
_TILE, _SMALLEST, _LARGEST = 128, 256, 8192
# Each anchor may take this share of the memory; a product holds about this many matrices in fp32.
_MEMORY_SHARE = 0.25
_MATRICES = 16
_COPY_BATCH = 64
_TINY_WIDTH = 16
# Rows and widths of further products over those of the square one, which have as many FLOPs.
_OTHER_SHAPES = ((4.0, 0.5), (0.25, 2.0))
# Products of attention: so many at once, of this width.
_HEADS, _HEAD_WIDTH = 16, 64
# Layers of ordinary sizes in image models and in language models, and their batch. Libraries run
# other kernels where channels are no multiple of eight.
_LAYER_BATCH = 64
_IMAGE, _TOKENS, _WIDTH = (64, 56, 56), 128, 768
_CONVOLUTION: dict[str, Any] = {"kernel": 3, "padding": 1, "bias": 0}
_PRODUCT_LAYERS = (
    make_layer("conv2d", cin=64, cout=64, space=56, **_CONVOLUTION),
    make_layer("conv2d", cin=256, cout=256, space=14, **_CONVOLUTION),
    make_layer("conv2d", cin=61, cout=61, space=56, **_CONVOLUTION),
    make_layer("conv2d", cin=64, cout=64, space=56, groups=64, **_CONVOLUTION),
    make_layer("linear", lead=(_TOKENS,), cin=_WIDTH - 1, cout=_WIDTH - 1, bias=0),
    make_layer("sdpa", tokens=_TOKENS, kv_tokens=_TOKENS, heads=12, kv_heads=12, head_dim=64),
    make_layer("lstm", cin=256, hidden=256, tokens=_TOKENS, depth=1),
)
# Those that multiply nothing run alike in fp32 and in TF32.
_OTHER_LAYERS = (
    make_layer("batch_norm", shape=_IMAGE),
    make_layer("pool", fn="max", shape=_IMAGE, kernel=(2, 2), stride=(2, 2)),
    make_layer("layer_norm", shape=(_TOKENS, _WIDTH), dims=1),
    make_layer("elementwise", fn="gelu", shape=(_TOKENS, 4 * _WIDTH)),
    make_layer("dropout", shape=(_TOKENS, _WIDTH), p=0.1),
    make_layer("embedding", lead=(_TOKENS,), vocabulary=32000, width=_WIDTH),
)
# Networks whose kernels are so short in such batches that the host decides how long a step takes:
# one with few calls and one with many.
_HOST_NETWORKS, _HOST_BATCH = ("lenet5", "resnet18"), 2


@dataclass(frozen=True)
class DeviceScale:
    """What is assumed about a device before anything was measured.

    Attributes:
        memory_bytes: Memory that a trial may take.
        flops_per_s: FLOPs per second of a large matrix product, by precision. Its keys are the
            precisions that are measured.
        bytes_per_s: Bytes moved per second.
        launch_s: Time of an empty launch.
        most_copies: Copies of a layer side by side. They hide launches, which a processor has none
            of: there, more copies only take more time.
    """

    memory_bytes: int
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    launch_s: float
    most_copies: int = 32

    def duration_s(self, work: Work, precision: str) -> float:
        """Return about how long some work takes."""
        launched_s = work.launches * self.launch_s
        computed_s = work.flops / self.flops_per_s[precision]
        return launched_s + computed_s + work.size_bytes / self.bytes_per_s


def assume_scale(is_gpu: bool, memory_bytes: int, *, has_bf16: bool = True) -> DeviceScale:
    """Return the scale of a GPU or a processor.

    Args:
        is_gpu: Whether it is a GPU.
        memory_bytes: Its memory.
        has_bf16: Whether a processor multiplies bf16; if not, bf16 is not measured.
    """
    # Some memory belongs to the driver, to the framework, or to other programs.
    usable_bytes = int(memory_bytes * (0.9 if is_gpu else 0.5))
    if not is_gpu:
        flops_per_s = {
            name: rate for name, rate in _CPU_FLOPS.items() if has_bf16 or name != "bf16"
        }
        rates = (flops_per_s, _CPU_BYTES_PER_S, _CPU_LAUNCH_S)
        return DeviceScale(usable_bytes, *rates, most_copies=_CPU_COPIES)
    size = max(1.0, memory_bytes / GIB)
    flops_per_s = {name: rate * size for name, rate in _GPU_FLOPS_PER_GIB.items()}
    return DeviceScale(usable_bytes, flops_per_s, _GPU_BYTES_PER_GIB * size, _GPU_LAUNCH_S)


def make_anchor_trials(
    scale: DeviceScale, modes: tuple[str, ...] = ("eager",), phase: str = "train"
) -> tuple[Trial, ...]:
    """Return the anchors of a device: a product in each precision, a copy, a tiny layer.

    Args:
        scale: What is assumed about the device.
        modes: Modes of the runtime; graphs are preferred, since they hide the host.
        phase: ``train``, or ``inference`` for runtimes that do not train.
    """
    cases = []
    for precision in scale.flops_per_s:
        width = _find_width(scale, precision)
        product = make_layer("linear", cin=width, cout=width, bias=0)
        cases.append((product, Setup(width, phase=phase, precision=precision)))
    wanted = scale.bytes_per_s * TARGET_S / _COPY_BYTES
    most = scale.memory_bytes * _MEMORY_SHARE / _COPY_BYTES
    elements = max(1, int(min(wanted, most)) // _COPY_BATCH)
    copy = make_layer("elementwise", fn="copy", shape=(elements,))
    tiny = make_layer("linear", cin=_TINY_WIDTH, cout=_TINY_WIDTH)
    cases += [(copy, Setup(_COPY_BATCH, phase=phase)), (tiny, Setup(1, phase=phase))]
    return tuple(_isolate(layer, setup, modes, scale) for layer, setup in cases)


def make_shape_trials(scale: DeviceScale, modes: tuple[str, ...]) -> tuple[Trial, ...]:
    """Return further products in each precision: tall, wide, and many small ones at once."""
    trials = []
    for precision in scale.flops_per_s:
        width, setup = _find_width(scale, precision), Setup(precision=precision)
        for row_scale, width_scale in _OTHER_SHAPES:
            own, rows = int(width_scale * width), replace(setup, batch=int(row_scale * width))
            trials.append(
                _isolate(make_layer("linear", cin=own, cout=own, bias=0), rows, modes, scale)
            )
        # Queries by keys of attention, over sequences of half the width.
        half = width // 2
        batch = max(1, 4 * width // (_HEADS * _HEAD_WIDTH))
        layer = replace(
            make_layer("matmul", count=_HEADS, m=half, k=_HEAD_WIDTH, n=half), reads=(1, 2)
        )
        trials.append(_isolate(layer, replace(setup, batch=batch), modes, scale))
    return tuple(trials)


def make_layer_trials(scale: DeviceScale, modes: tuple[str, ...]) -> tuple[Trial, ...]:
    """Return layers of ordinary sizes in each precision, one of every frequent kind."""
    trials = []
    for precision in scale.flops_per_s:
        setup = Setup(_LAYER_BATCH, precision=precision)
        layers = _PRODUCT_LAYERS + (() if precision == "tf32" else _OTHER_LAYERS)
        trials += [_isolate(layer, setup, modes, scale) for layer in layers]
    return tuple(trials)


def make_host_trials(modes: tuple[str, ...]) -> tuple[Trial, ...]:
    """Return eager training steps that show the host; none where layers are timed with it."""
    if "graph" not in modes:
        return ()
    return tuple(Trial(make_family(name), Setup(_HOST_BATCH)) for name in _HOST_NETWORKS)


def _find_width(scale: DeviceScale, precision: str) -> int:
    """Return the width of the square matrices whose product takes about the target's time."""
    wanted = (scale.flops_per_s[precision] * TARGET_S / _PRODUCT_FLOPS) ** (1 / 3)
    most = (scale.memory_bytes * _MEMORY_SHARE / (_MATRICES * 4)) ** 0.5
    width = int(min(wanted, most, _LARGEST)) // _TILE * _TILE
    return max(_SMALLEST, width)


def _isolate(layer: Layer, setup: Setup, modes: tuple[str, ...], scale: DeviceScale) -> Trial:
    mode = "graph" if "graph" in modes else "eager"
    trial = make_isolated_trial(Block("hidden", (layer,)), setup, mode)
    return limit_copies(trial, scale.most_copies)


def limit_copies(trial: Trial, most: int) -> Trial:
    """Return a trial with at most this many copies."""
    copies = min(trial.execution.copies, most)
    return replace(trial, execution=replace(trial.execution, copies=copies))


@dataclass(frozen=True)
class MeasuredPeaks:
    """The fastest rates seen on a device; None if they were not measured.

    Attributes:
        flops_per_s: By precision.
        launch_s: Time of a launch that computes nothing worth mentioning.
    """

    flops_per_s: Mapping[str, float]
    bytes_per_s: float | None = None
    launch_s: float | None = None


def find_scale(measurer: TrialMeasurer) -> DeviceScale:
    """Return what is assumed about a measurer's device before anything was measured."""
    return assume_device_scale(measurer.runtime.device, measurer.runtime.modes)


def assume_device_scale(device: Device, modes: tuple[str, ...]) -> DeviceScale:
    """Return what is assumed about a device whose runtime has these modes."""
    memory_bytes = device.memory_bytes or _UNLIMITED_MEMORY_BYTES
    return assume_scale("graph" in modes, memory_bytes, has_bf16=multiplies_bf16())


def measure_anchors(trials: TrialLog, precision: str, phase: str = "train") -> None:
    """Time the anchors of one precision and phase that were never measured on this device.

    An anchor that the device refuses, or that cannot be measured undisturbed, is left out: other
    observations show the rates as well, only less directly.
    """
    seen = {one.trial for one in trials.stored}
    for trial in list_anchors(trials.measurer, precision, phase):
        if trial not in seen:
            measure_anchor(trials, trial, with_energy=False)
    # They are measured for every target, and count as points of none.
    trials.new = 0


def measure_anchor(trials: TrialLog, trial: Trial, *, with_energy: bool) -> None:
    """Measure an anchor, or note why it is left out."""
    try:
        trials.measure(trial, with_energy, reason="anchor")
    except ContaminatedError as error:
        trials.skipped.append(f"anchor: {error}")


def list_anchors(
    measurer: TrialMeasurer, precision: str, phase: str = "train"
) -> tuple[Trial, ...]:
    """Return the anchors that a campaign with this precision and phase needs."""
    scale = find_scale(measurer)
    own = {name: rate for name, rate in scale.flops_per_s.items() if name == precision}
    return make_anchor_trials(replace(scale, flops_per_s=own), measurer.runtime.modes, phase)


def read_peaks(
    observations: Iterable[Observation], scale: DeviceScale, modes: tuple[str, ...]
) -> MeasuredPeaks:
    """Return the peaks that the anchors among the observations show."""
    anchors = {trial for phase in PHASES for trial in make_anchor_trials(scale, modes, phase)}
    flops_per_s: dict[str, float] = {}
    bytes_per_s = launch_s = None
    for one in observations:
        if not one.duration_s or one.trial not in anchors:
            continue
        work = network_work(one.trial.network, one.trial.setup).total
        duration_s = one.duration_s / one.trial.execution.copies
        precision = one.trial.setup.precision
        if not work.flops:
            bytes_per_s = max(bytes_per_s or 0.0, work.size_bytes / duration_s)
        elif one.trial.setup.batch == 1:
            launch_s = min(launch_s or duration_s, duration_s / max(1.0, work.launches))
        else:
            flops_per_s[precision] = max(flops_per_s.get(precision, 0.0), work.flops / duration_s)
    return MeasuredPeaks(flops_per_s, bytes_per_s, launch_s)


def apply_peaks(scale: DeviceScale, peaks: MeasuredPeaks) -> DeviceScale:
    """Return a scale with measured rates in place of assumed ones."""
    return replace(
        scale,
        flops_per_s={**scale.flops_per_s, **peaks.flops_per_s},
        bytes_per_s=peaks.bytes_per_s or scale.bytes_per_s,
        launch_s=peaks.launch_s or scale.launch_s,
    )


@dataclass(frozen=True)
class AnchorRun:
    """What measuring the anchors of a device did.

    Attributes:
        trials: Anchors of which the device has a duration now.
        with_energy: Those of them whose energy was measured.
        new: Number of measurements of this run.
        peaks: The fastest rates seen.
        skipped: Anchors that the device refused, with the reasons.
        disturbances: How often something disturbed a measurement, by name.
    """

    profile_key: str
    trials: int
    with_energy: int
    new: int
    elapsed_s: float
    stopped: str
    peaks: MeasuredPeaks
    skipped: tuple[str, ...] = ()
    disturbances: Mapping[str, int] = field(default_factory=dict)


def run_anchors(
    measurer: TrialMeasurer,
    log: ObservationLog,
    sheet: DataSheet,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    is_stop_requested: Callable[[], bool] = lambda: False,
) -> AnchorRun:
    """Measure the anchors of a device that were not measured yet, and the idle device.

    Raises:
        MeasurementError: The device refused all anchors.
    """
    started_s, key = measurer.now(), describe_profile(measurer).key
    trials = TrialLog(measurer, log, list(log.load_observations(key)))
    scale, modes = choose_anchor_scale(find_scale(measurer), sheet), measurer.runtime.modes
    *large, tiny = make_anchor_trials(scale, modes)
    shapes, layers = make_shape_trials(scale, modes), make_layer_trials(scale, modes)
    others = (*shapes, *layers, tiny, *make_host_trials(modes))
    # Anchors, and whether the energy of each is measured.
    planned = {**dict.fromkeys(large, True), **dict.fromkeys(others, False)}
    timed = {one.trial for one in trials.stored if one.duration_s}
    metered = {one.trial for one in trials.stored if one.energy_j}
    left = [
        (trial, with_energy)
        for trial, with_energy in planned.items()
        if trial not in (metered if with_energy else timed)
    ]
    count, stopped = len(left), "every anchor was measured"

    def tell(done: int, reason: str) -> None:
        elapsed_s = measurer.now() - started_s
        left_s = elapsed_s * (count - done) / done if done else None
        if on_progress is not None:
            on_progress(Progress(done, 0.0, elapsed_s, left_s, reason, count))

    for done, (trial, with_energy) in enumerate(left):
        if is_stop_requested():
            stopped = STOPPED_BY_REQUEST
            break
        tell(done, f"anchor in {trial.setup.precision}")
        measure_anchor(trials, trial, with_energy=with_energy)
        if done == 0 and trials.new:
            # After the first load, when clock rates are up as they are between steps.
            trials.measure_idle()
    tell(count, stopped)
    measured = {one.trial for one in trials.believed if one.duration_s} & planned.keys()
    metered = {one.trial for one in trials.believed if one.energy_j} & planned.keys()
    if not measured and trials.skipped:
        raise MeasurementError(f"no anchor could be measured: {trials.skipped[0]}")
    return AnchorRun(
        key,
        len(measured),
        len(metered),
        trials.new,
        measurer.now() - started_s,
        stopped,
        read_peaks(trials.believed, scale, modes),
        tuple(trials.skipped),
        dict(measurer.disturbances),
    )


def choose_anchor_scale(scale: DeviceScale, sheet: DataSheet) -> DeviceScale:
    """Return a scale with the precisions of a data sheet, and fp16 only if it has no bf16."""
    assumed = {**scale.flops_per_s, "fp16": scale.flops_per_s.get("bf16", 0.0)}
    wanted = [
        name
        for name in FLOAT_PRECISIONS
        if name in sheet.flops_per_s and not (name == "fp16" and "bf16" in sheet.flops_per_s)
    ]
    return replace(scale, flops_per_s={name: assumed[name] for name in wanted})
