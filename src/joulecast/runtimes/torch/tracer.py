"""Runs a net once on tensors that hold no numbers and writes down what it called.

    hooks            which module is running: names, blocks, calls
    function mode    which function it called with which tensors: one Event each
    dispatch mode    which operators that function ran: FLOPs, bytes and launches of the Event

Backward is run too. Its operators are given back to the Event that made them by autograd's sequence
numbers, so that every operator of the step has an owner or is counted as having none.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from joulecast.errors import NetError
from joulecast.kinds import Work
from joulecast.runtimes.torch.aten_costs import matmul_sizes, count_op_cost

INPUT = -1


@dataclass
class Event:
    """One function that the net called.

    Attributes:
        path: The module that called it; ``call`` numbers that module's calls.
        inputs: Numbers of the values it read (``INPUT`` and below are the net's inputs).
        outputs: Numbers of the values it made, with their tensors in ``results``.
        params: Names of the parameters that it read.
        dynamic: It depends on the net's input or on parameters.
        products: ``count, m, k, n`` of the matrix products inside.
        module: The module that the event stands for as a whole, if any.
        folded: It stands for several functions in a row.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    path: str
    call: int
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    results: tuple[torch.Tensor, ...] = ()
    params: tuple[str, ...] = ()
    dynamic: bool = True
    input_grad: bool = False
    trains: bool = False
    forward: Work = Work()
    backward: Work = Work()
    products: list[tuple[int, int, int, int]] = field(default_factory=list)
    module: nn.Module | None = None
    folded: bool = False


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module: the half-open range of events that it made."""

    path: str
    kind: str
    number: int
    start: int
    stop: int
    leaf: bool


@dataclass
class Trace:
    """What one step of a net did."""

    events: list[Event]
    calls: list[ModuleCall]
    params: dict[str, torch.Tensor]
    inputs: list[torch.Tensor]
    total: Work
    loss: Work
    output: int


Leaf = Callable[[nn.Module], str]


def trace_on_fake_tensors(net: nn.Module, inputs: Any, loss: Any, name_leaf_module: Leaf) -> Trace:
    """Trace on fake tensors: no memory, no arithmetic; the net itself is left as it is."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    state = {name: _fake(mode, value) for name, value in _named_state(net).items()}
    fake_inputs = pytree.tree_map_only(torch.Tensor, lambda x: _fake(mode, x), inputs)
    with mode, _training(net), _quiet("torch._subclasses.fake_tensor"):
        return _trace(net, state, fake_inputs, loss, name_leaf_module)


def trace_on_real_tensors(net: nn.Module, inputs: Any, loss: Any, name_leaf_module: Leaf) -> Trace:
    """Trace on real tensors, for nets whose way depends on the numbers."""
    state = {
        name: value.detach().clone().requires_grad_(value.requires_grad)
        for name, value in _named_state(net).items()
    }
    with _training(net):
        return _trace(net, state, inputs, loss, name_leaf_module)


def _named_state(net: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, FakeTensor):
        return tensor
    if tensor.device.type == "meta":
        fake: torch.Tensor = FakeTensor(mode, tensor.detach(), torch.device("cpu"))
        return fake.requires_grad_(tensor.requires_grad)
    return mode.from_tensor(tensor.detach()).requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Mute a logger: it prints tracebacks of what is tried and may well fail."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextlib.contextmanager
def _training(net: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in net.modules()]
    net.train()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _trace(
    net: nn.Module, state: dict[str, torch.Tensor], inputs: Any, loss: Any, name_leaf_module: Leaf
) -> Trace:
    tracer = Tracer(net, state, inputs, name_leaf_module)
    args, kwargs = _as_call(inputs)
    with tracer.watching():
        output = torch.func.functional_call(net, state, args, kwargs)
        last = tracer.number_of(first_float_tensor(output))
        tracer.enter_loss()
        value = loss(output)
        if value.requires_grad:
            value.backward()
    return tracer.finish(last)


def _as_call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    return (tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)), {}


def first_float_tensor(output: Any) -> torch.Tensor:
    """The tensor of a net's output that a loss is taken of.

    Raises:
        NetError: There is none.
    """
    leaves = [getattr(output, "logits", None), getattr(output, "last_hidden_state", None)]
    for leaf in [*leaves, *pytree.tree_leaves(output)]:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf
    raise NetError(
        "the net's forward gives no floating-point tensor to train on; return one, or a "
        "structure that holds one"
    )


