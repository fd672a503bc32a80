"""Describe something that can be measured: a network, its training setup, and how it is run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from joulecast.records.codec import (
    Choices,
    Json,
    PositiveCount,
    Range,
    Record,
    always_stored,
    check_fields,
    omit_default,
    stable_hash,
)
from joulecast.records.network import Network
from joulecast.system.errors import InputError, arg
from joulecast.system.units import joules_to_wh

PHASES = ("train", "inference")
FLOAT_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
INT8_PRECISIONS = ("int8", "int8_dynamic")
"""Weights and activations in 8 bits; activations are scaled by calibration, or as they come."""
PRECISIONS = (*FLOAT_PRECISIONS, *INT8_PRECISIONS)
OPTIMIZERS = ("sgd", "adam", "adamw")
LOSSES = ("cross_entropy", "mse", "own")
STAGES = ("step", "forward", "backward", "update")
MODES = ("eager", "graph")
UPSTREAMS = ("loss", "random")


@dataclass(frozen=True)
class Setup(Record):
    """How a network is trained, or run.

    Attributes:
        phase: ``train``, or ``inference``: a forward pass alone.
        loss: What training minimises; inference has none.
        threads: Threads of the processor; 0 leaves the number to the runtime.
        processor: Which processor of the device runs it, as its runtime names it: ``NNAPI`` ...;
            empty for the runtime's choice.
        cuda_graphs: The step is captured once as a CUDA graph and replayed.
        accumulate: Batches per update of the weights. A step is one update, and ``batch`` the size
            of each of these batches, as in PyTorch. 0: gradients are added up without an update.
        compiled: The module is compiled by ``torch.compile``, so that operators fuse.
    """

    batch: PositiveCount = 32
    phase: Annotated[str, Choices(PHASES)] = "train"
    precision: Annotated[str, Choices(PRECISIONS)] = "fp32"
    optimizer: Annotated[str, Choices(OPTIMIZERS)] = "sgd"
    loss: Annotated[str, Choices(LOSSES)] = "cross_entropy"
    threads: Annotated[int, Range(0, 100_000)] = 0
    cudnn_benchmark: bool = False
    processor: str = omit_default("")
    cuda_graphs: bool = omit_default(False)
    accumulate: Annotated[int, Range(0, 1_000_000)] = omit_default(1)
    compiled: bool = omit_default(False)

    @property
    def samples_per_step(self) -> int:
        """Samples of all batches of a step."""
        return self.batch * max(1, self.accumulate)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.accumulate != 1 and self.phase == "inference":
            raise InputError(
                f"inference has no gradients to accumulate: leave out {arg('accumulate')}"
            )
        if self.precision in INT8_PRECISIONS and self.phase != "inference":
            raise InputError(
                f"{self.precision} is for inference only: give {arg('phase', 'inference')}, or "
                "another precision"
            )


@dataclass(frozen=True)
class Execution(Record):
    """Which stage of a step is run, and how.

    Attributes:
        stage: The whole step, or one stage of it.
        mode: ``eager``, or ``graph``: the step captured once as a CUDA graph and replayed.
        copies: Networks side by side, each with its own weights and input.
        upstream: Backward starts from the loss or from a random gradient.
        steps: Steps that the observed energy and duration span.
    """

    stage: Annotated[str, Choices(STAGES)] = "step"
    mode: Annotated[str, Choices(MODES)] = "eager"
    copies: PositiveCount = 1
    upstream: Annotated[str, Choices(UPSTREAMS)] = "loss"
    steps: PositiveCount = 1

    @property
    def is_user_step(self) -> bool:
        """Whether it is a whole eager step of one network from its loss, as a user trains."""
        return (self.stage, self.mode, self.copies, self.upstream) == ("step", "eager", 1, "loss")

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Trial(Record):
    """Something that can be run and measured: a network, its setup, and how it is run."""

    network: Network
    setup: Setup
    execution: Execution = always_stored(json_name="how", default=Execution())

    @property
    def mode(self) -> str:
        """How its kernels are issued: ``eager`` or ``graph``."""
        return "graph" if self.setup.cuda_graphs else self.execution.mode

    @cached_property
    def key(self) -> str:
        """A stable name: equal trials have equal keys on every machine."""
        return hash_trial(self.to_dict())


def hash_trial(data: Json) -> str:
    """Return the key of a trial that is given as JSON, without labels, which do not matter."""

    def drop_label(layer: Json) -> Json:
        bare = {key: value for key, value in layer.items() if key != "name"}
        if "parts" in bare:
            bare["parts"] = [drop_label(part) for part in bare["parts"]]
        return bare

    network = data["network"]
    layers = [drop_label(layer) for layer in network["layers"]]
    bare = {"input": network["input"], "layers": layers, "groups": network["groups"]}
    return stable_hash({**data, "network": bare})


INFERENCES = 1000
"""Number of inferences whose watt-hours are stated."""


def name_step(setup: Setup) -> str:
    """Return what one step of a setup is called: ``step`` or ``inference``."""
    return "inference" if setup.phase == "inference" else "step"


def describe_inference(setup: Setup, energy_j: float | None, duration_s: float | None) -> Json:
    """Return energy, latency, mean power and watt-hours as JSON values; empty for training."""
    if setup.phase != "inference":
        return {}
    wh = None if energy_j is None else joules_to_wh(INFERENCES * energy_j)
    return {
        "energy_per_inference_j": energy_j,
        "latency_s": duration_s,
        "mean_power_w": compute_power(energy_j, duration_s),
        f"wh_per_{INFERENCES}_inferences": wh,
    }


def compute_power(energy_j: float | None, duration_s: float | None) -> float | None:
    """Return the mean power; None where energy or duration is not known."""
    if energy_j is None or not duration_s:
        return None
    return energy_j / duration_s
