"""Assemble a Network from the events of a trace.

A layer is an operator with parameters and the operators that follow it: an operator without
weights, and a norm, joins the tail of the layer whose result only it reads. A new layer starts
where two operators read a result, where a repeated block ends, and where an operator reads two
results.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from joulecast.operators import KINDS, Shape, Work, find_kind, output_shape
from joulecast.operators.building import can_build, with_size
from joulecast.records import Input, Layer, Network, Op, Sizes
from joulecast.records.network import group_by_block, order_operands
from joulecast.system.errors import InputError
from joulecast.torch_nets.build import BuiltBlock
from joulecast.torch_nets.inputs import find_image, is_channels_last, is_transposed
from joulecast.torch_nets.op_readers import (
    PACKED_SDPA,
    find_shared_operand,
    read_costly_view,
    read_op,
)
from joulecast.torch_nets.tracer import INPUT, Event, ModuleCall, Trace, sample_shape

_JOINS = {"add", "mul", "concat"}
# Views are layers where their gradients, which are padded with zeros or copied, together move this
# share of the bytes of a step: more than a fifth where attention takes queries, keys and values out
# of one tensor, and more than everything else in a scan that slices every token.
_MIN_VIEW_SHARE = 0.01
_CONTAINERS = {"Sequential", "ModuleList", "ModuleDict"}
# A class that covers this share of the heavy events of the best class competes with it.
_COVERAGE_SHARE = 0.9


def assemble_network(trace: Trace, batch: int, name: str) -> tuple[Network, int]:
    """Return the Network of a trace, and how many function calls lie between its layers."""
    return _NetworkAssembler(trace, batch).assemble(name)


@dataclass
class _LayerDraft:
    """A layer that may still grow.

    Attributes:
        index: Its number.
        block: Index of its block; -1 outside of blocks.
        sources: Indices of the layers that it reads; -1 for the network's input.
        last_value: Id of its newest result.
        position: The calling module and the number of layers before it in that call.
        shape: Sample shape of its newest result.
        transposed: Positions in ``sources`` of inputs that are transposed in memory.
    """

    index: int
    op: Op
    event: Event
    block: int
    sources: tuple[int, ...]
    join: str
    position: tuple[str, int]
    last_value: int = -1
    shape: Shape = ()
    tail: list[Op] = field(default_factory=list)
    is_tied: bool = False
    calls: int = 1
    transposed: tuple[int, ...] = ()


class _NetworkAssembler:
    """One pass over the events of a trace."""

    def __init__(self, trace: Trace, batch: int) -> None:
        self.trace = trace
        self.batch = batch
        self.events = fuse_plain_modules(trace)
        self.blocks = find_blocks(trace, self.events)
        self.drafts: list[_LayerDraft] = []
        self.layer_of_value: dict[int, int] = {INPUT - i: -1 for i in range(len(trace.inputs))}
        self.claimed_params: set[str] = set()
        self.params = dict(trace.params)
        self.params_of_view: dict[int, tuple[str, ...]] = {}
        self.buildable = len(trace.inputs) == 1
        self.reader_counts = Counter(
            value for event in self.events if event.is_dynamic for value in set(event.input_ids)
        )
        self.layers_of_call: dict[tuple[str, int], int] = Counter()
        self.costly_views = _find_costly_views(trace)
        # Calls that handle masks or positions; a norm's batch counter is not counted.
        self.calls_between = sum(
            not event.is_dynamic and bool(event.input_ids or event.name != "add_")
            for event in trace.events
        )

    def assemble(self, name: str) -> tuple[Network, int]:
        """Return the Network of all events, and the number of calls between its layers."""
        for index, event in enumerate(self.events):
            if event.is_dynamic and event.outputs:
                self._add_event(index, event)
        if self.drafts and self.trace.output_id != self.drafts[-1].last_value:
            self.buildable = False
        self.drafts = self._merge_repeated_calls()
        layers = order_operands([_finish_layer(i, draft) for i, draft in enumerate(self.drafts)])
        network = Network(
            layers,
            self._make_input(),
            group_by_block(draft.block for draft in self.drafts),
            name=name,
        )
        buildable = self.buildable and can_build(network)
        if not buildable:
            # Views matter where permutes determine the memory format.
            views_matter = any(layer.channels_last for layer in layers)
            shapes = [draft.shape if views_matter else None for draft in self.drafts]
            self.calls_between += sum(len(layer.tail) for layer in layers)
            layers = tuple(map(_drop_views, layers, shapes))
            self.calls_between -= sum(len(layer.tail) for layer in layers)
        return replace(network, layers=layers, buildable=buildable), self.calls_between

    # -- events ----------------------------------------------------------------------------

    def _add_event(self, index: int, event: Event) -> None:
        for value in event.input_ids:
            for name in self.params_of_view.get(value, ()):
                event.param_names += (name,)
                if event.matmuls:
                    event.has_trainable_params |= self.params[name].requires_grad
                    # The weight beside the first argument is not an input.
                    first = event.args[0] if event.args else None
                    event.needs_input_grad = getattr(first, "requires_grad", False)
        op = self._add_constant(read_op(event, self.batch), event)
        before = self._find_growing_layer(index, event)
        if op is None or (find_kind(op.kind).is_view and before is None):
            self.buildable = False
            if _is_costly_view(event) and event.function_name in self.costly_views:
                self._start_layer(index, read_costly_view(event, self.batch), event)
            else:
                self._skip_view(event)
        elif before is not None and _fits_in_tail(op, event, before):
            # In a tail the shape follows from the operators before.
            sizes = {name: size for name, size in op.sizes.items() if name != "shape"}
            before.tail.append(Op(op.kind, Sizes(sizes)))
            self._claim_params(event)
            self._set_result(before, event)
        else:
            self._start_layer(index, op, event)

    def _add_constant(self, op: Op | None, event: Event) -> Op | None:
        """Return an operator with the size of its tensor operand that no layer computes.

        Tables of rotations and masks stay in full precision under autocast, and so does the result.
        """
        if op is None or not find_kind(op.kind).combines_inputs or event.is_fused:
            return op
        known = [tensor for value, tensor in event.inputs if value in self.layer_of_value]
        size = 0 if event.param_names else event.find_largest_constant(known, self.batch)
        return with_size(op, "constant", size) if size else op

    def _skip_view(self, event: Event) -> None:
        """Let the result of a view belong to the layer that computed its input."""
        self.calls_between += 1
        if event.param_names:
            self.params_of_view.update(
                (value, self._name_parts_of_params(event.param_names, view))
                for value, view in zip(event.output_ids, event.outputs, strict=True)
            )
        values = self._list_layer_inputs(event)
        if not values:
            return
        layer = self.layer_of_value[values[0]]
        is_only_result = self.reader_counts[values[0]] == 1 and len(event.output_ids) == 1
        if layer >= 0 and is_only_result and self.drafts[layer].last_value == values[0]:
            self._set_result(self.drafts[layer], event)
        else:
            self.layer_of_value.update(dict.fromkeys(event.output_ids, layer))

    def _name_parts_of_params(self, names: tuple[str, ...], view: torch.Tensor) -> tuple[str, ...]:
        """Return names for what a view selects: one expert of a stack is a parameter by itself."""
        param = self.params[names[0]]
        if len(names) > 1 or not 0 < view.numel() < param.numel():
            return names
        part = f"{names[0]}[{view.storage_offset()}:{view.numel()}]"
        self.params[part] = view
        return (part,)

    def _find_growing_layer(self, index: int, event: Event) -> _LayerDraft | None:
        """Return the layer of its block whose newest result this event alone reads."""
        values = self._list_layer_inputs(event)
        if len(values) != 1 or self.layer_of_value[values[0]] < 0:
            return None
        draft = self.drafts[self.layer_of_value[values[0]]]
        is_newest = draft.last_value == values[0] and self.reader_counts[values[0]] == 1
        return draft if is_newest and draft.block == self._find_block(index) else None

    def _start_layer(self, index: int, op: Op, event: Event) -> None:
        kind = find_kind(op.kind)
        fn = event.function_name
        sources = [self.layer_of_value[value] for value, _ in self._list_operands(op, event)]
        if not kind.combines_inputs:
            sources = list(dict.fromkeys(sources))
        join = "none"
        if kind.combines_inputs and len(sources) > 1:
            join = fn if fn in _JOINS else "add"
            op = with_size(op, "inputs", 1 if fn == "concat" else len(sources))
        params, is_tied = self._claim_params(event)
        if kind.counts_params and params:
            op = with_size(op, "params", params)
        call = (event.module_path, event.module_call)
        position = (event.module_path, self.layers_of_call[call])
        self.layers_of_call[call] += 1
        block = self._find_block(index)
        draft = _LayerDraft(len(self.drafts), op, event, block, tuple(sources), join, position)
        draft.transposed = self._find_transposed(op, event)
        draft.is_tied = is_tied or _find_computed_weight(event) is not None
        self.drafts.append(draft)
        self._set_result(draft, event)

    def _find_transposed(self, op: Op, event: Event) -> tuple[int, ...]:
        """Return which inputs are transposed, of all that are combined or of the first."""
        kind = find_kind(op.kind)
        if kind.packs_inputs or kind.second_shape is not None or "concat" in op.sizes.get("fn", ""):
            return ()  # products take either order, and a concatenation copies in any
        shape = kind.in_shape(op.sizes)
        tensors = [tensor for _, tensor in self._list_operands(op, event)]
        tensors = tensors if kind.combines_inputs else tensors[:1]
        return tuple(i for i, tensor in enumerate(tensors) if is_transposed(tensor, shape))

    def _list_layer_inputs(self, event: Event) -> list[int]:
        """Return the ids of its inputs that layers or the network's input gave."""
        return [value for value in event.input_ids if value in self.layer_of_value]

    def _list_operands(self, op: Op, event: Event) -> list[tuple[int, torch.Tensor]]:
        """Return the inputs that a layer reads; labels and masks beside numbers do not count."""
        pairs = [pair for pair in event.inputs if pair[0] in self.layer_of_value]
        numbers = [pair for pair in pairs if pair[1].is_floating_point()]
        return numbers if numbers and find_kind(op.kind).combines_inputs else pairs

    def _set_result(self, draft: _LayerDraft, event: Event) -> None:
        self.layer_of_value.update(dict.fromkeys(event.output_ids, draft.index))
        draft.last_value = event.output_ids[0]
        draft.shape = sample_shape(event.outputs[0].shape, self.batch)

    def _claim_params(self, event: Event) -> tuple[int, bool]:
        """Return how many parameters it is the first to use, and whether it only shares others."""
        new = [name for name in event.param_names if name not in self.claimed_params]
        self.claimed_params.update(new)
        count = sum(self.params[name].numel() for name in new)
        return count, bool(event.param_names) and not new

    # -- layers ----------------------------------------------------------------------------

    def _merge_repeated_calls(self) -> list[_LayerDraft]:
        """Merge equal layers of repeated calls of one module into one with a call count."""
        first: dict[Any, int] = {}
        merged: list[_LayerDraft] = []
        new_index = {-1: -1}
        for draft in self.drafts:
            event = draft.event
            flags = (
                event.has_trainable_params,
                event.needs_input_grad,
                _reads_channels_last(draft),
                draft.transposed,
                event.is_recomputed,
            )
            key = (draft.position, draft.op, tuple(draft.tail), flags)
            index = new_index[draft.index] = first.setdefault(key, len(merged))
            if index < len(merged):
                merged[index].calls += 1
                self.buildable = False
            else:
                merged.append(draft)
        for draft in merged:
            draft.sources = tuple(new_index[source] for source in draft.sources)
        return merged

    def _find_block(self, index: int) -> int:
        for block, call in enumerate(self.blocks):
            if call.start <= index < call.stop:
                return block
        return -1

    def _make_input(self) -> Input:
        first = self.trace.inputs[0]
        vocabulary = 0
        if not first.is_floating_point():
            for draft in self.drafts:
                if find_kind(draft.op.kind).reads_tokens and INPUT in draft.event.input_ids:
                    vocabulary = draft.op.sizes["vocabulary"]
                    break
        return Input(tuple(int(size) for size in first.shape[1:]), vocabulary)


