"""Trace one training step of a module on fake tensors and record every function it calls.

    module hooks        which module is running
    function mode       which function it calls on which tensors: one Event each
    dispatch mode       which ATen operators that function runs: FLOPs, bytes and launches

The backward pass runs too. Its operators are attributed to the Event that created them by autograd
sequence numbers; the rest is counted as unattributed. Functions that it calls are compared with the
events of the forward pass: activation checkpointing runs them again.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from joulecast.operators import Shape, Work
from joulecast.system.errors import NetError
from joulecast.system.units import format_bytes
from joulecast.torch_nets.aten_costs import count_op_cost, count_op_waits, matmul_sizes
from joulecast.torch_nets.inputs import call_net, list_tensors
from joulecast.torch_nets.losses import LossFunction, first_float_tensor

OTHER_PRECISIONS = {
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
"""Types of weights that are counted as if they were float32, with their names."""

MAX_TRACE_S = 60.0
# Weights are copied and get gradients, so that the module is not changed.
_COPIES_OF_WEIGHTS = 2
# Share of the free memory that a trace may take.
_MEMORY_SHARE = 0.7
# A random number that decides whether a layer is skipped: most are not.
_TYPICAL_DRAW = 0.5
# What adds up the gradients of weights has no number of its own.
_NO_SEQUENCE_NUMBER = 2**64 - 1
_BACKWARD = (torch.autograd.backward, torch.Tensor.backward)

LeafNamer = Callable[[nn.Module], str]

# Value ids of the module's inputs count down from here; those of computed values count up from 0.
INPUT = -1

_REFLECTED = {"add", "mul", "sub", "truediv", "matmul", "pow"}
_SYNONYMS = {
    "truediv": "div",
    **dict.fromkeys(("cat", "concatenate"), "concat"),
    **dict.fromkeys(("contiguous", "clone"), "copy"),
}


@dataclass
class Event:
    """One function call of the traced module.

    Attributes:
        name: Name of the function, or of the leaf module.
        module_path: Qualified name of the module that made the call.
        module_call: Index of the call of that module, counted from 0.
        inputs: The values that it reads, with ids; ``INPUT`` and below are the module's inputs.
        output_ids: Ids of the values that it returns.
        outputs: The returned tensors.
        param_names: Names of the parameters that it reads.
        weight_elements: Elements of the largest of these, or of what was taken from one.
        is_dynamic: It depends on the module's input or on parameters.
        needs_input_grad: One of its dynamic inputs requires a gradient.
        has_trainable_params: One of its parameters requires a gradient.
        matmuls: ``count, m, k, n`` of the matrix products that it runs.
        recomputed: Cost of running it again during backward: activation checkpointing.
        is_recomputed: It is run again during backward.
        leaf_module: The module, if a module is traced as one call.
        is_fused: It replaces several consecutive calls.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module_path: str
    module_call: int
    inputs: tuple[tuple[int, torch.Tensor], ...] = ()
    output_ids: tuple[int, ...] = ()
    outputs: tuple[torch.Tensor, ...] = ()
    param_names: tuple[str, ...] = ()
    weight_elements: int = 0
    is_dynamic: bool = True
    needs_input_grad: bool = False
    has_trainable_params: bool = False
    forward: Work = Work()
    backward: Work = Work()
    recomputed: Work = Work()
    is_recomputed: bool = False
    matmuls: list[tuple[int, int, int, int]] = field(default_factory=list)
    leaf_module: nn.Module | None = None
    is_fused: bool = False

    @property
    def input_ids(self) -> list[int]:
        """Ids of the values that it reads."""
        return [value for value, _ in self.inputs]

    @property
    def function_name(self) -> str:
        """The plain name of its function: ``__iadd__``, ``add_`` and ``add`` are all ``add``."""
        name = self.name
        if name.startswith("__") and name.endswith("__"):
            name = name[2:-2]
            if name != "index" and name[0] in "ri" and name[1:] in _REFLECTED:
                name = name[1:]
        return _SYNONYMS.get(name.rstrip("_"), name.rstrip("_"))

    @property
    def first_tensor(self) -> torch.Tensor:
        """The first tensor argument, looking into lists; the output where there is none."""
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, torch.Tensor):
                return value
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
                return value[0]
        return self.outputs[0]

    def bind(self, *names: str) -> dict[str, Any]:
        """Return positional arguments under the given names, together with keyword arguments."""
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    def input_shape(self, batch: int) -> Shape:
        """Return the shape of one sample of the first tensor argument."""
        return sample_shape(self.first_tensor.shape, batch)

    def find_largest_constant(self, known: Sequence[torch.Tensor], batch: int) -> int:
        """Return the elements per sample of the largest tensor argument besides ``known``.

        Numbers do not count: they keep the precision of the other operand. 0 if there is none.
        """
        known_ids = set(map(id, known))
        sizes = [
            math.prod(value.shape) // (batch if value.shape[0] == batch and value.dim() > 1 else 1)
            for value in self.args
            if isinstance(value, torch.Tensor)
            and value.dim()
            and value.is_floating_point()
            and id(value) not in known_ids
        ]
        return max(sizes, default=0)


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module, and the half-open range of events inside it."""

    path: str
    class_name: str
    index: int
    start: int
    stop: int
    is_leaf: bool


@dataclass
class Trace:
    """Everything that one training step of a module ran.

    Attributes:
        total: Cost of all operators of forward and backward, the loss included.
        loss: Cost of the loss function.
        output_id: Id of the value that the loss is computed from.
        ops_without_rule: Operators whose FLOPs are unknown, with how often they ran.
        uncounted_bytes: Bytes that those operators moved.
        is_real: It ran on real tensors.
        forward_launches: Launches of the forward pass.
        waits: The number of launches before each wait of the host for a GPU.
        hidden_launches: Kernels of such operators that the layers do not count.
    """

    params: dict[str, torch.Tensor]
    inputs: list[torch.Tensor]
    is_real: bool = False
    events: list[Event] = field(default_factory=list)
    calls: list[ModuleCall] = field(default_factory=list)
    total: Work = Work()
    loss: Work = Work()
    output_id: int = INPUT
    ops_without_rule: Counter[str] = field(default_factory=Counter)
    uncounted_bytes: float = 0.0
    forward_launches: int = 0
    waits: list[int] = field(default_factory=list)
    hidden_launches: int = 0


def sample_shape(shape: Sequence[int], batch: int) -> Shape:
    """Return the shape of one sample, wherever the batch axis is; flat where none divides."""
    sizes = tuple(int(size) for size in shape)
    if sizes and sizes[0] == batch:
        return sizes[1:]
    if sizes and sizes[0] % batch == 0 and sizes[0]:
        return (sizes[0] // batch, *sizes[1:])
    if len(sizes) > 1 and sizes[1] == batch:
        return (sizes[0], *sizes[2:])
    return (-(-math.prod(sizes) // batch),)


def trace_on_fake_tensors(
    net: nn.Module,
    inputs: Any,
    loss: LossFunction,
    name_leaf: LeafNamer,
    in_float32: bool = False,
) -> Trace:
    """Trace a step without memory or arithmetic; the module is not changed."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(value: torch.Tensor) -> torch.Tensor:
        if isinstance(value, FakeTensor):
            made: torch.Tensor = value
        else:
            if value.device.type == "meta":
                made = FakeTensor(mode, value.detach(), torch.device("cpu"))
            else:
                made = mode.from_tensor(value.detach())
            made.requires_grad_(value.requires_grad)
        if not in_float32 or value.dtype not in OTHER_PRECISIONS:
            return made
        with mode:
            return made.detach().float().requires_grad_(value.requires_grad)

    state = {name: fake(value) for name, value in _named_state(net).items()}
    fake_inputs = tree_map_only(torch.Tensor, fake, inputs)
    # This logger prints tracebacks of attempts that are allowed to fail.
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with mode:
            return _trace(net, state, fake_inputs, loss, name_leaf)
    finally:
        logger.disabled = was_disabled


