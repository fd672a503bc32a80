"""One stage of one isolated layer: the data points of NeuralPower.

    part ──▶ forward · backward · update ──▶ Trial ──▶ Observation ──▶ ObservedStage

Stages in which a part does nothing are left out. A **stage type** is what one regression covers:
operators with their tails, role, trainable weights, stage and setup. The regression is over the
sizes: channels, positions, kernel, stride, heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from joulecast.estimators.base import Json
from joulecast.kinds import KINDS, Work, layer_work
from joulecast.records import Layer, Observation, Setup, Trial, name_layout, stable_hash
from joulecast.variants import BLOCK, Part, make_isolated_trial, match_precision, read_isolated_part

STAGES = ("forward", "backward", "update")


@dataclass(frozen=True)
class LayerStage:
    """A stage of a part, trained with ``setup``."""

    part: Part
    setup: Setup
    name: str

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # A campaign looks up thousands of stages before each proposal.
        return hash((self.part, self.setup, self.name))

    @property
    def type_key(self) -> str:
        """A stable name of the regression that it belongs to."""
        return f"{part_type_key(self.part, self.setup)} {self.name}"

    @property
    def work(self) -> Work:
        """Its FLOPs, bytes and launches."""
        works = [layer_work(layer, self.setup) for layer in self.part.layers]
        work: Work = getattr(sum(works[1:], works[0]), self.name)
        return work

    @property
    def trial(self) -> Trial:
        """The trial that measures it."""
        return make_isolated_trial(self.part, self.setup, stage=self.name)


@dataclass(frozen=True)
class ObservedStage:
    """A stage and its cost per run; None if the device refused it."""

    stage: LayerStage
    energy_j: float | None
    duration_s: float | None


def list_stages(part: Part, setup: Setup) -> tuple[LayerStage, ...]:
    """Return the stages in which a part does something: without weights there is no update."""
    stages = [LayerStage(match_precision(part, setup), setup, name) for name in STAGES]
    return tuple(stage for stage in stages if stage.work.launches)


def read_stage(observation: Observation) -> ObservedStage | None:
    """Return the stage that an observation shows; None if it is no stage of an isolated layer."""
    trial, execution = observation.trial, observation.trial.execution
    is_isolated = execution.stage in STAGES and execution.mode == "eager" and execution.copies > 1
    if not is_isolated or observation.source:
        return None
    part = read_isolated_part(trial)
    if part is None or part.role == BLOCK:
        return None
    energy_j, duration_s = (
        None if value is None else value / execution.steps / execution.copies
        for value in (observation.energy_j, observation.duration_s)
    )
    stage = LayerStage(match_precision(part, trial.setup), trial.setup, execution.stage)
    return ObservedStage(stage, energy_j, duration_s)


@lru_cache(maxsize=8192)
def part_type_key(part: Part, setup: Setup) -> str:
    """Return a stable name of what a part has in common with all of its sizes."""
    layers = [_describe_type(layer) for layer in part.layers]
    names = [name for name, _ in list_sizes(part)]
    return stable_hash([part.role, part.half_input, layers, names, setup.to_dict()])


@lru_cache(maxsize=8192)
def list_sizes(part: Part) -> tuple[tuple[str, float], ...]:
    """Return the names and values of a part's numeric sizes; those of tails belong to the type."""
    sizes = []
    for place, layer in enumerate(part.layers):
        for name, size in layer.sizes.items():
            numbers = size if isinstance(size, tuple) else (size,)
            for axis, number in enumerate(numbers):
                if not isinstance(number, str):
                    sizes.append((f"{place}.{name}.{axis}", float(number)))
    return tuple(sizes)


def _describe_type(layer: Layer) -> Json:
    """Return all properties of a layer but its numeric sizes."""
    groups, channels = layer.sizes.get("groups", 1), layer.sizes.get("cin", 0)
    # The values are hashed into keys of stored fits: they must not change.
    properties = {
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
    return {**properties, "layout": list(layout)} if layout else properties
