"""From any ``nn.Module`` with an example input to a Network.

A layer is a parametric operator with the operators that follow it: an operator without weights of
its own, and a norm, joins the layer whose result it alone reads. Where two things read a result,
where a repeated block ends, or where an operator reads two results, a new layer begins. What cannot
be described well enough to be rebuilt makes the Network not ``buildable``; its costs still count.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from joulecast.errors import InputError, NetError
from joulecast.kinds import KINDS, VIEWS, Shape, check_chain, network_work, output_shape
from joulecast.records import Input, Layer, Network, Op, Setup, Sizes, StepTotals, name_layout
from joulecast.runtimes.torch.block_detection import find_blocks, fuse_plain_modules
from joulecast.runtimes.torch.build import build_net, can_rebuild
from joulecast.runtimes.torch.memory_format import find_image, is_channels_last, make_empty_input
from joulecast.runtimes.torch.ops import (
    function_name,
    name_leaf_module,
    read_op,
    sample_shape,
)
from joulecast.runtimes.torch.tracer import (
    INPUT,
    Event,
    Trace,
    first_float_tensor,
    trace_on_fake_tensors,
    trace_on_real_tensors,
)

_JOINS = {"add", "mul", "concat"}
# Up to this share of work or weights may be without a layer in a net that is rebuilt.
_NEARLY_ALL = 0.01


def read_net(
    net: nn.Module, inputs: Any, loss: Callable[[Any], Any] | None = None, name: str = ""
) -> Network:
    """Read a net. Its weights may lie on ``meta``; the net itself is not changed.

    Args:
        net: Any module, in any mode.
        inputs: A tensor, a tuple of positional ones or a dict of named ones; the first axis of
            the first tensor is the batch.
        loss: The net's output → a scalar to run backward from; the mean square by default.
        name: A label for people.

    Raises:
        NetError: The net's forward or backward fails.
    """
    with warnings.catch_warnings():
        # What a framework has to say about somebody's net is not for the reader of its layers.
        warnings.simplefilter("ignore")
        trace = _trace_net(net, inputs, loss or mean_square_loss)
    batch = _batch_of(trace)
    try:
        reading = _Reading(trace, batch)
        network = reading.network(name or type(net).__name__)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise NetError(f"the net calls something in a way that is not known: {error}") from error
    totals = replace(_count_totals(trace, network, batch), between=reading.between)
    # A net that does more than its layers say cannot be rebuilt from them.
    complete = totals.unattributed_flops_share < _NEARLY_ALL
    complete = complete and totals.unattributed_params_share < _NEARLY_ALL
    complete = complete and _share_off(trace, network, batch) < _NEARLY_ALL
    complete = complete and network.buildable and _keeps_layouts(network, batch)
    return replace(network, totals=totals, buildable=complete)


def mean_square_loss(output: Any) -> torch.Tensor:
    """A loss for any output: the mean square of its first floating tensor."""
    return first_float_tensor(output).float().square().mean()


def cross_entropy_loss(output: Any) -> torch.Tensor:
    """Cross-entropy against random classes on the last axis, whatever stands before it."""
    logits = first_float_tensor(output)
    flat = logits.reshape(-1, logits.shape[-1])
    targets = torch.zeros(flat.shape[0], dtype=torch.long, device=flat.device)
    return F.cross_entropy(flat.float(), targets)


def _trace_net(net: nn.Module, inputs: Any, loss: Callable[[Any], Any]) -> Trace:
    try:
        return trace_on_fake_tensors(net, inputs, loss, name_leaf_module)
    except NetError:
        raise
    except Exception as fake_error:  # nets raise anything; real numbers may still carry them
        on_meta = any(value.device.type == "meta" for value in net.parameters())
        if on_meta:
            raise NetError(_explain(fake_error)) from fake_error
    try:
        return trace_on_real_tensors(net, inputs, loss, name_leaf_module)
    except NetError:
        raise
    except Exception as error:
        raise NetError(_explain(error)) from error


def _explain(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return f"the net's step fails on the example input: {type(error).__name__}: {text}"


def _batch_of(trace: Trace) -> int:
    if not trace.inputs or not trace.inputs[0].shape:
        raise NetError("the example input needs a tensor whose first axis is the batch")
    return int(trace.inputs[0].shape[0])


@dataclass
class _Draft:
    """A layer in the making."""

    op: Op
    event: Event
    group: int
    sources: tuple[int, ...]
    join: str
    tip: int
    place: tuple[str, int]
    shape: Shape = ()
    tail: list[Op] = field(default_factory=list)
    tied: bool = False
    calls: int = 1


class _Reading:
    """One pass over the events of a trace."""

    def __init__(self, trace: Trace, batch: int) -> None:
        self.trace = trace
        self.batch = batch
        self.events = fuse_plain_modules(trace)
        self.blocks = find_blocks(trace, self.events)
        self.drafts: list[_Draft] = []
        self.source: dict[int, int] = {INPUT - i: -1 for i in range(len(trace.inputs))}
        self.owned: set[str] = set()
        self.carried: dict[int, tuple[str, ...]] = {}  # views of parameters, by value
        self.buildable = len(trace.inputs) == 1
        self.consumers = Counter(
            number for event in self.events if event.dynamic for number in set(event.inputs)
        )
        self.ordinals: dict[tuple[str, int], int] = Counter()
        self.between = sum(_is_between(event) for event in trace.events)

    def network(self, name: str) -> Network:
        for place, event in enumerate(self.events):
            if event.dynamic and event.results:
                self._take(place, event)
        if self.drafts and self.trace.output != self.drafts[-1].tip:
            self.buildable = False
        self.drafts = self._merge_calls()
        layers = tuple(_finish(i, draft) for i, draft in enumerate(self.drafts))
        groups = self._groups()
        network = Network(layers, self._input(), groups, name=name)
        buildable = self.buildable and _can_build(network)
        if not buildable:
            self.between += sum(len(layer.tail) for layer in layers)
            layers = tuple(map(_drop_views, layers, self._list_shapes(layers)))
            self.between -= sum(len(layer.tail) for layer in layers)
        return replace(network, layers=layers, buildable=buildable)

    def _take(self, place: int, event: Event) -> None:
        for number in event.inputs:
            event.params += self.carried.get(number, ())
        op = read_op(event, self.batch)
        follows = self._can_follow(place, event)
        if op is None or (op.kind in VIEWS and not follows):
            self._pass_on(event)
            self.buildable = False
        elif follows and self._may_follow(op, event):
            self._follow(op, event)
        else:
            self._begin(place, op, event)

    def _pass_on(self, event: Event) -> None:
        """A view: its result still belongs to whatever made its input."""
        self.between += 1
        if event.params:
            self.carried.update((number, event.params) for number in event.outputs)
        dynamic = [number for number in event.inputs if number in self.source]
        if not dynamic:
            return
        index = self.source[dynamic[0]]
        for number in event.outputs:
            self.source[number] = index
        alone = self.consumers[dynamic[0]] == 1 and len(event.outputs) == 1
        if index >= 0 and alone and self.drafts[index].tip == dynamic[0]:
            self.drafts[index].tip = event.outputs[0]
            self.drafts[index].shape = sample_shape(event.results[0].shape, self.batch)

    def _can_follow(self, place: int, event: Event) -> bool:
        """It alone reads the newest result of one layer, inside the same block."""
        dynamic = [number for number in event.inputs if number in self.source]
        if len(dynamic) != 1:
            return False
        number = dynamic[0]
        index = self.source[number]
        if index < 0 or self.consumers[number] != 1 or self.drafts[index].tip != number:
            return False
        return self.drafts[index].group == self._group(place)

    def _may_follow(self, op: Op, event: Event) -> bool:
        if not KINDS[op.kind].tailable:
            return False
        if not event.params:
            return True
        # A norm's weights may join only a layer that trains, or does not, as they do.
        draft = self.drafts[self.source[next(n for n in event.inputs if n in self.source)]]
        return op.kind != "elementwise" and _trains(draft.event) == event.trains

    def _follow(self, op: Op, event: Event) -> None:
        number = next(n for n in event.inputs if n in self.source)
        draft = self.drafts[self.source[number]]
        sizes = {key: value for key, value in op.sizes.items() if key != "shape"}
        draft.tail.append(Op(op.kind, Sizes(sizes)))
        self._own(event)
        self._give(draft, self.source[number], event)

    def _begin(self, place: int, op: Op, event: Event) -> None:
        index = len(self.drafts)
        fn = function_name(event)
        dynamic = [number for number in event.inputs if number in self.source]
        sources = [self.source[number] for number in dynamic]
        if op.kind != "elementwise":
            sources = list(dict.fromkeys(sources))
        join = "none"
        if op.kind == "elementwise" and len(sources) > 1:
            join = fn if fn in _JOINS else "add"
            inputs = 1 if fn == "concat" else len(sources)
            op = Op(op.kind, Sizes({**op.sizes, "inputs": inputs}))
        params, tied = self._own(event)
        tied = tied or _computed_weight(event) is not None
        if op.kind == "elementwise" and params:
            op = Op(op.kind, Sizes({**op.sizes, "params": params}))
        ordinal = self.ordinals[(event.path, event.call)]
        self.ordinals[(event.path, event.call)] += 1
        group = self._group(place)
        draft = _Draft(op, event, group, tuple(sources), join, -1, (event.path, ordinal))
        draft.tied = tied
        self.drafts.append(draft)
        self._give(draft, index, event)

    def _merge_calls(self) -> list[_Draft]:
        """One draft for the same place in repeated calls of one module, with its calls counted."""
        first: dict[Any, int] = {}
        merged: list[_Draft] = []
        where: dict[int, int] = {-1: -1}
        for index, draft in enumerate(self.drafts):
            flags = (draft.event.trains, draft.event.input_grad, _reads_channels_last(draft))
            key = (draft.place, draft.op, tuple(draft.tail), flags)
            if key in first:
                merged[first[key]].calls += 1
                self.buildable = False
            else:
                first[key] = len(merged)
                merged.append(draft)
            where[index] = first[key]
        for draft in merged:
            draft.sources = tuple(where[source] for source in draft.sources)
        return merged

    def _list_shapes(self, layers: tuple[Layer, ...]) -> list[Shape | None]:
        """What layers gave where that matters: how a net lies in memory is told by its permutes."""
        matters = any(layer.channels_last for layer in layers)
        return [draft.shape if matters else None for draft in self.drafts]

    def _give(self, draft: _Draft, index: int, event: Event) -> None:
        draft.tip = event.outputs[0]
        draft.shape = sample_shape(event.results[0].shape, self.batch)
        for number in event.outputs:
            self.source[number] = index

    def _own(self, event: Event) -> tuple[int, bool]:
        """Parameters that this event is the first to use, and whether it only borrows."""
        new = [name for name in event.params if name not in self.owned]
        self.owned.update(new)
        count = sum(self.trace.params[name].numel() for name in new)
        return count, bool(event.params) and not new

    def _group(self, place: int) -> int:
        for number, (start, stop) in enumerate(self.blocks):
            if start <= place < stop:
                return number
        return -1

    def _groups(self) -> tuple[tuple[int, int], ...]:
        ranges: dict[int, list[int]] = {}
        for index, draft in enumerate(self.drafts):
            if draft.group >= 0:
                ranges.setdefault(draft.group, []).append(index)
        groups = [(found[0], found[-1] + 1) for _, found in sorted(ranges.items())]
        return tuple((start, stop) for start, stop in groups if stop - start > 1)

    def _input(self) -> Input:
        first = self.trace.inputs[0]
        vocabulary = 0
        if not first.is_floating_point():
            for draft in self.drafts:
                if draft.op.kind == "embedding" and INPUT in draft.event.inputs:
                    vocabulary = draft.op.sizes["vocabulary"]
                    break
        return Input(tuple(int(size) for size in first.shape[1:]), vocabulary)


def _is_between(event: Event) -> bool:
    """Whether it works on nothing that trains: masks, positions; but no norm's own counter."""
    return not event.dynamic and bool(event.inputs or event.name != "add_")