def _fits_in_tail(op: Op, event: Event, draft: _LayerDraft) -> bool:
    """Return whether a layer may end with an operator; a norm must be frozen or not as it is."""
    kind = find_kind(op.kind)
    if not event.param_names:
        return kind.can_be_in_tail
    is_frozen_alike = _is_trainable(draft.event) == event.has_trainable_params
    return kind.can_be_in_tail and not kind.counts_params and is_frozen_alike


def _find_costly_views(trace: Trace) -> set[str]:
    """Return the functions whose views are layers: their gradients take a share of the step."""
    moved: Counter[str] = Counter()
    for event in trace.events:
        if _is_costly_view(event):
            moved[event.function_name] += int(event.backward.size_bytes)
    total = trace.total.size_bytes - sum(event.recomputed.size_bytes for event in trace.events)
    return {name for name, size in moved.items() if size > _MIN_VIEW_SHARE * total}


def _is_costly_view(event: Event) -> bool:
    """Return whether its gradient is no view: it is padded with zeros, concatenated or copied.

    A view of a parameter is a weight of the layer that reads it.
    """
    is_view = event.outputs and not event.forward.launches and not event.param_names
    return bool(is_view and event.is_dynamic and event.backward.launches)


def _finish_layer(index: int, draft: _LayerDraft) -> Layer:
    event = draft.event
    return Layer(
        draft.op.kind,
        draft.op.sizes,
        tail=tuple(draft.tail),
        trains=_is_trainable(event),
        input_grad=_needs_input_grad(event),
        reads=tuple(index - source for source in draft.sources),
        join=draft.join,
        calls=draft.calls,
        tied=draft.is_tied,
        channels_last=_reads_channels_last(draft),
        channels_last_weights=_has_channels_last_weights(draft),
        transposed=draft.transposed,
        recomputed=event.is_recomputed,
        name=_name_layer(draft),
    )