class Tracer:
    """Collects events while hooks and both modes are in place."""

    def __init__(
        self, net: nn.Module, state: dict[str, torch.Tensor], inputs: Any, name_leaf_module: Leaf
    ) -> None:
        self.net = net
        self.name_leaf_module = name_leaf_module
        self.inputs = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
        self.state_names = {id(value): name for name, value in state.items()}
        trainable = {name for name, _ in net.named_parameters()}
        self.params = {name: value for name, value in state.items() if name in trainable}
        self.numbers = {id(t): INPUT - i for i, t in enumerate(self.inputs)}
        self.constant: dict[int, bool] = {INPUT - i: False for i in range(len(self.inputs))}
        self.alive: list[Any] = [*self.inputs]  # ids stay unique while the tensors live
        self.stack: list[tuple[str, int, int, str, bool]] = []
        self.call_counts: dict[str, int] = {}
        self.calls: list[ModuleCall] = []
        self.events: list[Event] = []
        self.sequence: list[int] = []
        self.current: Event | None = None
        self.folding: Event | None = None
        self.total = Work()
        self.loss = Work()
        self.in_loss = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on every module, the dispatch mode, and on top the function mode."""
        with contextlib.ExitStack() as stack:
            for path, module in self.net.named_modules():
                enter = self._make_enter(path)
                before = module.register_forward_pre_hook(enter, with_kwargs=True)
                after = module.register_forward_hook(self._make_leave(path), always_call=True)
                stack.callback(before.remove)
                stack.callback(after.remove)
            stack.enter_context(_Operators(self))
            stack.enter_context(_Functions(self))
            yield

    def number_of(self, tensor: torch.Tensor) -> int:
        return self.numbers.get(id(tensor), INPUT)

    def enter_loss(self) -> None:
        self.in_loss = True
        self.sequence.append(_sequence_number())

    def finish(self, last: int) -> Trace:
        return Trace(self.events, self.calls, self.params, self.inputs, self.total, self.loss, last)

    # -- modules ---------------------------------------------------------------------------

    def _make_enter(self, path: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            number = self.call_counts.get(path, 0)
            self.call_counts[path] = number + 1
            leaf = not any(True for _ in module.children())
            self.stack.append((path, number, len(self.events), type(module).__name__, leaf))
            name = self.name_leaf_module(module)
            if name and self.folding is None and not self.in_loss:
                self.folding = self._open(name, args, kwargs, module)

        return enter

    def _make_leave(self, path: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            path_, number, start, kind, leaf = self.stack.pop()
            if self.folding is not None and self.folding.module is module:
                event, self.folding = self.folding, None
                self._close(event, output)
            self.calls.append(ModuleCall(path_, kind, number, start, len(self.events), leaf))

        return leave

    # -- functions -------------------------------------------------------------------------

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.in_loss or self.current is not None:
            return func(*args, **kwargs)
        if self.folding is not None:
            self._read(self.folding, (args, kwargs))
            return func(*args, **kwargs)
        event = self._open(getattr(func, "__name__", str(func)), args, kwargs, None)
        self.current = event
        try:
            out = func(*args, **kwargs)
        finally:
            self.current = None
        self._close(event, out)
        return out

    def _open(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module | None
    ) -> Event:
        path, number = self.stack[-1][:2] if self.stack else ("", 0)
        event = Event(name, args, kwargs, path, number, module=module)
        event.dynamic = False
        self._read(event, (args, kwargs))
        self.sequence.append(_sequence_number())
        self.events.append(event)
        return event

    def _read(self, event: Event, values: Any) -> None:
        """Add what a call reads; values made inside a folded module do not count."""
        for tensor in pytree.tree_leaves(values):
            if not isinstance(tensor, torch.Tensor):
                continue
            if id(tensor) in self.state_names:
                self._read_state(event, self.state_names[id(tensor)])
            elif id(tensor) in self.numbers:
                number = self.numbers[id(tensor)]
                if event.module is None or number not in event.inputs:
                    event.inputs += (number,)
                if not self.constant[number]:
                    event.dynamic = True
                    event.input_grad |= tensor.requires_grad

    def _read_state(self, event: Event, name: str) -> None:
        if name in self.params and name not in event.params:
            event.params += (name,)
            event.dynamic = True
            event.trains |= self.params[name].requires_grad

    def _close(self, event: Event, out: Any) -> None:
        tensors = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        if not tensors and event is self.events[-1]:
            self.events.pop()
            self.sequence.pop()
            return
        for tensor in tensors:
            number = len(self.alive)
            self.alive.append(tensor)
            self.numbers[id(tensor)] = number
            self.constant[number] = not event.dynamic
            event.outputs += (number,)
            event.results += (tensor,)

    # -- operators -------------------------------------------------------------------------

    def count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        work = count_op_cost(func, args, kwargs, out)
        if not work.launches:
            return
        self.total += work
        node: Any = torch._C._current_autograd_node()
        if node is not None:
            self._count_backward(node._sequence_nr(), work)
        elif self.in_loss:
            self.loss += work
        else:
            self._count_forward(func, args, work)

    def _count_forward(self, func: Any, args: tuple[Any, ...], work: Work) -> None:
        event = self.folding or self.current
        if event is None:
            return
        event.forward += work
        sizes = matmul_sizes(func, args)
        if sizes[0]:
            event.products.append(sizes)

    def _count_backward(self, sequence: int, work: Work) -> None:
        """A node that was made while event i was open has a number between those of i and i + 1."""
        index = bisect.bisect_right(self.sequence, sequence) - 1
        if index >= len(self.events):
            self.loss += work
        elif index >= 0:
            self.events[index].backward += work


def _sequence_number() -> int:
    """The number that autograd gives to the next node it makes."""
    number: int = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    return number


class _Functions(TorchFunctionMode):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.tracer.call(func, args, kwargs or {})


class _Operators(TorchDispatchMode):
    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.tracer.count(func, args, kwargs or {}, out)
        return out