def _finish(index: int, draft: _Draft) -> Layer:
    event = draft.event
    return Layer(
        draft.op.kind,
        draft.op.sizes,
        tail=tuple(draft.tail),
        trains=_trains(event),
        input_grad=_input_grad(event),
        reads=tuple(index - source for source in draft.sources),
        join=draft.join,
        calls=draft.calls,
        tied=draft.tied,
        channels_last=_reads_channels_last(draft),
        channels_last_weights=_has_channels_last_weights(event),
        name=_layer_name(draft),
    )


def _trains(event: Event) -> bool:
    """Whether its weights get a gradient, be they parameters or computed from some."""
    computed = _computed_weight(event)
    if computed is not None:
        return computed.requires_grad
    return event.trains or not event.params


def _input_grad(event: Event) -> bool:
    """Whether its input gets a gradient; a weight that was computed is no input."""
    if _computed_weight(event) is None:
        return event.input_grad
    return bool(event.args[0].requires_grad)


def _reads_channels_last(draft: _Draft) -> bool:
    """Whether the image that its sizes speak of lies so."""
    shape = KINDS[draft.op.kind].in_shape(draft.op.sizes)
    image = find_image((draft.event.args, draft.event.kwargs), shape)
    return image is not None and is_channels_last(image)


def _has_channels_last_weights(event: Event) -> bool:
    if not event.name.startswith("conv"):
        return False
    weight = event.kwargs.get("weight", event.args[1] if len(event.args) > 1 else None)
    return isinstance(weight, torch.Tensor) and is_channels_last(weight)