def trace_on_real_tensors(
    net: nn.Module, inputs: Any, loss: LossFunction, name_leaf: LeafNamer
) -> Trace:
    """Trace a step on real tensors, for modules whose control flow depends on values.

    Raises:
        NetError: It takes too long, or too much memory.
    """
    limits = TraceLimits(net)
    state = {
        name: value.detach().clone().requires_grad_(value.requires_grad)
        for name, value in _named_state(net).items()
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _trace(net, state, inputs, loss, name_leaf, limits)


@contextlib.contextmanager
def kept_state(net: nn.Module) -> Iterator[None]:
    """Restore training modes, parameters and buffers afterwards.

    PyTorch's ``functional_call`` does not restore those of shared modules.
    """
    before = [
        (one, dict(one._parameters), dict(one._buffers), one.training) for one in net.modules()
    ]
    try:
        yield
    finally:
        for module, parameters, buffers, is_training in before:
            module._parameters.update(parameters)
            module._buffers.update(buffers)
            module.training = is_training


def _named_state(net: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def _trace(
    net: nn.Module,
    state: dict[str, torch.Tensor],
    inputs: Any,
    loss: LossFunction,
    name_leaf: LeafNamer,
    limits: TraceLimits | None = None,
) -> Trace:
    tracer = _Tracer(net, state, inputs, name_leaf, limits)
    values = {f"net.{name}": value for name, value in state.items()}
    with kept_state(net), tracer.installed():
        net.train()
        torch.func.functional_call(_TracedStep(net, tracer, loss), values, (inputs,))
    tracer.assign_runs()
    return tracer.trace


class _TracedStep(nn.Module):
    """Forward, loss and backward as one module, so that backward may call forward again."""

    def __init__(self, net: nn.Module, tracer: _Tracer, loss: LossFunction) -> None:
        super().__init__()
        self.net = net
        # In a tuple, because the loss may be a module, too.
        self.tools = (tracer, loss)

    def forward(self, inputs: Any) -> None:
        tracer, loss = self.tools
        output = call_net(self.net, inputs)
        tracer.enter_loss(first_float_tensor(output))
        value = loss(output)
        if value.requires_grad:
            # ``value.backward()`` would itself be a call, inside which the function mode sees
            # nothing.
            torch.autograd.Variable._execution_engine.run_backward(
                (value,), (torch.ones_like(value),), False, False, (), True, True
            )


class _Tracer:
    """Fills a trace while the hooks and both modes are installed.

    Attributes:
        created: The events in the order in which they opened, each with the number of autograd's
            next node at that time; None where the loss begins.
        runs: What backward called while autograd ran one node, with the number of that node.
    """

    def __init__(
        self,
        net: nn.Module,
        state: dict[str, torch.Tensor],
        inputs: Any,
        name_leaf: LeafNamer,
        limits: TraceLimits | None,
    ) -> None:
        self.net = net
        self.name_leaf = name_leaf
        self.limits = limits
        params = {name: state[name] for name, _ in net.named_parameters()}
        self.trace = Trace(params, list_tensors(inputs), is_real=limits is not None)
        self.state_names = {id(value): name for name, value in state.items()}
        self.value_ids = {id(t): INPUT - i for i, t in enumerate(self.trace.inputs)}
        # Tensors that were copied to the CPU, by id, which they keep while they live.
        self.on_host: dict[int, torch.Tensor] = {}
        self.constants: set[int] = set()
        # Holding the tensors keeps Python from reusing their id().
        self.alive: list[Any] = [*self.trace.inputs]
        self.open_calls: list[ModuleCall] = []
        self.call_counts: Counter[str] = Counter()
        self.open_event: Event | None = None
        self.created: list[tuple[int, Event | None]] = []
        self.runs: list[tuple[int, list[Event]]] = []
        self.in_loss = False
        self.in_operator = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Install hooks on every module, the dispatch mode, and on top the function mode."""
        with contextlib.ExitStack() as stack:
            for path, module in self.net.named_modules():
                enter = partial(self._enter_module, path)
                before = module.register_forward_pre_hook(enter, with_kwargs=True)
                after = module.register_forward_hook(self._exit_module, always_call=True)
                stack.callback(before.remove)
                stack.callback(after.remove)
            stack.enter_context(_DispatchMode(self))
            stack.enter_context(_FunctionMode(self))
            yield

    def enter_loss(self, output: torch.Tensor) -> None:
        """Attribute everything from here on to the loss, which is computed from this output."""
        self.trace.output_id = self.value_ids.get(id(output), INPUT)
        self.in_loss = True
        self.trace.forward_launches = self.trace.total.launches
        self.created.append((_next_sequence_number(), None))

    def assign_runs(self) -> None:
        """Attribute what backward called to the events that it repeats, else to its node."""
        for number, calls in self.runs:
            if not assign_run(calls, self.trace.events):
                self._count_backward(number, sum((call.forward for call in calls), Work()))

    # -- modules ---------------------------------------------------------------------------

    def _enter_module(
        self, path: str, module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> None:
        index, start = self.call_counts[path], len(self.trace.events)
        self.call_counts[path] += not self.in_loss
        is_leaf = not any(True for _ in module.children())
        self.open_calls.append(
            ModuleCall(path, type(module).__name__, index, start, start, is_leaf)
        )
        name = self.name_leaf(module)
        if name and self.open_event is None and not self._is_ignored():
            self.open_event = self._start_event(name, args, kwargs, module)

    def _exit_module(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self.open_calls.pop()
        event = self.open_event
        if event is not None and event.leaf_module is module:
            self.open_event = None
            self._close_event(event, output)
        if not self.in_loss:
            self.trace.calls.append(replace(call, stop=len(self.trace.events)))

    # -- functions -------------------------------------------------------------------------

    def call_function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that the module calls, and record it as an event."""
        if self.in_operator:
            return func(*args, **kwargs)
        given, copies = list_tensors((args, kwargs)), copies_to_host(func, args, kwargs)
        if copies:
            self._count_waits(1, 0, args)
        out = self._record_call(func, args, kwargs)
        if copies or (given and all(id(tensor) in self.on_host for tensor in given)):
            self.on_host |= {id(tensor): tensor for tensor in list_tensors(out)}
        return out

    def _record_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_ignored():
            return func(*args, **kwargs)
        if self.open_event is not None:
            if self.open_event.leaf_module is not None:
                self._record_inputs(self.open_event, (args, kwargs))
            return func(*args, **kwargs)
        event = self._start_event(getattr(func, "__name__", str(func)), args, kwargs, None)
        self.open_event = event
        try:
            out = func(*args, **kwargs)
        finally:
            self.open_event = None
        self._close_event(event, out)
        return out

    def _is_ignored(self) -> bool:
        """Return whether the loss is running, whose calls belong to no layer."""
        return self.in_loss and torch._C._current_autograd_node() is None

    def _start_event(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], leaf: nn.Module | None
    ) -> Event:
        call = self.open_calls[-1] if self.open_calls else None
        path, index = (call.path, call.index) if call else ("", 0)
        event = Event(name, args, kwargs, path, index, is_dynamic=False, leaf_module=leaf)
        self._record_inputs(event, (args, kwargs))
        if self.in_loss:
            self._start_repeated(event)
        else:
            self.trace.events.append(event)
        self.created.append((_next_sequence_number(), event))
        return event

    def _start_repeated(self, event: Event) -> None:
        """Record a call during backward, which may be one of the forward pass that runs again."""
        node: Any = torch._C._current_autograd_node()
        number = node._sequence_nr()
        if not self.runs or self.runs[-1][0] != number:
            self.runs.append((number, []))
        self.runs[-1][1].append(event)
        # Its inputs are the values that the trace does not know, besides parameters and buffers.
        event.needs_input_grad = any(
            value.requires_grad
            for value in list_tensors((event.args, event.kwargs))
            if id(value) not in self.state_names
        )

    def _record_inputs(self, event: Event, values: Any) -> None:
        """Add what a call reads; values computed inside a leaf module have no id."""
        params = self.trace.params
        for tensor in list_tensors(values):
            name = self.state_names.get(id(tensor))
            if name is not None:
                if name in params and name not in event.param_names:
                    event.param_names += (name,)
                    event.is_dynamic = True
                    event.has_trainable_params |= params[name].requires_grad
            elif id(tensor) in self.value_ids:
                value_id = self.value_ids[id(tensor)]
                if event.leaf_module is None or value_id not in event.input_ids:
                    event.inputs += ((value_id, tensor),)
                if value_id not in self.constants:
                    event.is_dynamic = True
                    event.needs_input_grad |= tensor.requires_grad

    def _close_event(self, event: Event, out: Any) -> None:
        if out is None and event.name == "__setitem__":
            out = event.args[0]  # changed in place
        tensors = list_tensors(out)
        calls = self.runs[-1][1] if self.in_loss else self.trace.events
        # A call that returns nothing is forgotten, unless backward spends time on it.
        is_idle = not (self.in_loss and event.forward.launches)
        if not tensors and is_idle and calls[-1] is event:
            calls.pop()
            if not self.in_loss:
                self.created.pop()
        for tensor in () if self.in_loss else tensors:
            value_id = len(self.alive)
            self.alive.append(tensor)
            self.value_ids[id(tensor)] = value_id
            if not event.is_dynamic:
                self.constants.add(value_id)
            event.output_ids += (value_id,)
            event.outputs += (tensor,)

    # -- operators -------------------------------------------------------------------------

    def count_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Add the cost of a dispatched operator to the event that it belongs to."""
        work, lacks_rule = count_op_cost(func, args, kwargs, out)
        waits, launches = count_op_waits(func, args, kwargs)
        if waits:
            self._count_waits(waits, launches, (args, kwargs))
        if not work.launches:
            return
        if self.limits is not None:
            # Of backward, only gradients of weights are kept.
            self.limits.spend(() if self.in_loss else out)
        self.trace.total += work
        if lacks_rule:
            self.trace.ops_without_rule[func._schema.name] += 1
            self.trace.uncounted_bytes += work.size_bytes
        node: Any = torch._C._current_autograd_node()
        event = self.open_event
        if node is not None and event is None:
            self._count_backward(node._sequence_nr(), work)
        elif node is None and self.in_loss:
            self.trace.loss += work
        elif event is not None:
            event.forward += work
            sizes = matmul_sizes(func, args)
            if node is None and sizes[0]:
                event.matmuls.append(sizes)

    def _count_waits(self, count: int, launches: int, values: Any) -> None:
        """Record that the host waits for values, unless they are made of constants alone.

        Constants stay on the CPU, such as random numbers that decide whether a layer is skipped.
        All other values count as if they were on a GPU: a trace cannot tell those that the user's
        code keeps on the CPU.
        """
        is_checked_on_cpu = self.open_event is not None and self.open_event.name == "one_hot"
        on_device = [one for one in list_tensors(values) if id(one) not in self.on_host]
        ids = [self.value_ids.get(id(tensor)) for tensor in on_device]
        if not is_checked_on_cpu and any(one is None or one not in self.constants for one in ids):
            self.trace.waits += [self.trace.total.launches] * count
            self.trace.hidden_launches += launches

    def _count_backward(self, sequence_number: int, work: Work) -> None:
        # A node created while an event was open has a number from its own to that of the next.
        index = bisect.bisect_right(self.created, sequence_number, key=itemgetter(0)) - 1
        if index < 0:
            return
        event = self.created[index][1]
        if event is None or sequence_number == _NO_SEQUENCE_NUMBER:
            self.trace.loss += work
        else:
            event.backward += work


class _FunctionMode(TorchFunctionMode):
    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A checkpoint that runs its own backward pass calls no layer by it.
        if func in _BACKWARD:
            return func(*args, **(kwargs or {}))
        return self.tracer.call_function(func, args, kwargs or {})


class _DispatchMode(TorchDispatchMode):
    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before, self.tracer.in_operator = self.tracer.in_operator, True
        try:
            out = replace_result(func, args, kwargs or {})
            if out is None:
                out = func(*args, **(kwargs or {}))
            self.tracer.count_op(func, args, kwargs or {}, out)
        finally:
            self.tracer.in_operator = before
        return out


def copies_to_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a function copies a tensor to the CPU.

    PyTorch dispatches nothing where it is there already, as in a trace.
    """
    name = getattr(func, "__name__", "")
    targets = (*args[1:2], kwargs.get("device")) if name == "to" else ()
    devices = [str(one) for one in targets if isinstance(one, (str, torch.device))]
    return name in ("cpu", "tolist", "numpy") or any(one.startswith("cpu") for one in devices)


# ---------------------------------------------------------------------------------------------
# Limits of a trace on real tensors


class TraceLimits:
    """The time and memory that a trace on real tensors may still take.

    Raises:
        NetError: Copies of the module's weights alone take too much memory.
    """

    def __init__(self, net: nn.Module) -> None:
        self.deadline_s = time.monotonic() + MAX_TRACE_S
        self.limit_bytes = _MEMORY_SHARE * find_available_bytes()
        self.used_bytes = 0.0
        for _ in range(_COPIES_OF_WEIGHTS):
            self.spend(list(net.parameters()))

    def spend(self, out: Any) -> None:
        """Count an operator's result that the trace keeps, and the time.

        Raises:
            NetError: The trace takes too long, or too much memory.
        """
        self.used_bytes += sum(t.numel() * t.element_size() for t in list_tensors(out))
        limit = ""
        if self.used_bytes > self.limit_bytes:
            limit = f"memory than is free ({format_bytes(self.limit_bytes)})"
        elif time.monotonic() > self.deadline_s:
            limit = f"than {MAX_TRACE_S:.0f} s on this CPU"
        if limit:
            raise NetError(
                "its control flow depends on values, and a step of two samples takes more "
                f"{limit}: give smaller inputs"
            )


def find_available_bytes() -> float:
    """Return the memory that is free on this machine; infinite where that is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return float("inf")


# ---------------------------------------------------------------------------------------------
# Results that a trace cannot leave to PyTorch


def replace_result(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operator that a trace cannot leave to PyTorch; None for all others.

    A random number that decides which layers run (LayerDrop) must not decide what is read, and on
    fake tensors PyTorch refuses grouped products of all types but bfloat16 and of strides that its
    kernels pad.
    """
    name = func._schema.name
    if name == "aten::_grouped_mm" and isinstance(args[0], FakeTensor):
        left, right = args[:2]
        if left.dim() == right.dim() == 2:
            offsets: Any = kwargs.get("offs", args[2] if len(args) > 2 else None)
            return left.new_empty(offsets.shape[0], left.shape[0], right.shape[1])
        if left.dim() == right.dim():
            return left.new_empty(left.shape[0], left.shape[1], right.shape[2])
        return left.new_empty(left.shape[-2], right.shape[-1])
    if name == "aten::rand" and list(args[0]) == []:
        out: torch.Tensor = func(*args, **kwargs)
        if not isinstance(out, FakeTensor):
            return out.fill_(_TYPICAL_DRAW)
        if out.constant is None:
            with unset_fake_temporarily():
                out.constant = torch.full((), _TYPICAL_DRAW, dtype=out.dtype, device="cpu")
        return out
    return None


# ---------------------------------------------------------------------------------------------
# Calls that activation checkpointing runs again
#
# A checkpoint calls the same functions on the same parameters in the same order once more, while
# autograd runs one node: PyTorch's node of the checkpoint, or the node that needs the first result.
# Runs that do not repeat calls of the forward pass are not checkpoints: backward passes that are
# written in Python call functions, too.


def assign_run(calls: list[Event], events: list[Event]) -> bool:
    """Add the cost of a run to the events that it repeats; return whether they were found.

    The last ones that are not repeated yet are taken, because backward starts at the end.
    """
    for tried in _list_trimmed(calls):
        for start in range(len(events) - len(tried), -1, -1):
            repeated = events[start : start + len(tried)]
            if all(map(_repeats, tried, repeated)):
                for call, event in zip(tried, repeated, strict=True):
                    event.recomputed += call.forward
                    event.backward += call.backward
                    event.needs_input_grad |= call.needs_input_grad
                    # The last call of a run may be stopped before it computes anything.
                    event.is_recomputed = call.forward.launches > 0 or not event.forward.launches
                return True
    return False


def _list_trimmed(calls: list[Event]) -> Iterator[list[Event]]:
    """Yield the calls, and without views at either end: PyTorch itself makes some of them."""
    computing = [at for at, call in enumerate(calls) if call.forward.launches]
    if not computing:
        return
    for start in range(computing[0] + 1):
        for stop in range(len(calls), computing[-1], -1):
            yield calls[start:stop]


def _repeats(call: Event, event: Event) -> bool:
    is_same = (call.name, call.param_names) == (event.name, event.param_names)
    return is_same and not event.is_recomputed


def _next_sequence_number() -> int:
    """Return the number that autograd gives to the next node it creates."""
    number: int = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    return number
