"""Which events of a trace belong together: hand-written activations, and repeated blocks."""

from __future__ import annotations

from dataclasses import replace

from joulecast.kinds import Work
from joulecast.runtimes.torch.build import Block
from joulecast.runtimes.torch.ops import PACKED_SDPA, function_name
from joulecast.runtimes.torch.tracer import Event, ModuleCall, Trace

_CONTAINERS = {"Sequential", "ModuleList", "ModuleDict"}
_STANDING = {"embedding", "lstm", "gru", "attention", "sdpa", "matmul", "linear"}


def fuse_plain_modules(trace: Trace) -> list[Event]:
    """Modules without weights, children and products become one elementwise event each.

    This is what hand-written activations look like: several small functions in a row.
    """
    events = list(trace.events)
    for call in trace.calls:
        inside = [event for event in trace.events[call.start : call.stop] if event.dynamic]
        if not call.leaf or len(inside) < 2 or not _is_plain(inside):
            continue
        made = {number for event in inside for number in event.outputs}
        read = tuple(dict.fromkeys(n for event in inside for n in event.inputs if n not in made))
        events[call.start] = replace(
            inside[-1],
            name=call.kind.lower(),
            args=inside[0].args,
            kwargs={},
            inputs=read,
            forward=sum((event.forward for event in inside), Work()),
            backward=sum((event.backward for event in inside), Work()),
            input_grad=inside[0].input_grad,
            folded=True,
        )
        for place in range(call.start + 1, call.stop):
            events[place] = replace(events[place], dynamic=False)
    return events


def _is_plain(events: list[Event]) -> bool:
    return all(not event.params and not event.products and _is_light(event) for event in events)


def _is_light(event: Event) -> bool:
    """Whether an event is no operator with a row of its own."""
    name = function_name(event)
    return name not in _STANDING and name != PACKED_SDPA and "attention" not in name


def find_blocks(trace: Trace, events: list[Event]) -> list[tuple[int, int]]:
    """Event ranges of the module class that a net repeats.

    Among the classes called at least twice whose calls hold at least two heavy events each, those
    that cover nearly as much of the net as the best one compete, and the most often called wins.
    """
    heavy = [event.forward.flops > 0 for event in events]
    by_class: dict[str, list[ModuleCall]] = {}
    for call in trace.calls:
        if call.path and call.kind not in _CONTAINERS and sum(heavy[call.start : call.stop]) > 1:
            by_class.setdefault(call.kind, []).append(call)
    if Block.__name__ in by_class:
        return sorted((call.start, call.stop) for call in by_class[Block.__name__])
    repeated = {kind: calls for kind, calls in by_class.items() if len(calls) > 1}
    if not repeated:
        return []
    cover = {
        kind: sum(sum(heavy[call.start : call.stop]) for call in calls)
        for kind, calls in repeated.items()
    }
    best = max(cover.values())
    rivals = [kind for kind in repeated if cover[kind] >= 0.9 * best]
    chosen = max(rivals, key=lambda kind: (len(repeated[kind]), cover[kind]))
    ranges = sorted((call.start, call.stop) for call in repeated[chosen])
    return [r for r in ranges if not any(o != r and o[0] <= r[0] and r[1] <= o[1] for o in ranges)]
