"""Recognise scaled dot-product attention: product, scale, mask, softmax, product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from joulecast.runtimes.onnx_files.graph_values import GraphCall, GraphValue


class CallSource(Protocol):
    """The calls among which attention is looked for."""

    calls: list[GraphCall | None]
    values: dict[str, GraphValue]

    def find_maker(self, name: str) -> int | None:
        """Return the place of the call that computes a value."""

    def is_closed(self, inside: frozenset[int], last: int) -> bool:
        """Return whether results of calls are read by those calls alone."""


@dataclass(frozen=True)
class AttentionMatch:
    """Attention that is spelled out.

    Attributes:
        names: Names of queries, transposed keys and values, and of a mask that is computed.
        inside: Places of its calls.
        is_causal: Its mask is one constant matrix for all samples and heads.
    """

    names: tuple[str, ...]
    inside: frozenset[int]
    is_causal: bool


def match_attention(place: int, source: CallSource) -> AttentionMatch | None:
    """Return the attention that ends with a call; None if none does.

    Args:
        place: The place of the call: the product with the values.
        source: All calls.
    """
    call = source.calls[place]
    if call is None or not _is_product(call):
        return None
    inside = {place}
    weights = _skip_nan_guard(call.node.inputs[0], source, inside)
    softmax = _find(weights, source, ("Softmax",))
    if softmax is None:
        return None
    inside.add(softmax)
    name, masks = _read(source, softmax).node.inputs[0], list[str]()
    while True:
        found = _find(name, source, ("Add", "Where", "Mul", "Div", "Max"))
        if found is None:
            break
        step = _split_operands(_read(source, found), source)
        if step is None:
            return None
        inside.add(found)
        name, mask = step
        masks += [mask] if mask else []
    product = _find(name, source, ("MatMul",))
    if product is None or not _is_product(_read(source, product)):
        return None
    inside.add(product)
    query, key = _read(source, product).node.inputs[:2]
    query, key = _skip_scale(query, source, inside), _skip_scale(key, source, inside)
    value = call.node.inputs[1]
    if not source.is_closed(frozenset(inside), place):
        return None
    if any(len(source.values[one].shape or ()) < 3 for one in (query, key, value)):
        return None
    computed = [mask for mask in masks if not source.values[mask].is_constant]
    is_causal = any(_is_matrix(source.values[mask]) for mask in masks)
    return AttentionMatch((query, key, value, *computed[:1]), frozenset(inside), is_causal)


def _is_matrix(mask: GraphValue) -> bool:
    """Return whether a mask is a constant square matrix, the same for all samples and heads."""
    *lead, rows, columns = (1, 1, *(mask.shape or ()))
    return mask.is_constant and rows == columns > 1 and set(lead) == {1}


def _is_product(call: GraphCall) -> bool:
    """Return whether it multiplies two computed values."""
    is_matmul = call.op == "MatMul" and len(call.inputs) == 2
    return is_matmul and all(one is not None and not one.is_constant for one in call.inputs)


def _find(name: str, source: CallSource, ops: tuple[str, ...]) -> int | None:
    place = source.find_maker(name)
    return place if place is not None and _read(source, place).op in ops else None


def _read(source: CallSource, place: int) -> GraphCall:
    call = source.calls[place]
    assert call is not None
    return call


def _skip_nan_guard(name: str, source: CallSource, inside: set[int]) -> str:
    """Return what ``Where(IsNaN(x), 0, x)`` guards, as PyTorch exports it for masked rows."""
    guard = _find(name, source, ("Where",))
    if guard is None:
        return name
    condition, _, guarded = _read(source, guard).node.inputs
    check = _find(condition, source, ("IsNaN",))
    if check is None or _read(source, check).node.inputs[0] != guarded:
        return name
    inside.update((guard, check))
    return guarded


def _skip_scale(name: str, source: CallSource, inside: set[int]) -> str:
    """Return what is multiplied or divided by one number."""
    found = _find(name, source, ("Mul", "Div"))
    if found is None:
        return name
    call = _read(source, found)
    computed = [
        one
        for one, value in zip(call.node.inputs, call.inputs, strict=True)
        if value is not None and not (value.is_constant and value.elements == 1)
    ]
    if len(computed) != 1 or not source.is_closed(frozenset((*inside, found)), max(inside)):
        return name
    inside.add(found)
    return computed[0]


def _split_operands(call: GraphCall, source: CallSource) -> tuple[str, str] | None:
    """Return the scores that a call scales or masks, and the mask; None if it does neither.

    Scores are what a product computed, however far above; a mask may be computed as well.
    """
    named = [
        (name, value)
        for name, value in zip(call.node.inputs, call.inputs, strict=True)
        if value is not None
    ]
    computed = [name for name, value in named if not value.is_constant]
    constants = [name for name, value in named if value.is_constant]
    if call.op in ("Mul", "Div", "Max"):
        return (computed[0], constants[0]) if len(computed) == 1 and constants else None
    scores = [name for name in computed if _reaches_product(name, source)]
    if len(scores) != 1:
        return None
    others = [name for name in (*computed, *constants) if name != scores[0]]
    return scores[0], next(iter(others), "")


def _reaches_product(name: str, source: CallSource) -> bool:
    for _ in range(8):
        place = source.find_maker(name)
        if place is None:
            return False
        call = _read(source, place)
        if _is_product(call):
            return True
        if call.op not in ("Add", "Where", "Mul", "Div", "Max"):
            return False
        computed = [
            one
            for one, value in zip(call.node.inputs, call.inputs, strict=True)
            if value is not None and not value.is_constant
        ]
        if not computed:
            return False
        name = computed[-1] if call.op == "Where" else computed[0]
    return False