def _is_trainable(event: Event) -> bool:
    """Return whether its weights get a gradient, as parameters or as values computed from some."""
    computed = _find_computed_weight(event)
    if computed is not None:
        return computed.requires_grad
    return event.has_trainable_params or not event.param_names


def _needs_input_grad(event: Event) -> bool:
    """Return whether its input gets a gradient; a computed weight is not an input."""
    if _find_computed_weight(event) is None:
        return event.needs_input_grad
    return bool(event.args[0].requires_grad)


def _reads_channels_last(draft: _LayerDraft) -> bool:
    shape = find_kind(draft.op.kind).in_shape(draft.op.sizes)
    image = find_image((draft.event.args, draft.event.kwargs), shape)
    return image is not None and is_channels_last(image)


def _has_channels_last_weights(draft: _LayerDraft) -> bool:
    if not find_kind(draft.op.kind).is_convolution:
        return False
    event = draft.event
    weight = event.kwargs.get("weight", event.args[1] if len(event.args) > 1 else None)
    return isinstance(weight, torch.Tensor) and is_channels_last(weight)


def _find_computed_weight(event: Event) -> torch.Tensor | None:
    """Return the weight of a convolution or linear layer if it is not a parameter (weight norm)."""
    shared = find_shared_operand(event)
    if shared is not None:
        return shared
    has_weight = event.name == "linear" or event.name.startswith("conv")
    has_weight |= "grouped_mm" in event.name
    if not has_weight or event.param_names or len(event.args) < 2:
        return None
    return event.args[1] if isinstance(event.args[1], torch.Tensor) else None


