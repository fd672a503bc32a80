"""Assemble a Network from the events of a trace, by the rules of ``operators.assembly``.

A hand-written activation is one event, and blocks are found from the classes of modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from joulecast.operators import KINDS, Shape, Work, find_kind, output_shape
from joulecast.operators.assembly import Call, LayerAssembler, Value, append_op
from joulecast.operators.building import with_size
from joulecast.records import Input, Layer, Network, Op
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

# Views are layers where their gradients, which are padded with zeros or copied, together move this
# share of the bytes of a step: more than a fifth where attention takes queries, keys and values out
# of one tensor, and more than everything else in a scan that slices every token.
_MIN_VIEW_SHARE = 0.01
_CONTAINERS = {"Sequential", "ModuleList", "ModuleDict"}
# A class that covers this share of the heavy events of the best class competes with it.
_COVERAGE_SHARE = 0.9


def assemble_network(trace: Trace, batch: int, name: str) -> tuple[Network, int]:
    """Return the Network of a trace, and how many function calls lie between its layers."""
    return _TraceAssembler(trace, batch).assemble(name)


class _TraceAssembler(LayerAssembler):
    """Makes a Network of the events of a trace."""

    def __init__(self, trace: Trace, batch: int) -> None:
        self.trace = trace
        self.batch = batch
        self.events = fuse_plain_modules(trace)
        self.blocks = find_blocks(trace, self.events)
        readers = Counter[Value](
            value for event in self.events if event.is_dynamic for value in set(event.input_ids)
        )
        super().__init__([INPUT - i for i in range(len(trace.inputs))], trace.output_id, readers)
        self.params = dict(trace.params)
        self.params_of_view: dict[int, tuple[str, ...]] = {}
        # The index of the layer of each stack of weights that are taken one by one.
        self.stacks: dict[str, int] = {}
        # For each layer, the calling module and the number of layers before it in that call.
        self.positions: list[tuple[str, int]] = []
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
        self._merge_repeated_calls()
        network = self.make_network(self._make_input(), name)
        return network, self.calls_between

    def drop_views(self, layers: Sequence[Layer]) -> Iterator[Layer]:
        """Return layers without views, unless they are known to give the shape that they gave."""
        # Views matter where permutes determine the memory format.
        views_matter = any(layer.channels_last for layer in layers)
        shapes: dict[Value, Shape] = {
            event.output_ids[0]: sample_shape(event.outputs[0].shape, self.batch)
            for event in self.events
            if event.outputs
        }
        for layer, value in zip(layers, self.newest, strict=True):
            yield _drop_views(layer, shapes[value] if views_matter else None)

    # -- events ----------------------------------------------------------------------------

    def _add_event(self, index: int, event: Event) -> None:
        sizes = [self.params[name].numel() for name in event.param_names]
        for value, tensor in event.inputs:
            for name in self.params_of_view.get(value, ()):
                event.param_names += (name,)
                sizes.append(tensor.numel())
                if event.matmuls:
                    event.has_trainable_params |= self.params[name].requires_grad
                    # The weight beside the first argument is not an input.
                    first = event.args[0] if event.args else None
                    event.needs_input_grad = getattr(first, "requires_grad", False)
        event.weight_elements = max(sizes, default=0)
        op = self._add_constant(read_op(event, self.batch), event)
        inputs = [(value, tensor.is_floating_point()) for value, tensor in event.inputs]
        # Beside one weight of a stack, whose layer counts all of them, a bias would count it again.
        names = [name for name in event.param_names if name in self.stacks] or event.param_names
        weights = {name: self.params[name].numel() for name in names}
        call = Call(inputs, event.output_ids, weights, self._find_block(index))
        before = self.find_growing_layer(call)
        if op is None or (find_kind(op.kind).is_view and before < 0):
            self.buildable = False
            if self._takes_from_stack(event):
                self._add_to_stack(event, call)
            elif _is_costly_view(event) and event.function_name in self.costly_views:
                self._start(read_costly_view(event, self.batch), event, call)
            else:
                self._name_views_of_params(event)
                self.skip_call(call)
        elif before >= 0 and _fits_in_tail(op, event, self.layers[before]):
            self.grow_layer(before, append_op(self.layers[before], op), call)
        else:
            self._start(op, event, call)

    def _start(self, op: Op, event: Event, call: Call) -> None:
        module_call = (event.module_path, event.module_call)
        self.positions.append((event.module_path, self.layers_of_call[module_call]))
        self.layers_of_call[module_call] += 1
        values = self.list_operands(op, call)
        operands = [tensor for value, tensor in event.inputs if value in values]
        self.start_layer(_make_layer(op, event, operands), call, event.function_name)

    def _add_constant(self, op: Op | None, event: Event) -> Op | None:
        """Return an operator with the size of its tensor operand that no layer computes.

        Tables of rotations and masks stay in full precision under autocast, and so does the result.
        """
        if op is None or not find_kind(op.kind).combines_inputs or event.is_fused:
            return op
        known = [tensor for value, tensor in event.inputs if value in self.layer_of_value]
        size = 0 if event.param_names else event.find_largest_constant(known, self.batch)
        return with_size(op, "constant", size) if size else op

    def _takes_from_stack(self, event: Event) -> bool:
        """Return whether an event takes one weight of a stack, such as that of an expert."""
        names, out = event.param_names, event.outputs
        if event.function_name not in ("getitem", "select") or len(names) != 1:
            return False
        weight = self.params[names[0]]
        return out[0].dim() > 1 and out[0].shape == weight.shape[1:]

    def _add_to_stack(self, event: Event, call: Call) -> None:
        """Count one more weight that is taken from a stack."""
        (name,) = event.param_names
        if name in self.stacks:
            at = self.stacks[name]
            self.layers[at] = replace(self.layers[at], calls=self.layers[at].calls + 1)
            self.calls_between += 1
        else:
            self.stacks[name] = len(self.layers)
            self._start(read_costly_view(event, self.batch), event, call)
        self.params_of_view[event.output_ids[0]] = (name,)

    def _name_views_of_params(self, event: Event) -> None:
        """Keep the names of what a view selects: a part of a parameter counts as a parameter."""
        names = event.param_names
        for value, view in zip(event.output_ids, event.outputs, strict=True) if names else ():
            self.params_of_view[value] = names
            if len(names) == 1 and 0 < view.numel() < self.params[names[0]].numel():
                part = f"{names[0]}[{view.storage_offset()}:{view.numel()}]"
                self.params[part] = view
                self.params_of_view[value] = (part,)

    # -- layers ----------------------------------------------------------------------------

    def _merge_repeated_calls(self) -> None:
        """Merge equal layers of repeated calls of one module into one with a call count."""
        first: dict[Any, int] = {}
        kept: list[int] = []
        merged: list[Layer] = []
        new_index = {-1: -1}
        for index, (layer, position) in enumerate(zip(self.layers, self.positions, strict=True)):
            # The second call shares the weights of the first, and may read another distance back.
            key = (position, replace(layer, tied=False, reads=()))
            place = new_index[index] = first.setdefault(key, len(merged))
            if place < len(merged):
                merged[place] = replace(merged[place], calls=merged[place].calls + 1)
                self.buildable = False
            else:
                reads = tuple(place - new_index[index - back] for back in layer.reads)
                merged.append(replace(layer, reads=reads))
                kept.append(index)
        self.layers = merged
        self.calls = [self.calls[index] for index in kept]
        self.newest = [self.newest[index] for index in kept]

    def _find_block(self, index: int) -> int:
        found = (at for at, call in enumerate(self.blocks) if call.start <= index < call.stop)
        return next(found, -1)

    def _make_input(self) -> Input:
        first = self.trace.inputs[0]
        vocabularies = (
            layer.sizes["vocabulary"]
            for layer, call in zip(self.layers, self.calls, strict=True)
            if find_kind(layer.kind).reads_tokens and INPUT in dict(call.inputs)
        )
        vocabulary = 0 if first.is_floating_point() else next(vocabularies, 0)
        return Input(tuple(int(size) for size in first.shape[1:]), vocabulary)


def _fits_in_tail(op: Op, event: Event, layer: Layer) -> bool:
    """Return whether a layer may end with an operator; a norm must train only if the layer does."""
    kind = find_kind(op.kind)
    if not event.param_names:
        return kind.can_be_in_tail
    is_frozen_alike = layer.trains == event.has_trainable_params
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
    """Return whether its gradient is not a view: it is padded with zeros, concatenated or copied.

    A view of a parameter is a weight of the layer that reads it.
    """
    is_view = event.outputs and not event.forward.launches and not event.param_names
    return bool(is_view and event.is_dynamic and event.backward.launches)


def _make_layer(op: Op, event: Event, operands: list[torch.Tensor]) -> Layer:
    """Return a layer without its tail and what it reads."""
    weight = _find_computed_weight(event)
    if weight is None:
        trains = event.has_trainable_params or not event.param_names
        input_grad = event.needs_input_grad
    else:
        # A computed weight gets a gradient if a parameter is behind it, and is not an input.
        trains, input_grad = weight.requires_grad, bool(event.args[0].requires_grad)
    return Layer(
        op.kind,
        op.sizes,
        trains=trains,
        input_grad=input_grad,
        tied=weight is not None,
        channels_last=_reads_channels_last(op, event),
        channels_last_weights=_has_channels_last_weights(op, event),
        transposed=_find_transposed(op, operands),
        recomputed=event.is_recomputed,
        name=_name_layer(op, event),
    )


def _find_transposed(op: Op, operands: list[torch.Tensor]) -> tuple[int, ...]:
    """Return which inputs are transposed, of all that are combined or of the first."""
    kind = find_kind(op.kind)
    if kind.packs_inputs or kind.second_shape is not None or "concat" in op.sizes.get("fn", ""):
        return ()  # products take either order, and a concatenation copies in any
    shape = kind.in_shape(op.sizes)
    tensors = operands if kind.combines_inputs else operands[:1]
    return tuple(i for i, tensor in enumerate(tensors) if is_transposed(tensor, shape))


def _reads_channels_last(op: Op, event: Event) -> bool:
    image = find_image((event.args, event.kwargs), find_kind(op.kind).in_shape(op.sizes))
    return image is not None and is_channels_last(image)


def _has_channels_last_weights(op: Op, event: Event) -> bool:
    if not find_kind(op.kind).is_convolution:
        return False
    weight = event.bind("input", "weight").get("weight")
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


def _name_layer(op: Op, event: Event) -> str:
    kind, path = op.kind, event.module_path
    names_itself = event.leaf_module is not None or kind in path.rsplit(".", 1)[-1]
    if find_kind(kind).is_function and not names_itself:
        function = op.sizes.get("fn", kind)
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
    # A convolution with a fixed kernel, such as a blur, is fused as well.
    is_layer = kind is not None and not kind.can_be_in_tail and not kind.is_convolution
    return not is_layer and name != PACKED_SDPA and "attention" not in name
