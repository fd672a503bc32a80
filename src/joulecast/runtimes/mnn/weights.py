"""Draw the weights of a network, and remember which of them train."""

from __future__ import annotations

import math
from collections.abc import Sequence

from joulecast.runtimes.mnn.engine import NN, Var, draw_uniform, make_filled


class Weights:
    """Weights drawn from a seed.

    Attributes:
        module: MNN's module of all weights that train: what an optimizer takes.
        trained: Those weights, by name.
    """

    def __init__(self, seed: int) -> None:
        self.module = NN.Module()
        self.trained: dict[str, Var] = {}
        self._seed = seed
        self._layer = ""
        self._is_trained = True

    def begin_layer(self, name: str, is_trained: bool) -> None:
        """Name the layer that the next weights belong to, and say whether they train."""
        self._layer, self._is_trained = name, is_trained

    def draw(self, name: str, shape: Sequence[int], fan_in: int) -> Var:
        """Return a weight drawn as PyTorch draws those of linear layers and convolutions."""
        self._seed += 1
        return self._add(name, draw_uniform(shape, 1.0 / math.sqrt(max(fan_in, 1)), self._seed))

    def fill(self, name: str, shape: Sequence[int], value: float) -> Var:
        """Return a weight whose elements are equal at first."""
        weight = make_filled(value, shape)
        weight.fix_as_const()
        return self._add(name, weight)

    def add_module(self, module: Var) -> None:
        """Add the weights of one of MNN's own modules."""
        module.train(True)
        if not self._is_trained:
            return
        self.module._register_submodules([module])
        for number, weight in enumerate(module.parameters):
            if weight.op_type == "Trainable":
                self._remember(f"{number}", weight)

    def _add(self, name: str, weight: Var) -> Var:
        if self._is_trained:
            weight.fix_as_trainable()
            self.module._add_parameter(weight)
            self._remember(name, weight)
        return weight

    def _remember(self, name: str, weight: Var) -> None:
        path, number = f"{self._layer}.{name}", 2
        while path in self.trained:
            path, number = f"{self._layer}.{name}{number}", number + 1
        self.trained[path] = weight
