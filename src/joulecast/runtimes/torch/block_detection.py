"""Group traced events: fuse hand-written activations, and find repeated blocks of layers."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from joulecast.kinds import KINDS, Work
from joulecast.runtimes.torch.build import Block
from joulecast.runtimes.torch.event_arguments import find_largest_constant, function_name
from joulecast.runtimes.torch.op_readers import PACKED_SDPA
from joulecast.runtimes.torch.trace_events import Event, ModuleCall, Trace

_CONTAINERS = {"Sequential", "ModuleList", "ModuleDict"}
# A class that covers this share of the heavy events of the best class competes with it.
_COVERAGE_SHARE = 0.9


def fuse_plain_modules(trace: Trace) -> list[Event]:
    """Return the events with each module without weights, children and products as one event.

    Hand-written activations are such modules: several small functions in a row.
    """
    events = list(trace.events)
    computed_tensors = [*trace.inputs, *_list_computed(trace)]
    for call in trace.calls:
        inside = [event for event in trace.events[call.start : call.stop] if event.is_dynamic]
        if not call.is_leaf or not _is_hand_written(inside):
            continue
        if any(find_largest_constant(event, computed_tensors, batch=1) for event in inside):
            continue
        computed = {value for event in inside for value in event.output_ids}
        pairs = [pair for event in inside for pair in event.list_inputs()]
        read = {value: tensor for value, tensor in reversed(pairs) if value not in computed}
        order = dict.fromkeys(value for value, _ in pairs if value in read)
        events[call.start] = replace(
            inside[-1],
            name=call.class_name.lower(),
            args=inside[0].args,
            kwargs={},
            input_ids=tuple(order),
            input_tensors=tuple(read[value] for value in order),
            forward=sum((event.forward for event in inside), Work()),
            backward=sum((event.backward for event in inside), Work()),
            recomputed=sum((event.recomputed for event in inside), Work()),
            needs_input_grad=inside[0].needs_input_grad,
            is_fused=True,
        )
        for index in range(call.start + 1, call.stop):
            events[index] = replace(events[index], is_dynamic=False)
    return events


def find_blocks(trace: Trace, events: list[Event]) -> list[ModuleCall]:
    """Return the calls of the module class that a network repeats, in order.

    Candidates are classes that are called at least twice, with at least two heavy events per call.
    Of those that cover nearly as many heavy events as the best one, the most often called wins.
    """
    is_heavy = [event.forward.flops > 0 for event in events]
    by_class: dict[str, list[ModuleCall]] = {}
    for call in trace.calls:
        is_candidate = call.path and call.class_name not in _CONTAINERS
        if is_candidate and sum(is_heavy[call.start : call.stop]) > 1:
            by_class.setdefault(call.class_name, []).append(call)
    if Block.__name__ in by_class:
        return sorted(by_class[Block.__name__], key=_range_of)
    repeated = {name: calls for name, calls in by_class.items() if len(calls) > 1}
    if not repeated:
        return []
    coverage = {
        name: sum(sum(is_heavy[call.start : call.stop]) for call in calls)
        for name, calls in repeated.items()
    }
    best = max(coverage.values())
    rivals = [name for name in repeated if coverage[name] >= _COVERAGE_SHARE * best]
    chosen = max(rivals, key=lambda name: (len(repeated[name]), coverage[name]))
    calls = sorted(repeated[chosen], key=_range_of)
    ranges = list(map(_range_of, calls))
    # Drop ranges inside another one: a class may contain instances of itself.
    return [
        call
        for call, r in zip(calls, ranges, strict=True)
        if not any(o != r and o[0] <= r[0] and r[1] <= o[1] for o in ranges)
    ]


def _range_of(call: ModuleCall) -> tuple[int, int]:
    return call.start, call.stop


def _is_hand_written(events: list[Event]) -> bool:
    """Return whether several plain functions do the work; one that casts its input is itself."""
    working = sum(event.forward.launches > 0 for event in events)
    return working > 1 and all(map(_is_plain, events))


def _list_computed(trace: Trace) -> list[Tensor]:
    return [tensor for event in trace.events if event.is_dynamic for tensor in event.outputs]


def _is_plain(event: Event) -> bool:
    """Return whether an event has no weights, no products and no kind of its own."""
    if event.param_names or event.matmuls:
        return False
    name = function_name(event)
    kind = KINDS.get(name)
    # A convolution with a fixed kernel, such as a blur, is fused all the same.
    is_layer = kind is not None and not kind.can_be_in_tail and not kind.is_convolution
    return not is_layer and name != PACKED_SDPA and "attention" not in name
