"""Rewrite the calls of an ONNX graph to those that a network in PyTorch would make.

Slices that cover a value become one split, what exporters spell out (activations, norms, attention,
the bias of a product) becomes one call, and a copy is put where a transposed value is reshaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from joulecast.onnx_nets.graph import (
    FUSED,
    RECURRENT,
    VIEWS,
    GraphCall,
    GraphValue,
    list_permutation,
    list_reduced_axes,
    normalise_axis,
)
from joulecast.operators import Shape


def merge_slices(calls: Sequence[GraphCall]) -> list[GraphCall]:
    """Return the calls with slices that together cover a value once replaced by one ``Split``."""
    slices: dict[str, list[tuple[int, int, int, int]]] = {}
    for place, call in enumerate(calls):
        if call.op == "Slice" and call.outputs[0].shape is not None:
            slices.setdefault(call.reads[0], []).append((*_find_range(call), place))
    replaced: dict[int, GraphCall | None] = {}
    for parts in slices.values():
        ordered = sorted(parts)
        axis, start, _, place = ordered[0]
        follow = all(one[0] == two[0] and one[2] == two[1] for one, two in pairwise(ordered))
        first = calls[place]
        is_whole = axis >= 0 and not start and ordered[-1][2] == first.shape(0)[axis]
        if len(parts) < 2 or not follow or not is_whole:
            continue
        sliced = [calls[place] for *_, place in ordered]
        # A value that a call reads is computed before the first of its slices.
        replaced.update((place, None) for *_, place in parts)
        replaced[parts[0][3]] = replace(
            first, op="Split", reads=first.reads[:1], inputs=first.inputs[:1],
            makes=tuple(call.makes[0] for call in sliced),
            outputs=tuple(call.outputs[0] for call in sliced), attributes={"axis": axis},
        )  # fmt: skip
    merged = (replaced.get(place, call) for place, call in enumerate(calls))
    return [call for call in merged if call is not None]


def _find_range(call: GraphCall) -> tuple[int, int, int]:
    """Return axis, start and stop of a slice along one axis; an axis of -1 for any other."""
    shape = call.shape(0)
    starts, ends = call.numbers(1, "starts") or (), call.numbers(2, "ends") or ()
    axes = call.numbers(3, "axes") or tuple(range(len(starts)))
    steps = call.numbers(4, "steps") or (1,) * len(starts)
    taken = [
        (normalise_axis(axis, len(shape)), range(shape[axis])[start:stop:step])
        for axis, start, stop, step in zip(axes, starts, ends, steps, strict=True)
    ]
    partial = [(axis, one) for axis, one in taken if len(one) != shape[axis]]
    if len(partial) != 1 or any(one.step != 1 for _, one in taken):
        return (-1, 0, 0)
    ((axis, found),) = partial
    return axis, found.start, found.stop


# A tree of operators. Its leaves are ``x``, the value that it is computed from, and ``w`` and
# ``b``, weights. Numbers that an operator reads besides are not part of it.
_Tree = tuple[Any, ...]
# Names of the values at the leaves of a tree, and places of its calls.
_Match = tuple[dict[str, str], frozenset[int]]

_COMMUTATIVE = ("Add", "Mul")
# They read lists besides: axes, a shape, or the ones and zeros of a norm without weights.
_READS_LISTS = ("ReduceMean", "Reshape", "InstanceNormalization")
_WEIGHTS = ("w", "b")
# What is done to the scores of attention between its product and its softmax.
_SCALING = ("Mul", "Div", "Max")
_ON_SCORES = ("Add", "Where", *_SCALING)
_MOST_CHANGES = 8


def _list_trees() -> Iterator[tuple[str, _Tree]]:
    """Return the trees of each function, the largest first."""
    centred: _Tree = ("Sub", "x", ("ReduceMean", "x"))
    for squared in (("Pow", centred), ("Mul", centred, centred)):
        deviation = ("Sqrt", ("Add", ("ReduceMean", squared)))
        for normal in (("Div", centred, deviation), ("Mul", centred, ("Reciprocal", deviation))):
            yield "layer_norm", ("Add", ("Mul", normal, "w"), "b")
    grouped = ("Reshape", ("InstanceNormalization", ("Reshape", "x")))
    yield "group_norm", ("Add", ("Mul", grouped, "w"), "b")
    for own_square in (("Pow", "x"), ("Mul", "x", "x")):
        size = ("Sqrt", ("Add", ("ReduceMean", own_square)))
        for scaled in (
            ("Div", "x", size), ("Mul", "x", ("Reciprocal", size)), ("Mul", "x", ("Div", size))
        ):  # fmt: skip
            yield "rms_norm", ("Mul", scaled, "w")
    cubes = (("Pow", "x"), ("Mul", "x", ("Mul", "x", "x")))
    inner: list[_Tree] = [("Erf", (scale, "x")) for scale in ("Div", "Mul")]
    inner += [("Tanh", ("Mul", ("Add", "x", ("Mul", cube)))) for cube in cubes]
    for function in inner:
        raised = ("Add", function)
        yield "gelu", ("Mul", ("Mul", "x", raised))
        yield "gelu", ("Mul", "x", ("Mul", raised))
        yield "gelu", ("Mul", ("Mul", "x"), raised)
    clipped = ("Clip", ("Add", "x"))
    for divide in ("Div", "Mul"):
        yield "hardswish", (divide, ("Mul", "x", clipped))
        yield "hardswish", ("Mul", "x", (divide, clipped))
        yield "hardsigmoid", (divide, clipped)
    yield "hardswish", ("Mul", "x", ("HardSigmoid", "x"))
    yield "mish", ("Mul", "x", ("Tanh", ("Softplus", "x")))
    yield "quickgeluactivation", ("Mul", "x", ("Sigmoid", ("Mul", "x")))
    yield "silu", ("Mul", "x", ("Sigmoid", "x"))
    yield "linear", ("Add", ("MatMul", "x", "w"), "b")


_TREES = tuple(_list_trees())


def fuse_patterns(calls: Sequence[GraphCall], outputs: Sequence[str]) -> list[GraphCall]:
    """Return the calls with every pattern replaced by one call, named ``joulecast::silu`` ...

    Results inside a pattern are read by it alone.
    """
    fusion = _Fusion(calls, outputs)
    for place in range(len(calls) - 1, -1, -1):
        fusion.fuse_at(place)
    return [fusion.calls[place] for place in sorted(fusion.calls)]


class _Fusion:
    """The calls of a graph by their places; those inside a pattern are removed."""

    def __init__(self, calls: Sequence[GraphCall], outputs: Sequence[str]) -> None:
        self.calls = dict(enumerate(calls))
        self.maker = {name: place for place, call in self.calls.items() for name in call.makes}
        self.readers = Counter(name for call in calls for name in set(call.reads) if name)
        self.readers.update(outputs)
        self.values = {name: value for call in calls for name, value in call.named_inputs}

    def fuse_at(self, place: int) -> None:
        """Replace the pattern that ends with a call, if one does."""
        call = self.calls.get(place)
        if call is None:
            return
        attention = self._match_attention(place)
        if attention is not None:
            self._replace(place, "sdpa", *attention)
            return
        for name, tree in _TREES:
            if tree[0] != call.op:
                continue
            match = self._match_call(tree, place, ({}, frozenset()))
            if match is None or len(match[1]) < 2 or not self._is_closed(match[1], place):
                continue
            leaves, inside = match
            if name == "linear":
                weight, bias = self.values[leaves["w"]], self.values[leaves["b"]]
                if len(weight.dims) != 2 or bias.elements != weight.dims[-1]:
                    continue
            names = [leaves[leaf] for leaf in ("x", "w", "b") if leaf in leaves]
            self._replace(place, name, names, inside, self._copy_axes(name, inside))
            return

    def _replace(
        self,
        place: int,
        name: str,
        names: Sequence[str],
        inside: frozenset[int],
        attributes: dict[str, Any],
    ) -> None:
        taken = {one: self.calls.pop(one) for one in inside}
        self.calls[place] = replace(
            taken[place], op=f"{FUSED}{name}", reads=tuple(names), path=taken[min(inside)].path,
            inputs=tuple(self.values[one] for one in names),
            attributes={"passes": len(inside), **attributes},
        )  # fmt: skip

    def _copy_axes(self, name: str, inside: frozenset[int]) -> dict[str, Any]:
        """Return the first axis that a layer norm runs over, or the groups of a group norm."""
        by_op = {self.calls[place].op: self.calls[place] for place in sorted(inside, reverse=True)}
        if name == "layer_norm":
            return {"axis": list_reduced_axes(by_op["ReduceMean"])[0]}
        if name == "group_norm":
            return {"num_groups": by_op["InstanceNormalization"].shape(0)[1]}
        return {}

    def _is_closed(self, inside: Collection[int], last: int) -> bool:
        """Return whether results inside a pattern are read by the pattern alone."""
        within = Counter(name for one in inside for name in {*self.calls[one].reads})
        made = [name for one in inside if one != last for name in self.calls[one].makes]
        return all(self.readers[name] == within[name] for name in made if name)

    def _find(self, name: str, *ops: str) -> int | None:
        """Return the place of the call that computes a value, if its operator is one of these."""
        call = self.calls.get(self.maker.get(name, -1))
        return self.maker[name] if call is not None and call.op in ops else None

    def _match_call(self, tree: _Tree, place: int, match: _Match) -> _Match | None:
        call, wanted = self.calls[place], tree[1:]
        # All inputs but plain numbers and lists of axes.
        takes_weights = any(one in _WEIGHTS for one in wanted)
        names, has_lists = list[str](), False
        for name, value in call.named_inputs:
            if not value.is_constant or (takes_weights and value.weights):
                names.append(name)
            else:
                has_lists = has_lists or value.elements != 1
        if len(names) != len(wanted) or (has_lists and call.op not in _READS_LISTS):
            return None
        is_free = call.op in _COMMUTATIVE and len(names) == 2
        for order in (names, names[::-1]) if is_free else (names,):
            found: _Match | None = (match[0], match[1] | {place})
            for inner, name in zip(wanted, order, strict=True):
                found = None if found is None else self._match_value(inner, name, found)
            if found is not None:
                return found
        return None

    def _match_value(self, tree: Any, name: str, match: _Match) -> _Match | None:
        if not isinstance(tree, str):
            place = self._find(name, tree[0])
            return None if place is None else self._match_call(tree, place, match)
        value, (leaves, inside) = self.values[name], match
        if (tree in _WEIGHTS and not value.weights) or (tree == "x" and value.is_constant):
            return None
        return ({**leaves, tree: name}, inside) if leaves.get(tree, name) == name else None

    # -- attention: product, scale, mask, softmax, product -----------------------------------

    def _match_attention(
        self, place: int
    ) -> tuple[tuple[str, ...], frozenset[int], dict[str, int]] | None:
        """Return the attention that ends with a call, the product with the values.

        It has the names of queries, transposed keys and values, and of a mask that is computed,
        the places of its calls, and whether it is causal: whether its mask is one constant matrix
        for all samples and heads.
        """
        call = self.calls[place]
        if not _is_product(call):
            return None
        inside = {place}
        weights = call.reads[0]
        guard = self._find(weights, "Where")
        if guard is not None:
            # PyTorch exports Where(IsNaN(x), 0, x) for rows that are masked altogether.
            condition, _, guarded = self.calls[guard].reads
            check = self._find(condition, "IsNaN")
            if check is not None and self.calls[check].reads[0] == guarded:
                inside |= {guard, check}
                weights = guarded
        softmax = self._find(weights, "Softmax")
        scores = None if softmax is None else self._find_scores(self.calls[softmax].reads[0])
        if softmax is None or scores is None:
            return None
        (product, *changes), masks = scores
        inside |= {softmax, product, *changes}
        query, key = (self._skip_scale(one, inside) for one in self.calls[product].reads[:2])
        names = (query, key, call.reads[1])
        if not self._is_closed(inside, place):
            return None
        if any(len(self.values[one].shape or ()) < 3 for one in names):
            return None
        computed = [mask for mask in masks if not self.values[mask].is_constant]
        is_causal = any(_is_square(self.values[mask]) for mask in masks)
        return (*names, *computed[:1]), frozenset(inside), {"causal": int(is_causal)}

    def _skip_scale(self, name: str, inside: set[int]) -> str:
        """Return what is multiplied or divided by one number."""
        found = self._find(name, "Mul", "Div")
        if found is None:
            return name
        pairs = self.calls[found].named_inputs
        others = [one for one, value in pairs if not value.is_constant or value.elements != 1]
        if len(others) != 1 or not self._is_closed({*inside, found}, max(inside)):
            return name
        inside.add(found)
        return others[0]

    def _find_scores(
        self, name: str, most_changes: int = _MOST_CHANGES
    ) -> tuple[list[int], list[str]] | None:
        """Return product, scaling and masking calls that a value was computed by, and masks.

        It is None for other values. A mask may be computed as well, but not by a product.
        """
        place = self._find(name, "MatMul", *_ON_SCORES)
        if place is None or most_changes < 0:
            return None
        call = self.calls[place]
        if call.op == "MatMul":
            return ([place], []) if _is_product(call) else None
        computed = [one for one, value in call.named_inputs if not value.is_constant]
        constants = [one for one, value in call.named_inputs if value.is_constant]
        if call.op in _SCALING and (len(computed) != 1 or not constants):
            return None
        pairs = [(one, self._find_scores(one, most_changes - 1)) for one in computed]
        found = [scores for _, scores in pairs if scores is not None]
        if len(found) != 1:
            return None
        ((places, masks),) = found
        others = [*(one for one, scores in pairs if scores is None), *constants]
        return [*places, place], [*others[:1], *masks]


def _is_square(mask: GraphValue) -> bool:
    """Return whether a mask is a constant square matrix, the same for all samples and heads."""
    *lead, rows, columns = (1, 1, *(mask.shape or ()))
    return mask.is_constant and rows == columns > 1 and set(lead) == {1}


def _is_product(call: GraphCall) -> bool:
    """Return whether it multiplies two computed values."""
    is_matmul = call.op == "MatMul" and len(call.inputs) == 2
    return is_matmul and all(one is not None and not one.is_constant for one in call.inputs)


# Their results lie in memory as the next layer reads them: attention writes its heads side by side,
# and a recurrent layer its directions.
_SWAPPING = (f"{FUSED}sdpa", *RECURRENT)
# Their results lie in memory as their inputs do.
_UNARY = (
    "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "HardSwish", "HardSigmoid", "Gelu", "Erf",
    "Clip", "Softmax", f"{FUSED}gelu", f"{FUSED}silu", f"{FUSED}hardswish",
)  # fmt: skip
_Layout = np.ndarray[Any, Any]


def insert_copies(calls: Sequence[GraphCall]) -> list[GraphCall]:
    """Return the calls with a copy before every reshape that cannot be a view.

    Values are arrays with the strides that they would have, without memory.
    """
    layouts: dict[str, _Layout] = {}
    found: list[GraphCall] = []
    for call in calls:
        value, out = call.get(0), call.outputs[0].shape
        if value is None or value.shape is None or out is None:
            found.append(call)
            continue
        known, target = layouts.get(call.reads[0]), call.makes[0]
        old = _lay_out(value.shape) if known is None else known
        if call.op == "Transpose":
            layouts[target] = old.transpose(list_permutation(call))
        elif call.op == "Expand":
            layouts[target] = np.broadcast_to(old, out)
        elif call.op in _SWAPPING and len(out) == 4:
            layouts[target] = _lay_out((out[0], out[2], out[1], out[3])).transpose(0, 2, 1, 3)
        elif call.op in _UNARY and known is not None:
            layouts[target] = known
        elif call.op in VIEWS and known is not None:
            view = _view(known, out)
            if view is not None:
                layouts[target] = view
            else:
                copied = f"{call.reads[0]}#copied for {target}"
                copy = replace(call, op=f"{FUSED}copy", reads=call.reads[:1], inputs=(value,))
                found.append(replace(copy, makes=(copied,), outputs=(value,), attributes={}))
                call = replace(call, reads=(copied, *call.reads[1:]))
        found.append(call)
    return found


def _lay_out(shape: Shape) -> _Layout:
    """Return an array in row-major order that has strides but no memory: it must not be read."""
    strides = [*accumulate((1, *shape[:0:-1]), lambda one, size: one * max(1, size))][::-1]
    return np.lib.stride_tricks.as_strided(np.empty(0, np.int8), shape, strides[: len(shape)])


def _view(array: _Layout, shape: Shape) -> _Layout | None:
    """Return an array in another shape; None if its elements have to be copied.

    NumPy would try that copy, and read memory that is not there.
    """
    if 0 in shape:
        return _lay_out(shape)
    # Neighbouring axes that lie one after the other in memory are one.
    runs: list[tuple[int, int]] = []
    for size, stride in zip(array.shape, array.strides, strict=True):
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        elif size > 1:
            runs.append((size, stride))
    strides: list[int] = []
    left, stride = 1, 1
    for size in reversed(shape):
        if left == 1 < size:
            left, stride = runs.pop()
        if left % size:
            return None
        strides.insert(0, stride)
        left, stride = left // size, stride * size
    return np.lib.stride_tricks.as_strided(array, shape, strides)
