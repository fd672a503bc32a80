"""Model what summing the gradients of several GPUs adds to a training step.

    N, T, E      GPUs; duration and energy of the step on one of them
    S, S_b       bytes of all gradients, and of those in bucket b
    β, η         bandwidth of the link in one direction, and the share of it that NCCL reaches
    α            latency of a hop
    c_b          = 2(N-1)·(α + S_b / (N·η·β)),  a ring: 2(N-1) hops of S_b/N bytes each
    r_b          when the last gradient of bucket b is ready, after the start of the backward pass
    e_b          = max(r_b, e_{b-1}) + c_b,  when its sum is known: one bucket after another
    x            = max(0, e_last - backward pass),  what does not hide behind the backward pass
    h            = Σ c_b - x,  what does
    κ            by how much longer kernels take beside an all-reduce
    σ, d_N       spread of the speed of equal GPUs; expected largest of N standard normals
    T_N          = T + x + κ·h + σ·d_N·T
    P_w, w       power of a GPU that waits; energy of a byte on the link and in both memories
    E_N          = N·(E + P_w·(T_N - T) + w·V),  V = 2(N-1)/N·S bytes that each GPU sends

Buckets are filled in the order of the backward pass (Li et al., PyTorch Distributed, VLDB 2020).
``ring_assumptions`` lists the figures that are assumed, with their sources and uncertainties.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

FIRST_BUCKET_BYTES = 2**20
"""Size at which DistributedDataParallel starts to send its first bucket."""
BUCKET_BYTES = 25 * 2**20
"""Size of all others, unless a user sets ``bucket_cap_mb``."""
SHARED_LINK_BYTES_PER_S = 70e9
"""Slower links are taken for PCIe, which GPUs share with the processor and with each other."""


@dataclass(frozen=True)
class BackwardPart:
    """A part of the backward pass, and the gradients of weights that are ready after it."""

    duration_s: float
    gradient_bytes: float


@dataclass(frozen=True)
class RingAssumptions:
    """Figures that nobody measured on the machine in question.

    Attributes:
        efficiency: η.
        hop_s: α.
        contention_share: κ.
        speed_sd_share: σ.
        byte_j: w.
        waiting_w: P_w.
        backward_share: The backward pass over its estimated duration.
    """

    efficiency: float
    hop_s: float
    contention_share: float
    speed_sd_share: float
    byte_j: float
    waiting_w: float
    backward_share: float = 1.0


@dataclass(frozen=True)
class AllReduceCost:
    """What several GPUs add to a step of one.

    Attributes:
        gradient_bytes: S.
        buckets: Number of buckets.
        all_reduce_s: Σ c_b.
        exposed_s: x.
        added_s: T_N - T.
        added_j: E_N - N·E, of all GPUs together.
    """

    gradient_bytes: float
    buckets: int
    all_reduce_s: float
    exposed_s: float
    added_s: float
    added_j: float


def model_all_reduce(
    gpus: int,
    link_bytes_per_s: float,
    step_s: float,
    backward: Sequence[BackwardPart],
    assumed: RingAssumptions,
) -> AllReduceCost:
    """Return what summing gradients adds to a step on each of several GPUs.

    Args:
        gpus: N.
        link_bytes_per_s: β.
        step_s: T.
        backward: The backward pass of the last batch before the update, in the order in which it
            runs.
        assumed: All other figures.
    """
    rate = assumed.efficiency * link_bytes_per_s
    all_reduce_s = end_s = sent_bytes = 0.0
    buckets = 0
    for ready_s, size_bytes in _fill_buckets(backward):
        bucket_s = 2 * (gpus - 1) * (assumed.hop_s + size_bytes / gpus / rate)
        end_s = max(ready_s * assumed.backward_share, end_s) + bucket_s
        all_reduce_s += bucket_s
        sent_bytes += 2 * (gpus - 1) / gpus * size_bytes
        buckets += 1
    backward_s = assumed.backward_share * sum(part.duration_s for part in backward)
    exposed_s = min(max(0.0, end_s - backward_s), all_reduce_s)
    slower_s = assumed.contention_share * (all_reduce_s - exposed_s)
    lag_s = assumed.speed_sd_share * expected_maximum(gpus) * step_s
    added_s = exposed_s + slower_s + lag_s
    added_j = gpus * (assumed.waiting_w * added_s + assumed.byte_j * sent_bytes)
    gradient_bytes = sum(part.gradient_bytes for part in backward)
    return AllReduceCost(gradient_bytes, buckets, all_reduce_s, exposed_s, added_s, added_j)


def ring_assumptions(link_bytes_per_s: float, waiting_w: float) -> RingAssumptions:
    """Return the assumed figures of a machine whose GPUs have this link.

    - η: NCCL's bus bandwidth over the link's. H100 0.82 with 2 to 8 GPUs, A100 0.67; over PCIe 0.44
      to 0.63, and less than 0.1 where GPUs cannot reach each other directly.
    - α: an all-reduce of a few bytes takes about 40 µs on 8 GPUs, which is 14 hops.
    - κ: overlapped kernels were slowed by 18.9 % on average (Lee et al., arXiv:2507.03114).
    - σ: 8 GPUs of one machine lose 1 to 5 % even where the all-reduce takes less than 1 %.
    - w: 3 accesses of HBM at 3.9 pJ/bit (O'Connor et al., MICRO 2017) and a link at about 10.

    ``benchmarks/devices/data_parallel.md`` compares all of it with published measurements.
    """
    is_shared = link_bytes_per_s < SHARED_LINK_BYTES_PER_S
    return RingAssumptions(
        efficiency=0.35 if is_shared else 0.75,
        hop_s=3e-6,
        contention_share=0.19,
        speed_sd_share=0.02,
        byte_j=0.18e-9,
        waiting_w=waiting_w,
    )


def find_spread(
    gpus: int,
    link_bytes_per_s: float,
    step_s: float,
    backward: Sequence[BackwardPart],
    assumed: RingAssumptions,
) -> tuple[float, float]:
    """Return standard deviations of ``added_s`` and ``added_j``, one assumption at a time.

    Arguments are those of ``model_all_reduce``.
    """
    is_shared = link_bytes_per_s < SHARED_LINK_BYTES_PER_S
    log_sds = {
        "efficiency": 0.8 if is_shared else 0.15,
        "hop_s": 0.7,
        "contention_share": 0.6,
        "speed_sd_share": 0.6,
        "byte_j": 0.5,
        "waiting_w": 0.4,
        "backward_share": 0.2,
    }
    variance_s = variance_j = 0.0
    for name, log_sd in log_sds.items():
        ends = [
            model_all_reduce(gpus, link_bytes_per_s, step_s, backward, changed)
            for changed in (
                replace(assumed, **{name: getattr(assumed, name) * math.exp(sign * log_sd)})
                for sign in (-1.0, 1.0)
            )
        ]
        variance_s += ((ends[1].added_s - ends[0].added_s) / 2) ** 2
        variance_j += ((ends[1].added_j - ends[0].added_j) / 2) ** 2
    return math.sqrt(variance_s), math.sqrt(variance_j)


def expected_maximum(count: int) -> float:
    """Return the expected largest of standard normals, by Blom's approximation; 0 for one."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def _fill_buckets(backward: Sequence[BackwardPart]) -> Iterator[tuple[float, float]]:
    """Yield when each bucket is ready, and its bytes; a weight is never split."""
    now_s = filled_bytes = 0.0
    most_bytes = FIRST_BUCKET_BYTES
    for part in backward:
        now_s += part.duration_s
        filled_bytes += part.gradient_bytes
        if filled_bytes >= most_bytes:
            yield now_s, filled_bytes
            filled_bytes, most_bytes = 0.0, BUCKET_BYTES
    if filled_bytes:
        yield now_s, filled_bytes
