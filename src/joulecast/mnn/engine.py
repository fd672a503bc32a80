"""Load MNN's engine in the state that training needs.

``ENGINE`` holds the functions on variables. Those of ``MNN.expr``, under the same names, cast
their arguments first, and a cast has no gradient: whatever is before it would not train, without
an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import _mnncengine
import MNN

ENGINE: Any = _mnncengine._expr
NN: Any = MNN.nn
OPTIM: Any = MNN.optim

# Without it variables are computed as they are built, and an optimizer finds no graph to train.
MNN.expr.lazy_eval(True)

Var = Any

_MOST_SKIPPED = 99_991


def make_scalar(value: float) -> Var:
    """Return a number that is broadcast to any shape."""
    return ENGINE.const([value], [], ENGINE.NCHW, ENGINE.float)


def make_filled(value: float, shape: Sequence[int]) -> Var:
    """Return a variable of one number."""
    return ENGINE.fill(make_indices(shape, [len(shape)]), make_scalar(value))


def make_indices(values: Sequence[int], shape: Sequence[int]) -> Var:
    """Return a variable of given integers."""
    return ENGINE.const(list(values), list(shape), ENGINE.NCHW, ENGINE.int)


def draw_uniform(shape: Sequence[int], bound: float, seed: int) -> Var:
    """Draw a variable between plus and minus ``bound``."""
    # MNN ignores the seed that it is given: every draw begins with the same numbers. Seeds say how
    # many of them are left out.
    skipped, count = seed % _MOST_SKIPPED, math.prod(shape)
    drawn = ENGINE.randomuniform([skipped + count], ENGINE.float, -bound, bound, 1, 1)
    # What is read lies in the memory of the variable.
    values = drawn.read()[skipped:].copy()
    return ENGINE.const(values, list(shape), ENGINE.NCHW, ENGINE.float)


def to_plain(x: Var, shape: Sequence[int]) -> Var:
    """Return a batch with samples of this shape, in the order of memory.

    Images stay in MNN's packed format between convolutions, and signals as images of height 1.
    """
    if x.data_format == ENGINE.NC4HW4:
        x = ENGINE.convert(x, ENGINE.NCHW)
    return x if x.shape[1:] == list(shape) else ENGINE.reshape(x, [x.shape[0], *shape])


def to_image(x: Var, shape: Sequence[int]) -> Var:
    """Return a batch of images or signals in the packed format that convolutions need."""
    if x.data_format == ENGINE.NC4HW4:
        return x
    channels, *space = shape
    image = [x.shape[0], channels, *lift_sizes(space, 1)]
    if x.shape != image:
        x = ENGINE.reshape(x, image)
    return ENGINE.convert(x, ENGINE.NC4HW4)


def lift_sizes(sizes: Sequence[int], missing: int) -> list[int]:
    """Return height and width: a signal is an image of one row."""
    return [*[missing] * (2 - len(sizes)), *sizes]


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