def _computed_weight(event: Event) -> torch.Tensor | None:
    """The weight of a convolution or linear that is no parameter itself (a weight norm)."""
    heavy = event.name == "linear" or event.name.startswith("conv")
    if not heavy or event.params or len(event.args) < 2:
        return None
    return event.args[1] if isinstance(event.args[1], torch.Tensor) else None


def _layer_name(draft: _Draft) -> str:
    event = draft.event
    path = event.path
    plain = event.module is not None or draft.op.kind in path.rsplit(".", 1)[-1]
    if draft.op.kind in ("elementwise", "matmul", "sdpa") and not plain:
        word = draft.op.sizes.get("fn", draft.op.kind)
        return f"{path}.{word}" if path else str(word)
    return path or draft.op.kind


def _drop_views(layer: Layer, shape: Shape | None) -> Layer:
    """A layer without its views, unless they are known to give the shape that they gave."""
    if shape is not None and _find_shape(layer) == shape:
        return layer
    views = ("view", "permute", "flatten")
    return replace(layer, tail=tuple(op for op in layer.tail if op.kind not in views))


def _find_shape(layer: Layer) -> Shape | None:
    try:
        return output_shape(layer)
    except (InputError, IndexError):
        return None


def _can_build(network: Network) -> bool:
    """Whether every operator can be rebuilt and every shape follows from what a layer reads."""
    ops = [op for layer in network.layers for op in (Op(layer.kind, layer.sizes), *layer.tail)]
    shared = any(layer.calls > 1 or layer.tied or not layer.reads for layer in network.layers)
    if not ops or shared or not all(map(can_rebuild, ops)):
        return False
    try:
        check_chain(network)
    except InputError:
        return False
    return True


