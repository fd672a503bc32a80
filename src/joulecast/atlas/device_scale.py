"""Assume how fast a device is, so that trials neither vanish nor take too long.

Nothing here enters an estimate: anchors measure the real rates. Being wrong by a factor of five
makes trials five times as long or short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joulecast.kinds import Work

GIB = 2**30
# Per GiB of memory: an H200 (141 GB) does some 650 TFLOP/s in bf16 and 350 in TF32 and moves
# 3.5 TB/s; small GPUs have less of all three.
_GPU_FLOPS_PER_GIB = {"fp32": 3.5e11, "tf32": 2.5e12, "bf16": 4.5e12}
_GPU_BYTES_PER_GIB = 2.5e10
_GPU_LAUNCH_S, _CPU_LAUNCH_S = 2e-6, 1e-5
# A processor with some ten cores. One that cannot multiply bf16 takes a hundred times as long.
_CPU_FLOPS = {"fp32": 3e11, "bf16": 3e11}
_CPU_BYTES_PER_S = 2e10
_CPU_COPIES = 2


@dataclass(frozen=True)
class DeviceScale:
    """What is assumed about a device before anything was measured.

    Attributes:
        memory_bytes: Memory that a trial may take.
        flops_per_s: FLOPs per second of a large matrix product, by precision. Its keys are the
            precisions that are measured.
        bytes_per_s: Bytes moved per second.
        launch_s: Time of an empty launch.
        longest_step_s: A trial whose step takes longer is left out.
        most_copies: Copies of a layer side by side. They hide launches, which a processor has none
            of: there, more copies only take more time.
    """

    memory_bytes: int
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    launch_s: float
    longest_step_s: float = 0.1
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
        has_bf16: Whether a processor multiplies bf16; if not, nobody trains with it.
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
