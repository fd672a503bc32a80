"""Recognise what exporters spell out: activations, norms, attention and the bias of a product.

A pattern is a tree of operators. Its leaves are ``x``, the value that it is computed from, and
``w`` and ``b``, weights. Numbers that an operator reads besides are not part of a tree. Results
inside a tree are read by the tree alone, so it can be replaced by one call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joulecast.runtimes.onnx_files.attention_pattern import match_attention
from joulecast.runtimes.onnx_files.graph_values import GraphCall, GraphValue, Node
from joulecast.runtimes.onnx_files.shape_rules import list_reduced_axes

Pattern = tuple[Any, ...]

FUSED = "joulecast::"
"""Domain of the calls that replace a pattern."""

_COMMUTATIVE = ("Add", "Mul")
# They read lists besides: axes, a shape, or the ones and zeros of a norm without weights.
_READS_LISTS = ("ReduceMean", "Reshape", "InstanceNormalization")
_LEAVES = ("w", "b")


def _list_patterns() -> Iterator[tuple[str, Pattern]]:
    """Return the trees of each function, the largest first."""
    centred: Pattern = ("Sub", "x", ("ReduceMean", "x"))
    for squared in (("Pow", centred), ("Mul", centred, centred)):
        deviation = ("Sqrt", ("Add", ("ReduceMean", squared)))
        for normal in (("Div", centred, deviation), ("Mul", centred, ("Reciprocal", deviation))):
            yield "layer_norm", ("Add", ("Mul", normal, "w"), "b")
    grouped = ("Reshape", ("InstanceNormalization", ("Reshape", "x")))
    yield "group_norm", ("Add", ("Mul", grouped, "w"), "b")
    for own_square in (("Pow", "x"), ("Mul", "x", "x")):
        size = ("Sqrt", ("Add", ("ReduceMean", own_square)))
        yield "rms_norm", ("Mul", ("Div", "x", size), "w")
        yield "rms_norm", ("Mul", ("Mul", "x", ("Reciprocal", size)), "w")
        yield "rms_norm", ("Mul", ("Mul", "x", ("Div", size)), "w")
    cubes = (("Pow", "x"), ("Mul", "x", ("Mul", "x", "x")))
    inner: list[Pattern] = [("Erf", (scale, "x")) for scale in ("Div", "Mul")]
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
    for product in ("MatMul", "MatMulInteger"):
        yield "linear", ("Add", (product, "x", "w"), "b")


PATTERNS = tuple(_list_patterns())


def fuse_patterns(calls: Sequence[GraphCall], outputs: Sequence[str]) -> list[GraphCall]:
    """Return the calls with every pattern replaced by one call, named ``joulecast::silu`` ..."""
    return _Fusion(calls, outputs).run()


@dataclass
class _Match:
    """A tree that was found.

    Attributes:
        leaves: Names of the values at the leaves.
        inside: Positions of its calls.
    """

    leaves: dict[str, str]
    inside: frozenset[int]


class _Fusion:
    def __init__(self, calls: Sequence[GraphCall], outputs: Sequence[str]) -> None:
        self.calls: list[GraphCall | None] = list(calls)
        self.maker = {
            name: place for place, call in enumerate(calls) for name in call.node.outputs if name
        }
        self.readers = Counter(name for call in calls for name in set(call.node.inputs) if name)
        self.readers.update(outputs)
        self.values: dict[str, GraphValue] = {}
        for call in calls:
            for name, value in zip(call.node.inputs, call.inputs, strict=True):
                if value is not None:
                    self.values[name] = value

    def run(self) -> list[GraphCall]:
        for place in range(len(self.calls) - 1, -1, -1):
            self._fuse_at(place)
        return [call for call in self.calls if call is not None]

    def _fuse_at(self, place: int) -> None:
        call = self.calls[place]
        if call is None:
            return
        found = match_attention(place, self)
        if found is not None:
            more = {"causal": int(found.is_causal)}
            self._replace(place, "sdpa", found.names, found.inside, more)
            return
        for name, pattern in _PATTERNS_OF.get(call.op, ()):
            match = self._match_call(pattern, place, _Match({}, frozenset()))
            if match is None or len(match.inside) < 2 or not self.is_closed(match.inside, place):
                continue
            if not self._fits(name, match):
                continue
            names = [match.leaves[leaf] for leaf in ("x", "w", "b") if leaf in match.leaves]
            self._replace(place, name, names, match.inside, self._copy_axes(name, match.inside))
            return

    def _replace(
        self,
        place: int,
        name: str,
        names: Sequence[str],
        inside: frozenset[int],
        more: dict[str, Any],
    ) -> None:
        call = self.calls[place]
        assert call is not None
        module = next((c.node.path for i in sorted(inside) if (c := self.calls[i])), "")
        attributes = {"passes": len(inside), **more}
        node = Node(
            f"{FUSED}{name}", tuple(names), call.node.outputs, attributes, module, call.node.label
        )
        for one in inside:
            self.calls[one] = None
        given = tuple(self.values[one] for one in names)
        self.calls[place] = GraphCall(node, given, call.outputs)

    def _copy_axes(self, name: str, inside: frozenset[int]) -> dict[str, Any]:
        """Return the first axis that a layer norm runs over, or the groups of a group norm."""
        calls = [call for place in inside if (call := self.calls[place]) is not None]
        if name == "layer_norm":
            mean = next(call for call in calls if call.op == "ReduceMean")
            return {"axis": list_reduced_axes(mean)[0]}
        if name == "group_norm":
            norm = next(call for call in calls if call.op == "InstanceNormalization")
            return {"num_groups": norm.shape(0)[1]}
        return {}

    def _fits(self, name: str, match: _Match) -> bool:
        """Check what a tree does not say: sizes of weights, and that softmax has no such bias."""
        if name != "linear":
            return True
        weight, bias = self.values[match.leaves["w"]], self.values[match.leaves["b"]]
        is_matrix = weight.is_constant and len(weight.dims) == 2
        return is_matrix and bias.elements == weight.dims[-1]

    def is_closed(self, inside: frozenset[int], last: int) -> bool:
        """Return whether results inside a tree are read by the tree alone."""
        for place in inside - {last}:
            call = self.calls[place]
            assert call is not None
            for name in call.node.outputs:
                within = sum(
                    name in other.node.inputs
                    for one in inside
                    if (other := self.calls[one]) is not None
                )
                if self.readers[name] != within:
                    return False
        return True

    def find_maker(self, name: str) -> int | None:
        """Return the place of the call that computes a value, unless it was replaced."""
        place = self.maker.get(name)
        return place if place is not None and self.calls[place] is not None else None

    def _match_call(self, pattern: Pattern, place: int, match: _Match) -> _Match | None:
        call = self.calls[place]
        if call is None or call.op != pattern[0]:
            return None
        wanted = pattern[1:]
        names = self._list_operands(call, wanted)
        if names is None:
            return None
        match = replace(match, inside=match.inside | {place})
        orders = [names]
        if call.op in _COMMUTATIVE and len(names) == 2:
            orders.append(names[::-1])
        for order in orders:
            found = self._match_all(wanted, order, match)
            if found is not None:
                return found
        return None

    def _match_all(
        self, wanted: Sequence[Any], names: Sequence[str], match: _Match
    ) -> _Match | None:
        found: _Match | None = match
        for pattern, name in zip(wanted, names, strict=True):
            if found is None:
                return None
            found = self._match_value(pattern, name, found)
        return found

    def _match_value(self, pattern: Any, name: str, match: _Match) -> _Match | None:
        if isinstance(pattern, str):
            if pattern in _LEAVES and not self.values[name].is_weight:
                return None
            if pattern == "x" and self.values[name].is_constant:
                return None
            if match.leaves.get(pattern, name) != name:
                return None
            return replace(match, leaves={**match.leaves, pattern: name})
        place = self.find_maker(name)
        return None if place is None else self._match_call(pattern, place, match)

    def _list_operands(self, call: GraphCall, wanted: Sequence[Any]) -> list[str] | None:
        """Return the inputs that a pattern describes: all but plain numbers and lists of axes."""
        named = [
            (name, value)
            for name, value in zip(call.node.inputs, call.inputs, strict=True)
            if value is not None
        ]
        takes_weights = any(one in _LEAVES for one in wanted)
        operands = [
            name
            for name, value in named
            if not value.is_constant or (takes_weights and value.weights)
        ]
        numbers = [value for name, value in named if name not in operands]
        if any(value.elements != 1 for value in numbers) and call.op not in _READS_LISTS:
            return None
        return operands if len(operands) == len(wanted) else None


_PATTERNS_OF: dict[str, list[tuple[str, Pattern]]] = {}
for _name, _pattern in PATTERNS:
    _PATTERNS_OF.setdefault(_pattern[0], []).append((_name, _pattern))
