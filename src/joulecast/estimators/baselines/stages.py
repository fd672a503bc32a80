"""One stage of one layer alone: what NeuralPower learns from.

    part ──▶ forward · backward · update, those that do anything ──▶ Trial ──▶ Observation ──▶ Stage

A **kind** is what one regression covers: operators with their tail, role, what trains, stage and
Setup. Its sizes (channels, places, kernel, stride, heads ...) are what the regression is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from joulecast.kinds import KINDS, Work, layer_work
from joulecast.records import Layer, Observation, Setup, Trial, name_layout, stable_hash
from joulecast.variants import BLOCK, Part, make_isolated_trial, match_precision, read_isolated_part

STAGES = ("forward", "backward", "update")


@dataclass(frozen=True)
class Stage:
    """A stage of a part, trained as ``setup`` says."""

    part: Part
    setup: Setup
    name: str

    @property
    def kind(self) -> str:
        """A stable name of the regression that it belongs to."""
        return f"{name_part_type(self.part, self.setup)} {self.name}"

    @property
    def work(self) -> Work:
        """Its FLOPs, bytes and launches."""
        works = [layer_work(layer, self.setup) for layer in self.part.layers]
        work: Work = getattr(sum(works[1:], works[0]), self.name)
        return work

    @property
    def trial(self) -> Trial:
        """What is run to see it."""
        return make_isolated_trial(self.part, self.setup, stage=self.name)


@dataclass(frozen=True)
class SeenStage:
    """A stage and what it took, once; None where the device refused it."""

    stage: Stage
    energy_j: float | None
    duration_s: float | None


def list_stages(part: Part, setup: Setup) -> tuple[Stage, ...]:
    """The stages in which a part does anything: without weights, for one, there is no update."""
    stages = [Stage(match_precision(part, setup), setup, name) for name in STAGES]
    return tuple(stage for stage in stages if stage.work.launches)


def read_stage(observation: Observation) -> SeenStage | None:
    """The stage that an observation shows; None where no layer ran alone as it is profiled."""
    trial, execution = observation.trial, observation.trial.execution
    alone = execution.stage in STAGES and execution.mode == "eager" and execution.copies > 1
    if not alone or observation.source:
        return None
    part = read_isolated_part(trial)
    if part is None or part.role == BLOCK:
        return None
    energy_j, duration_s = (
        None if value is None else value / execution.steps / execution.copies
        for value in (observation.energy_j, observation.duration_s)
    )
    stage = Stage(match_precision(part, trial.setup), trial.setup, execution.stage)
    return SeenStage(stage, energy_j, duration_s)


@lru_cache(maxsize=8192)
def name_part_type(part: Part, setup: Setup) -> str:
    """A stable name of what a part has in common with all of its sizes."""
    layers = [_frame_layer(layer) for layer in part.layers]
    names = [name for name, _ in list_sizes(part)]
    return stable_hash([part.role, part.half_input, layers, names, setup.to_dict()])


@lru_cache(maxsize=8192)
def list_sizes(part: Part) -> tuple[tuple[str, float], ...]:
    """All sizes of a part that are numbers, with their names; those of tails belong to the kind."""
    sizes = []
    for place, layer in enumerate(part.layers):
        for name, size in layer.sizes.items():
            numbers = size if isinstance(size, tuple) else (size,)
            for axis, number in enumerate(numbers):
                if not isinstance(number, str):
                    sizes.append((f"{place}.{name}.{axis}", float(number)))
    return tuple(sizes)


def _frame_layer(layer: Layer) -> dict[str, Any]:
    """Everything of a layer that is no number."""
    groups, channels = layer.sizes.get("groups", 1), layer.sizes.get("cin", 0)
    frame = {
        "kind": layer.kind,
        "words": {name: size for name, size in layer.sizes.items() if isinstance(size, str)},
        "groups": "one" if groups == 1 else "each" if groups == channels else "some",
        "tail": [op.to_dict() for op in layer.tail if not KINDS[op.kind].is_view],
        "trains": layer.trains,
        "input_grad": layer.input_grad,
        "inputs": len(layer.reads),
        "join": layer.join,
    }
    layout = name_layout(layer)
    return {**frame, "layout": list(layout)} if layout else frame
