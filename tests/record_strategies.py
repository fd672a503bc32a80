"""Draw records with Hypothesis, for property-based tests.

The strategies draw every value that a record accepts, including networks that make no sense: all of
them must survive JSON, files and stores.
"""

from __future__ import annotations

from hypothesis import strategies as st

from joulecast.records import (
    FLOAT_PRECISIONS,
    INT8_PRECISIONS,
    JOINS,
    LOSSES,
    MODES,
    OPTIMIZERS,
    PHASES,
    PROVENANCES,
    STAGES,
    UPSTREAMS,
    Device,
    Execution,
    Input,
    Layer,
    Network,
    Observation,
    Op,
    Profile,
    Setup,
    Sizes,
    StepTotals,
    Trial,
)

names = st.text(max_size=8)
# Texts that are columns of the store's tables.
labels = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
kinds = st.sampled_from(["conv2d", "linear", "lstm", "elementwise", "pool"])
whole = st.integers(0, 10**9)
count = st.integers(1, 2**20)
amounts = st.just(0.0) | st.floats(1e-60, 1e12)
shares = st.floats(0, 1)
times = st.floats(0, 2e11)
maybe = st.none() | amounts
size_values = whole | names | amounts | st.lists(whole, max_size=3).map(tuple)
sizes = st.dictionaries(st.sampled_from(["cin", "cout", "space", "p", "fn"]), size_values).map(
    Sizes
)
ops = st.builds(Op, kinds, sizes)
leaves = st.builds(
    Layer,
    kinds,
    sizes,
    tail=st.lists(ops, max_size=2).map(tuple),
    trains=st.booleans(),
    input_grad=st.booleans(),
    reads=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    join=st.sampled_from(JOINS),
    calls=st.integers(1, 9),
    tied=st.booleans(),
    channels_last=st.booleans(),
    channels_last_weights=st.booleans(),
    transposed=st.lists(st.integers(0, 2), max_size=2).map(tuple),
    recomputed=st.booleans(),
    name=names,
)
layers = leaves | st.builds(
    Layer, kinds, sizes, parts=st.lists(leaves, max_size=2).map(tuple), name=names
)
inputs = st.builds(Input, st.lists(count, max_size=3).map(tuple), whole)
totals = st.builds(
    StepTotals,
    amounts,
    amounts,
    whole,
    shares,
    shares,
    shares,
    ops_without_rule=st.lists(st.tuples(names, count), max_size=2).map(tuple),
    uncounted_bytes_share=shares,
    notes=st.lists(names, max_size=2).map(tuple),
)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Draw a network whose groups are disjoint ranges of its layers, in order."""
    drawn = draw(st.lists(layers, max_size=4))
    cuts = sorted(draw(st.sets(st.integers(0, len(drawn)), max_size=4)))
    return Network(
        tuple(drawn),
        draw(inputs),
        tuple(zip(cuts[::2], cuts[1::2], strict=False)),
        draw(st.booleans()),
        draw(names),
        draw(st.none() | totals),
    )


_float_setups = st.builds(
    Setup,
    count,
    st.sampled_from(PHASES),
    st.sampled_from(FLOAT_PRECISIONS),
    st.sampled_from(OPTIMIZERS),
    st.sampled_from(LOSSES),
    st.integers(0, 64),
    st.booleans(),
    st.sampled_from(("", "NNAPI")),
    st.booleans(),
)
_int8_setups = st.builds(
    Setup, count, phase=st.just("inference"), precision=st.sampled_from(INT8_PRECISIONS)
)
_torch_setups = st.builds(
    Setup, count, accumulate=st.integers(0, 9), compiled=st.booleans(), cuda_graphs=st.booleans()
)
setups = _float_setups | _int8_setups | _torch_setups
executions = st.builds(
    Execution,
    st.sampled_from(STAGES),
    st.sampled_from(MODES),
    st.integers(1, 9),
    st.sampled_from(UPSTREAMS),
    count,
)
trials = st.builds(Trial, networks(), setups, executions)
devices = st.builds(Device, labels, names, whole, names, labels)
observations = st.builds(
    Observation,
    trials,
    energy_j=maybe,
    energy_sd_j=maybe,
    duration_s=maybe,
    duration_sd_s=maybe,
    issue_s=maybe,
    issue_sd_s=maybe,
    count=count,
    peak_memory_bytes=st.none() | whole,
    run=labels,
    device=devices,
    runtime=labels,
    meter=names,
    covers=labels,
    provenance=st.sampled_from(PROVENANCES),
    source=names,
    taken_at_s=times,
    cost_s=amounts,
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
    seen = st.builds(
        lambda one, drawn: Observation(**{**one.__dict__, **same, "taken_at_s": drawn}),
        observations,
        times,
    )
    unique = st.lists(seen, max_size=3, unique_by=lambda one: one.taken_at_s)
    return Profile(device, runtime, covers, provenance, tuple(draw(unique)), draw(fits))