def _keeps_layouts(network: Network, batch: int) -> bool:
    """Whether a net, rebuilt, hands on images as they lie: that follows no rule of ours.

    It is tried where anything lies otherwise than usual: a net may convert what it computes.
    """
    if not any(map(name_layout, network.layers)):
        return True
    try:
        with torch.device("meta"):
            net, inputs = build_net(network), make_empty_input(network, batch)
        again = _Reading(_trace_net(net, inputs, mean_square_loss), batch).network("")
    except NetError:
        return False
    return list(map(name_layout, again.layers)) == list(map(name_layout, network.layers))


def _count_totals(trace: Trace, network: Network, batch: int) -> StepTotals:
    """The independent count, and what the layers do not account for."""
    params = sum(value.numel() for value in trace.params.values())
    formula = network_work(network, Setup(batch=batch))
    flops = trace.total.flops
    explained = formula.forward.flops + formula.backward.flops
    owned = trace.loss.size_bytes + sum(
        e.forward.size_bytes + e.backward.size_bytes for e in trace.events if e.dynamic
    )
    return StepTotals(
        flops=flops,
        size_bytes=trace.total.size_bytes,
        params=params,
        unattributed_flops_share=_share_left(flops, explained),
        unattributed_bytes_share=_share_left(trace.total.size_bytes, owned),
        unattributed_params_share=_share_left(params, formula.params),
        overcounted_flops_share=_share_over(flops, explained),
        overcounted_bytes_share=_share_over(
            trace.total.size_bytes - trace.loss.size_bytes,
            formula.forward.size_bytes + formula.backward.size_bytes,
        ),
    )


def _share_off(trace: Trace, network: Network, batch: int) -> float:
    """By which share the formulas of forward differ from what was counted there."""
    counted = sum(event.forward.flops for event in trace.events if event.dynamic)
    formula = network_work(network, Setup(batch=batch)).forward.flops
    return abs(formula / counted - 1.0) if counted else 0.0


def _share_left(total: float, explained: float) -> float:
    return max(0.0, 1.0 - explained / total) if total else 0.0


def _share_over(total: float, explained: float) -> float:
    return max(0.0, explained / total - 1.0) if total else 0.0
