"""Draw records with Hypothesis, from the annotations that are their schema.

The strategies draw what a record accepts, including networks that make no sense: all of them must
survive JSON, files and stores.
"""

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from joulecast.records import (
    FLOAT_PRECISIONS,
    PROVENANCES,
    Device,
    Execution,
    Input,
    Layer,
    Network,
    Observation,
    Op,
    Profile,
    Record,
    Setup,
    Sizes,
    StepTotals,
    Trial,
)
from joulecast.records.codec import Choices, Range

names = st.text(max_size=8)
# Texts that are columns of the store's tables.
labels = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
whole = st.integers(0, 10**9)
amounts = st.just(0.0) | st.floats(1e-60, 1e12)
size_values = whole | names | amounts | st.lists(whole, max_size=3).map(tuple)
sizes = st.dictionaries(st.sampled_from(["cin", "cout", "space", "p", "fn"]), size_values).map(
    Sizes
)
PLAIN = {str: names, int: whole, float: amounts, bool: st.booleans(), Sizes: sizes}


def draw_hint(hint: Any, limit: Any = None) -> st.SearchStrategy[Any]:
    """Return the strategy of an annotation and its limit."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return draw_hint(*args)
    if isinstance(limit, Choices):
        return st.sampled_from(limit.values)
    if isinstance(limit, Range) and hint is int:
        return st.integers(limit.least, min(limit.most, 2**20))
    if isinstance(limit, Range):
        most = min(limit.most, 1e12)
        return st.just(limit.least) | st.floats(max(limit.least, limit.tiny), most)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin in (Union, types.UnionType):
        return st.one_of(*(st.none() if one is type(None) else draw_hint(one) for one in args))
    if origin is tuple and args[-1] is not Ellipsis:
        return st.tuples(*map(draw_hint, args))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(names, draw_hint(args[1]), max_size=2)
    if isinstance(hint, type) and issubclass(hint, Record):
        return draw_record(hint)
    return st.lists(draw_hint(args[0]), max_size=2).map(tuple)


def draw_record(cls: type[Record], **known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return the strategy of a record, with that of some fields given."""
    hints = get_type_hints(cls, include_extras=True)
    others = [one.name for one in fields(cls) if one.name not in known]
    return st.builds(cls, **{name: draw_hint(hints[name]) for name in others}, **known)


kinds = st.sampled_from(["conv2d", "linear", "lstm", "elementwise", "pool"])
ops = draw_record(Op, kind=kinds)
leaves = draw_record(
    Layer,
    kind=kinds,
    tail=st.lists(ops, max_size=2).map(tuple),
    reads=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    parts=st.just(()),
)
layers = leaves | st.builds(
    Layer, kinds, sizes, parts=st.lists(leaves, max_size=2).map(tuple), name=names
)
inputs = draw_record(Input)
waits = st.just(()) | st.lists(st.integers(0, 1000), min_size=20, max_size=20).map(tuple)
totals = draw_record(StepTotals, waits=waits)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Draw a network whose groups are disjoint ranges of its layers, in order."""
    drawn = draw(st.lists(layers, max_size=4))
    cuts = sorted(draw(st.sets(st.integers(0, len(drawn)), max_size=4)))
    groups = tuple(zip(cuts[::2], cuts[1::2], strict=False))
    rest = {"buildable": draw(st.booleans()), "name": draw(names)}
    return Network(tuple(drawn), draw(inputs), groups, **rest, totals=draw(st.none() | totals))


_floats = st.sampled_from(FLOAT_PRECISIONS)
setups = draw_record(Setup, phase=st.just("train"), precision=_floats) | draw_record(
    Setup, phase=st.just("inference"), accumulate=st.just(1)
)
executions = draw_record(Execution)
trials = st.builds(Trial, networks(), setups, executions)
devices = draw_record(Device, name=labels, power_mode=labels)
observations = draw_record(
    Observation, trial=trials, device=devices, run=labels, runtime=labels, covers=labels
)
json_values = st.recursive(
    st.none() | st.booleans() | whole | amounts | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
fits = st.dictionaries(labels, st.dictionaries(names, json_values, max_size=3), max_size=2)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Draw a profile whose observations have its device, runtime, coverage and provenance."""
    device, runtime, covers = draw(devices), draw(labels), draw(labels)
    provenance = draw(st.sampled_from(PROVENANCES))
    same = {"device": device, "runtime": runtime, "covers": covers, "provenance": provenance}
    seen = observations.map(lambda one: Observation(**{**one.__dict__, **same}))
    unique = st.lists(seen, max_size=3, unique_by=lambda one: one.taken_at_s)
    return Profile(device, runtime, covers, provenance, tuple(draw(unique)), draw(fits))


def put(data: Any, place: Sequence[Any], value: Any) -> Any:
    """Return a copy of JSON with another value at a place."""
    if not place:
        return value
    first, *rest = place
    copy = data.copy()
    copy[first] = put(data.get(first) if isinstance(data, dict) else data[first], rest, value)
    return copy