def _name_layer(draft: _LayerDraft) -> str:
    event, kind = draft.event, draft.op.kind
    path = event.module_path
    names_itself = event.leaf_module is not None or kind in path.rsplit(".", 1)[-1]
    if find_kind(kind).is_function and not names_itself:
        function = draft.op.sizes.get("fn", kind)
        return f"{path}.{function}" if path else str(function)
    return path or kind


def _drop_views(layer: Layer, shape: Shape | None) -> Layer:
    """Return a layer without its views, unless they are known to give the shape that they gave."""
    with suppress(InputError, IndexError):
        if shape is not None and output_shape(layer) == shape:
            return layer
    kinds = [find_kind(op.kind) for op in layer.tail]
    only_reshapes = [kind.is_view and not kind.selects_elements for kind in kinds]
    kept = (op for op, drops in zip(layer.tail, only_reshapes, strict=True) if not drops)
    return replace(layer, tail=tuple(kept))


# ---------------------------------------------------------------------------------------------
# Groups of events: hand-written activations, and repeated blocks of layers


def fuse_plain_modules(trace: Trace) -> list[Event]:
    """Return the events with each module without weights, children and products as one event.

    Hand-written activations are such modules: several small functions in a row.
    """
    events = list(trace.events)
    computed_tensors = [t for event in events if event.is_dynamic for t in event.outputs]
    computed_tensors += trace.inputs
    for call in trace.calls:
        inside = [event for event in trace.events[call.start : call.stop] if event.is_dynamic]
        # One function that casts its input before is itself.
        is_several = sum(event.forward.launches > 0 for event in inside) > 1
        if not call.is_leaf or not is_several or not all(map(_is_plain, inside)):
            continue
        if any(event.find_largest_constant(computed_tensors, batch=1) for event in inside):
            continue
        computed = {value for event in inside for value in event.output_ids}
        pairs = [pair for event in inside for pair in event.inputs]
        read = {value: tensor for value, tensor in reversed(pairs) if value not in computed}
        order = dict.fromkeys(value for value, _ in pairs if value in read)
        events[call.start] = replace(
            inside[-1],
            name=call.class_name.lower(),
            args=inside[0].args,
            kwargs={},
            inputs=tuple((value, read[value]) for value in order),
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
    coverage: Counter[str] = Counter()
    for call in trace.calls:
        count = sum(is_heavy[call.start : call.stop])
        if call.path and call.class_name not in _CONTAINERS and count > 1:
            by_class.setdefault(call.class_name, []).append(call)
            coverage[call.class_name] += count
    chosen = BuiltBlock.__name__
    if chosen not in by_class:
        repeated = [name for name, calls in by_class.items() if len(calls) > 1]
        least = _COVERAGE_SHARE * max((coverage[name] for name in repeated), default=0)
        rivals = [name for name in repeated if coverage[name] >= least]
        chosen = max(rivals, key=lambda name: (len(by_class[name]), coverage[name]), default="")
    blocks: list[ModuleCall] = []
    for call in sorted(by_class.get(chosen, ()), key=lambda call: (call.start, -call.stop)):
        # A class may contain instances of itself.
        if not blocks or call.start >= blocks[-1].stop:
            blocks.append(call)
    return blocks


def _is_plain(event: Event) -> bool:
    """Return whether an event has no weights, no products and no kind of its own."""
    if event.param_names or event.matmuls:
        return False
    name = event.function_name
    kind = KINDS.get(name)
    # A convolution with a fixed kernel, such as a blur, is fused all the same.
    is_layer = kind is not None and not kind.can_be_in_tail and not kind.is_convolution
    return not is_layer and name != PACKED_SDPA and "attention" not in name
