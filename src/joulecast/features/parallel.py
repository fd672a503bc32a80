"""Options of training on several GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from joulecast.system.errors import ArgumentError, InputError, arg

DATA = "data"
MOST_GPUS = 16
"""GPUs of one machine; links between machines are not modelled."""
# Other ways to train on several GPUs, as people call them.
_NOT_MODELLED = {
    "tensor": "tensor parallelism",
    "pipeline": "pipeline parallelism",
    "fsdp": "FSDP",
    "zero": "ZeRO",
    "expert": "expert parallelism",
    "sequence": "sequence parallelism",
    "context": "context parallelism",
}


@dataclass(frozen=True)
class ParallelOptions:
    """On how many GPUs of one machine a net is trained.

    Attributes:
        parallel: How they share the work: ``data``, as DistributedDataParallel does. Each GPU has
            a batch of its own, of the size ``batch``.
        link_gb_s: Bandwidth from one GPU to the others in one direction, instead of the
            catalogue's.
    """

    gpus: int = 1  # number of equal GPUs
    parallel: str = ""
    link_gb_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MOST_GPUS:
            raise InputError(
                f"gpus is {self.gpus}: give a whole number from 1 to {MOST_GPUS}, the GPUs of one "
                "machine"
            )
        check_parallel(self.parallel)
        if self.gpus > 1 and not self.parallel:
            raise ArgumentError(
                f"{self.gpus} GPUs have to share the work: give {arg('parallel', DATA)}"
            )
        if self.link_gb_s is not None and not 0.0 < self.link_gb_s < math.inf:
            raise InputError(f"link_gb_s is {self.link_gb_s}: give GB/s, like 300")

    @property
    def link_bytes_per_s(self) -> float | None:
        """Bandwidth from one GPU to the others in one direction; None for the catalogue's."""
        return None if self.link_gb_s is None else 1e9 * self.link_gb_s


def make_gpu_group(gpus: int | None, parallel: str, link_gb_s: float | None) -> ParallelOptions:
    """Return on how many GPUs a net is trained."""
    for name, value in (("parallel", parallel), ("link_gb_s", link_gb_s)):
        if value and gpus is None:
            raise ArgumentError(f"{arg(name)} needs {arg('gpus')}")
    return ParallelOptions(gpus or 1, parallel, link_gb_s)


def check_parallel(parallel: str) -> None:
    """Raise InputError for a way to share work that is not modelled."""
    if parallel in ("", DATA):
        return
    name = _NOT_MODELLED.get(parallel.lower())
    refused = f"{name} is not modelled yet" if name else f"there is no parallelism {parallel!r}"
    raise ArgumentError(
        f"{refused}: give {arg('parallel', DATA)}, which is what DistributedDataParallel does"
    )
