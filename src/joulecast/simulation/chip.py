"""Draw the constants of a simulated device from a seed."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """The constants of one simulated device.

    Attributes:
        gains: Arithmetic rate of each precision over that of fp32.
        bandwidth_bytes_per_s: Memory bandwidth.
        reuse_share: Share of an activation in the cache that needs no memory traffic.
        tile_rows: Rows of a tile; the device runs ``workers`` tiles at once.
        wave_share: Share of a partly empty last wave that costs as much as a full one.
        overlap: Share of the shorter of arithmetic and memory time that hides behind the longer.
        begin_s: Host time before the first launch of a step.
        launch_s: Host time per launch.
        gap_s: Idle time of the device between two launches; a tenth of it in a graph.
        replay_s: Host time to replay a graph.
        contention: How much host and device delay each other when they take equally long.
        leak: Share of energy that a device at its power limit loses to heat.
    """

    seed: int
    rate_flops: float
    gains: dict[str, float]
    bandwidth_bytes_per_s: float
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
class OperatorTuning:
    """How a device runs one kind of operator: with small or with large tiles.

    Attributes:
        fine_tile: Channels per tile of the algorithm with small tiles; likewise ``coarse_tile``.
        fine_share: Share of the arithmetic rate that it reaches on deep products.
        depth_half: Depth at which half of that share is reached.
        direct_share: Share of the rate for groups too narrow for tiles.
        width_from: Large tiles are used from this width and ``depth_from`` on.
        issue_factor: Host time of a launch, relative to ``Chip.launch_s``.
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
    """Draw the constants of a device; the same seed gives the same device."""
    rng = random.Random(f"chip {seed}")
    rate = 4e12 * 4 ** rng.random()
    bandwidth_bytes_per_s = rate / rng.uniform(35.0, 60.0)
    compute_w = rate * rng.uniform(8e-12, 13e-12)
    memory_w = bandwidth_bytes_per_s * rng.uniform(120e-12, 200e-12)
    idle_w = (compute_w + memory_w) * rng.uniform(0.15, 0.25)
    half = rng.uniform(5.0, 10.0)
    gains = {"fp32": 1.0, "tf32": rng.uniform(3.0, 5.0), "bf16": half, "fp16": half * 1.02}
    return Chip(
        seed=seed,
        rate_flops=rate,
        gains={**gains, "int8": half * 2.0, "int8_dynamic": half * 1.6},
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
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
def draw_tuning(seed: int, kind: str, stage: str) -> OperatorTuning:
    """Draw how a device runs one kind of operator in one stage."""
    rng = random.Random(f"habit {seed} {kind} {stage}")
    coarse = rng.uniform(0.5, 0.8)
    return OperatorTuning(
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
