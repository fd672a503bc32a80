"""The PyTorch runtime on one device: turn a Trial, or a user's module, into a Step.

Weights and batches are drawn from a seed that belongs to the trial, so that two runs build the same
network. A narrow network may start with a dead ReLU: other seeds are tried before the trial is
rejected.

A step is run again and again on one batch that stays on the device. It is forward, loss, backward
and update; with accumulation, several times forward, loss and backward before one update.
``prepare_step`` checks it first: after two steps the loss must be finite and every trainable weight
must have changed, so that only real training is measured.

A stage that runs alone runs as often as in a step, and reuses results of a whole step before it:
``backward`` repeats the backward pass of one retained graph, ``update`` repeats the update with the
same gradients.

Modules are compiled by ``torch.compile`` when their step is first run, before anything is measured;
optimizers and losses are not compiled. What was compiled is forgotten when no compiled step is
left: PyTorch would otherwise give up after a few networks, which share the code of
``BuiltNet.forward``, and run them eagerly.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from joulecast.operators import uses_autocast
from joulecast.operators.building import needs_input_gradient
from joulecast.operators.setup_checks import (
    raise_closed,
    refuse_cuda_graphs,
    refuse_int8,
    refuse_processor,
)
from joulecast.records import MODES, Device, Execution, Network, Setup, Trial
from joulecast.system.errors import (
    InputError,
    JoulecastError,
    NetError,
    NotTrainingError,
    OutOfMemoryError,
    arg,
)
from joulecast.system.user_errors import describe_user_error
from joulecast.torch_nets.build import build_net
from joulecast.torch_nets.inputs import call_net, format_input, list_tensors
from joulecast.torch_nets.losses import LossFunction, first_float_tensor, make_loss
from joulecast.torch_nets.tracer import kept_state

_MAX_SEEDS = 5
HALF_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LEARNING_RATES = {"sgd": 0.01, "adam": 1e-3, "adamw": 1e-3}
_GRAPH_WARMUP_STEPS = 3
# Learning rate while steps are measured, as a share of the usual one. Trained again and again on
# one batch, a network's units die and its energy falls (a wide CNN on a GPU: by 6 % within 2 s).
_MEASURED_LEARNING_RATE_SHARE = 1e-4
# Compiling in this process leaves none that could disturb the measurement.
_COMPILE_OPTIONS: dict[str, str | int | bool] = {"compile_threads": 1}
_LONGEST_MESSAGE = 300


class TorchRuntime:
    """PyTorch on one device: see ``records.runtime.Runtime``."""

    def __init__(self, on: str, device: Device) -> None:
        self.torch_device = find_torch_device(on)
        self.device = device
        self.name = "torch-" + torch.__version__.split("+")[0]
        self.modes: tuple[str, ...] = MODES if self.torch_device.type == "cuda" else ("eager",)

    def prepare(self, trial: Trial) -> TorchStep:
        """Build a trial's network, compile it if the setup says so, and return its checked step."""
        self._check_setup(trial.setup)
        seed = int(trial.key[:8], 16)
        compiles = trial.setup.compiled
        with explain_compile_errors(self.torch_device) if compiles else contextlib.nullcontext():
            for attempt in range(_MAX_SEEDS - 1):
                with contextlib.suppress(NotTrainingError):
                    return self._prepare_seeded(trial, seed + attempt)
            return self._prepare_seeded(trial, seed + _MAX_SEEDS - 1)

    def prepare_net(
        self,
        net: nn.Module,
        inputs: Any,
        loss: LossFunction | None,
        setup: Setup,
        execution: Execution = Execution(),
    ) -> TorchStep:
        """Return a checked step of a user's module, which is as it was when the step is closed."""
        self._check_setup(setup)
        generator = torch.Generator().manual_seed(0)
        with contextlib.ExitStack() as stack:
            stack.enter_context(keep_module(net, self.torch_device))
            replicas = [self._make_replica(net, inputs, loss, setup, generator)]
            with one_line_errors(self.torch_device):
                step = prepare_step(
                    replicas, setup, execution, self.torch_device, is_users_net=True
                )
            step.on_close = stack.pop_all().close
            return step

    def _check_setup(self, setup: Setup) -> None:
        refuse_int8(setup, "PyTorch")
        refuse_processor(setup, "PyTorch")
        if self.torch_device.type != "cuda":
            refuse_cuda_graphs(setup, f"PyTorch on {self.torch_device}")
        if setup.precision == "tf32" and self.torch_device.type != "cuda":
            raise InputError("tf32 is a number format of NVIDIA GPUs: give fp32 on a processor")
        if setup.compiled:
            forget_compiled()

    def _prepare_seeded(self, trial: Trial, seed: int) -> TorchStep:
        # Drawn on the device: drawing a large batch on the CPU takes longer than measuring it.
        device = self.torch_device
        generator = torch.Generator(device).manual_seed(seed)
        replicas: list[Replica] = []
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for _ in range(trial.execution.copies):
                with one_line_errors(device), device:
                    net = build_net(trial.network)
                    inputs = draw_inputs(trial.network, trial.setup, generator)
                replicas.append(self._make_replica(net, inputs, None, trial.setup, generator))
        return prepare_step(replicas, trial.setup, trial.execution, device)

    def _make_replica(
        self,
        net: nn.Module,
        inputs: Any,
        loss: LossFunction | None,
        setup: Setup,
        generator: torch.Generator,
    ) -> Replica:
        with one_line_errors(self.torch_device):
            net = net.to(self.torch_device).train(setup.phase == "train")
            net = convert_floats(net, setup)
            inputs = convert_floats(move_inputs(inputs, self.torch_device), setup)
            if loss is None and setup.phase == "train":
                settings = apply_settings(setup, self.torch_device)
                with torch.no_grad(), settings, make_autocast(setup, self.torch_device):
                    loss = make_loss(setup, call_net(net, inputs), generator)
        return Replica(net, inputs, loss)


@contextlib.contextmanager
def keep_module(net: nn.Module, device: torch.device) -> Iterator[None]:
    """Let a module be moved, converted and trained; put everything back afterwards.

    Weights are copied only if they are on the device already: moving them makes copies anyway.
    """
    tensors = list(dict.fromkeys((*net.parameters(), *net.buffers())))
    contents = [(one, one.data, one.grad) for one in tensors]
    with kept_state(net):
        for one in tensors:
            one.grad = None
            if one.device == device:
                one.data = one.data.clone()
        try:
            yield
        finally:
            for tensor, data, grad in contents:
                tensor.data, tensor.grad = data, grad


def find_torch_device(on: str) -> torch.device:
    """Return the torch device for ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        InputError: There is no such device.
    """
    if on == "cpu":
        return torch.device("cpu")
    try:
        device = torch.device(on)
    except RuntimeError:
        raise InputError(f"unknown device {on!r}: give cpu or cuda:0") from None
    if device.type != "cuda":
        raise InputError(f"device {on!r} is not supported yet: give cpu or cuda:0")
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        advice = f"try {arg('on', 'cpu')}"
        raise InputError(f"PyTorch sees {count} CUDA devices, so there is no {on}: {advice}")
    return torch.device("cuda", device.index or 0)


def draw_inputs(network: Network, setup: Setup, generator: torch.Generator) -> torch.Tensor:
    """Draw a batch: N(0, 1) or tokens, with a gradient if the first layers need one."""
    shape = (setup.batch, *network.input.shape)
    if network.input.vocabulary:
        vocabulary = network.input.vocabulary
        return torch.randint(0, vocabulary, shape, generator=generator, device=generator.device)
    x = torch.randn(shape, generator=generator, device=generator.device)
    if network.input.half:
        x = x.to(HALF_DTYPES.get(setup.precision, x.dtype))
    x = format_input(x, network)
    return x.requires_grad_(needs_input_gradient(network))


def move_inputs(inputs: Any, device: torch.device) -> Any:
    """Return inputs on a device as leaf tensors that keep ``requires_grad``."""

    def move(x: torch.Tensor) -> torch.Tensor:
        return x.detach().to(device).requires_grad_(x.requires_grad)

    return tree_map_only(torch.Tensor, move, inputs)


# ---------------------------------------------------------------------------------------------
# A step that is repeated


@dataclass
class Replica:
    """A module with its own batch and, where it trains, its loss."""

    net: nn.Module
    inputs: Any
    loss: LossFunction | None


def prepare_step(
    replicas: list[Replica],
    setup: Setup,
    execution: Execution,
    device: torch.device,
    is_users_net: bool = False,
) -> TorchStep:
    """Return a checked step, ready to be repeated; errors of a user's net name a line of its code.

    Modules are compiled first if the setup says so.

    Raises:
        NetError: The step cannot be captured as a CUDA graph.
        NotTrainingError: The step does not train.
        OutOfMemoryError: The step does not fit into the device's memory.
    """
    if _is_graph(setup, execution) and device.type != "cuda":
        raise InputError(f"CUDA graphs need a CUDA device, not {device}: run it eagerly")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    if setup.compiled:
        replicas = compile_replicas(replicas, setup)
    step = None
    try:
        step = TorchStep(replicas, setup, execution, device, is_users_net)
        step.check()
        step.prepare()
        return step
    except BaseException as error:
        if step is not None:
            step.close()
        if is_out_of_memory(error):
            raise _make_memory_error("step", device) from error
        raise


class TorchStep:
    """A step on one device: see ``records.runtime.Step``."""

    open_compiled: ClassVar[int] = 0
    """How many steps of compiled modules are not closed."""

    def __init__(
        self,
        replicas: list[Replica],
        setup: Setup,
        execution: Execution,
        device: torch.device,
        is_users_net: bool = False,
    ) -> None:
        self.is_closed = False
        self.on_close: Callable[[], None] = lambda: None
        self.is_users_net = is_users_net
        self.explain_errors = (
            partial(one_line_errors, device) if is_users_net else contextlib.nullcontext
        )
        self.replicas = replicas
        self.setup = setup
        self.execution = execution
        self.device = device
        self.is_training = setup.phase == "train"
        self.batches = max(1, setup.accumulate)
        weights = [w for replica in replicas for w in replica.net.parameters() if w.requires_grad]
        self.weights = weights if self.is_training else []
        self.optimizer = _make_optimizer(self.weights, setup, execution, device)
        # GradScaler needs a loss and reads gradients from the host, which no graph can capture.
        has_scalable_loss = execution.upstream == "loss" and not _is_graph(setup, execution)
        is_fp16 = setup.precision == "fp16" and device.type == "cuda"
        needs_scaler = has_scalable_loss and self.is_training and is_fp16
        self.scaler = torch.amp.GradScaler(device.type) if needs_scaler else None
        inputs = list_tensors([replica.inputs for replica in replicas])
        self.grad_inputs = [x for x in inputs if x.requires_grad]
        self.output_grads: list[torch.Tensor] = []
        self.last_losses: list[torch.Tensor] = []
        self.retained_roots: list[torch.Tensor] = []
        self.graph: torch.cuda.CUDAGraph | None = None
        self.run_once = self._choose_stage()
        TorchStep.open_compiled += setup.compiled

    # -- the interface of a Step -----------------------------------------------------------

    def run(self, count: int) -> None:
        """Issue ``count`` steps without waiting for them."""
        with self.explain_errors():
            if self.graph is not None:
                for _ in range(count):
                    self.graph.replay()
                return
            with apply_settings(self.setup, self.device):
                for _ in range(count):
                    self.run_once()

    def wait(self) -> None:
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            with self.explain_errors():
                torch.cuda.synchronize(self.device)

    def peak_memory_bytes(self) -> int:
        """Return the peak of allocated device memory; 0 where it is unknown."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return 0

    def close(self) -> None:
        """Release all tensors, and what was compiled if no other step needs it."""
        if self.is_closed:
            return
        self.is_closed = True
        self.replicas, self.weights, self.grad_inputs = [], [], []
        self.output_grads, self.retained_roots, self.last_losses = [], [], []
        self.optimizer = None
        self.graph = None
        self.run_once = raise_closed
        self.on_close()
        # Freeing takes up to 3 s; what a user's own net needed, the user's training needs again.
        if self.device.type == "cuda" and not self.is_users_net:
            torch.cuda.empty_cache()
        if self.setup.compiled:
            TorchStep.open_compiled -= 1
            forget_compiled()

    # -- checks and preparation ------------------------------------------------------------

    def check(self) -> None:
        """Run two whole steps and reject a step that does not train.

        Raises:
            NotTrainingError: With the reason and the name of the weight.
        """
        if self.is_forward_only:
            with apply_settings(self.setup, self.device):
                self._infer()
            return
        has_input_grads = bool(self.grad_inputs) and self.execution.upstream == "random"
        if not self.weights and not has_input_grads:
            raise NotTrainingError("no weight requires a gradient: there is nothing to train")
        before = [weight.detach().clone() for weight in self.weights]
        with apply_settings(self.setup, self.device):
            self._step()
            self._step()
        self.wait()
        # Keep the weights nearly constant from here on; the work stays the same.
        for group in self.optimizer.param_groups if self.optimizer is not None else ():
            group["lr"] *= _MEASURED_LEARNING_RATE_SHARE
        for loss in self.last_losses:
            if not math.isfinite(float(loss)):
                raise NotTrainingError(f"the loss is {float(loss)} after two steps: not measured")
        self._check_weights_changed(before)
        # A real update may route tokens to other experts: on an H200 a mixture took 49 %
        # longer than in a plain loop.
        with torch.no_grad():
            for weight, old in zip(self.weights, before, strict=True):
                weight.copy_(old)

        # A layer without weights works if a gradient arrives at its input.
        arrived = (x.grad is not None and x.grad.any() for x in self.grad_inputs)
        if not self.weights and not any(arrived):
            raise NotTrainingError("no gradient reaches the layer's input: not measured")

    def prepare(self) -> None:
        """Make what the stage or the mode needs before it can be repeated."""
        with apply_settings(self.setup, self.device):
            if self.execution.stage == "backward":
                self.retained_roots = self._forward()
            if _is_graph(self.setup, self.execution):
                self._capture_graph()

    def _check_weights_changed(self, before: list[torch.Tensor]) -> None:
        """Raise unless each weight changed, or has a tiny gradient and a sibling that changed.

        A bias before a norm, and the bias of attention's keys, do not affect the output: their
        gradient is zero up to rounding although they train. A user's net may have weights that the
        step does not use: they have no gradient.
        """
        names = [
            f"{number}.{name}"
            for number, replica in enumerate(self.replicas)
            # Weights keep their names inside what ``torch.compile`` returned.
            for name, weight in getattr(replica.net, "_orig_mod", replica.net).named_parameters()
            if weight.requires_grad
        ]
        may_lack = self.is_users_net and any(weight.grad is not None for weight in self.weights)
        checked = [
            one
            for one in zip(names, self.weights, before, strict=True)
            if not may_lack or one[1].grad is not None
        ]
        unchanged = {name for name, new, old in checked if torch.equal(old, new.detach())}
        changed_modules = {name.rpartition(".")[0] for name, *_ in checked if name not in unchanged}
        rate = _LEARNING_RATES[self.setup.optimizer]
        for name, weight, _ in checked:
            is_excused = weight.grad is not None and name.rpartition(".")[0] in changed_modules
            if name in unchanged and not (is_excused or _is_update_below_precision(weight, rate)):
                raise NotTrainingError(
                    f"weight {name.partition('.')[2]} did not change in two steps: not measured; "
                    "if it should not train, set requires_grad=False"
                )

    def _capture_graph(self) -> None:
        side_stream = torch.cuda.Stream(self.device)
        side_stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side_stream):
            for _ in range(_GRAPH_WARMUP_STEPS):
                self.run_once()
        torch.cuda.current_stream(self.device).wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.run_once()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            text = " ".join(str(error).split())[:200]
            raise NetError(f"the step cannot be captured as a CUDA graph ({text})") from error
        self.graph = graph

    # -- stages ----------------------------------------------------------------------------

    @property
    def is_forward_only(self) -> bool:
        """Whether it is inference, or a frozen layer alone without a gradient of its input."""
        is_frozen_layer = self.execution.upstream == "random" and not self.weights
        return not self.is_training or (is_frozen_layer and not self.grad_inputs)

    def _choose_stage(self) -> Callable[[], Any]:
        stage = self.execution.stage
        if self.is_forward_only:
            if stage not in ("step", "forward"):
                what = "a frozen layer" if self.is_training else "inference"
                raise InputError(f"{what} has no stage {stage!r}: use step or forward")
            return self._infer
        is_updated = self.setup.accumulate > 0
        if stage == "update" and not is_updated:
            raise InputError("gradients are added up without an update: use another stage")
        stages: dict[str, Callable[[], Any]] = {
            "step": self._step if is_updated else self._add_gradients,
            "forward": self._repeat_forward,
            "backward": self._repeat_backward,
            "update": self._update,
        }
        return stages[stage]

    def _infer(self) -> None:
        with torch.no_grad(), make_autocast(self.setup, self.device):
            for replica in self.replicas:
                call_net(replica.net, replica.inputs)

    def _forward(self) -> list[torch.Tensor]:
        """Return what backward starts from, for each replica: its loss, or its output."""
        roots = []
        with make_autocast(self.setup, self.device):
            for replica in self.replicas:
                output = call_net(replica.net, replica.inputs)
                if self.execution.upstream == "random":
                    roots.append(first_float_tensor(output))
                else:
                    assert replica.loss is not None, "inference has no backward pass"
                    roots.append(replica.loss(output))
        return roots

    def _backward(self, roots: list[torch.Tensor], retain_graph: bool = False) -> None:
        if self.execution.upstream == "random":
            if not self.output_grads:
                self.output_grads = [
                    torch.randn_like(root) / math.sqrt(root.numel()) for root in roots
                ]
            torch.autograd.backward(roots, self.output_grads, retain_graph=retain_graph)
            return
        for root in roots:
            share = root / self.batches if self.batches > 1 else root
            (self.scaler.scale(share) if self.scaler else share).backward(retain_graph=retain_graph)

    def _repeat_forward(self) -> None:
        for _ in range(self.batches):
            self._forward()

    def _repeat_backward(self) -> None:
        if self.setup.accumulate:
            self._clear_grads()
        for _ in range(self.batches):
            self._clear_input_grads()
            self._backward(self.retained_roots, retain_graph=True)

    def _update(self) -> None:
        if self.optimizer is None:
            return
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def _clear_grads(self) -> None:
        # Gradients are allocated anew, as in ordinary training; a captured graph allocates them
        # once, in its own memory pool.
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)

    def _clear_input_grads(self) -> None:
        # Inputs inside a network never accumulate gradients.
        for x in self.grad_inputs:
            x.grad = None

    def _add_gradients(self) -> None:
        """Run forward and backward on one batch; gradients are added to those that exist."""
        self._clear_input_grads()
        roots = self._forward()
        self._backward(roots)
        self.last_losses = [root.detach() for root in roots if root.numel() == 1]

    def _step(self) -> None:
        self._clear_grads()
        for _ in range(self.batches):
            self._add_gradients()
        self._update()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether PyTorch or Python ran out of memory."""
    text = str(error).lower()
    return isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError)
        and ("can't allocate memory" in text or "out of memory" in text)
    )


def _is_graph(setup: Setup, execution: Execution) -> bool:
    """Return whether the step is captured as a CUDA graph and replayed."""
    return setup.cuda_graphs or execution.mode == "graph"


def _is_update_below_precision(weight: torch.Tensor, rate: float) -> bool:
    """Return whether its gradient is not zero but too small to change the weight in fp32."""
    gradient = weight.grad
    if gradient is None or not bool(gradient.any()):
        return False
    largest = float(gradient.detach().abs().max())
    scale = max(float(weight.detach().abs().max()), 1e-6)
    return rate * largest < torch.finfo(torch.float32).eps * scale


def _make_optimizer(
    weights: list[nn.Parameter], setup: Setup, execution: Execution, device: torch.device
) -> torch.optim.Optimizer | None:
    if not weights:
        return None
    rate = _LEARNING_RATES[setup.optimizer]
    is_cuda = device.type == "cuda"
    if setup.optimizer == "sgd":
        return torch.optim.SGD(weights, lr=rate, momentum=0.9)
    is_capturable = is_cuda and _is_graph(setup, execution)
    if setup.optimizer == "adam":
        return torch.optim.Adam(weights, lr=rate, capturable=is_capturable)
    return torch.optim.AdamW(weights, lr=rate, fused=is_cuda, capturable=is_capturable)


# ---------------------------------------------------------------------------------------------
# Settings


@contextlib.contextmanager
def apply_settings(setup: Setup, device: torch.device) -> Iterator[None]:
    """Set threads, TF32 and ``cudnn.benchmark``; restore them afterwards."""
    with contextlib.ExitStack() as stack:
        if setup.threads:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(setup.threads)
        if device.type == "cuda":
            is_tf32 = setup.precision == "tf32"
            for owner, name, value in (
                (torch.backends.cuda.matmul, "allow_tf32", is_tf32),
                (torch.backends.cudnn, "allow_tf32", is_tf32),
                (torch.backends.cudnn, "benchmark", setup.cudnn_benchmark),
            ):
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, value)
        yield


def make_autocast(setup: Setup, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the context of a forward pass and its loss: autocast in half precision.

    It ends before backward and update, as in an ordinary loop: around all of a step, a language
    model that its host limits took 14 % longer on an H200.
    """
    if uses_autocast(setup):
        return torch.autocast(device.type, dtype=HALF_DTYPES[setup.precision])
    return contextlib.nullcontext()


def convert_floats(values: Any, setup: Setup) -> Any:
    """Return a module or inputs in the format of inference: half precision converts them.

    Training keeps weights in full precision, and autocast converts as it goes.
    """
    if setup.phase == "train" or setup.precision not in HALF_DTYPES:
        return values
    dtype = HALF_DTYPES[setup.precision]
    if isinstance(values, nn.Module):
        return values.to(dtype)

    def convert(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    return tree_map_only(torch.Tensor, convert, values)


# ---------------------------------------------------------------------------------------------
# Compiling, and errors


def forget_compiled() -> None:
    """Forget all that was compiled in this process, unless a step needs it."""
    if not TorchStep.open_compiled:
        torch.compiler.reset()


def compile_replicas(replicas: list[Replica], setup: Setup) -> list[Replica]:
    """Return replicas that are compiled when they are first called.

    In inference several are compiled as one module: each call of a compiled module takes time on
    the host, which a network pays once.
    """
    if setup.phase == "train" or len(replicas) == 1:
        return [replace(one, net=compile_module(one.net)) for one in replicas]
    together = ModulesTogether(one.net for one in replicas)
    return [Replica(compile_module(together), tuple(one.inputs for one in replicas), None)]


class ModulesTogether(nn.ModuleList):
    """Modules that are called one after another, each on its own input."""

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return [net(x) for net, x in zip(self, inputs, strict=True)]


def compile_module(net: nn.Module) -> nn.Module:
    """Return a module that is compiled when it is first called."""
    return cast(nn.Module, torch.compile(net, dynamic=False, options=dict(_COMPILE_OPTIONS)))


@contextlib.contextmanager
def explain_compile_errors(device: torch.device) -> Iterator[None]:
    """Raise one line that says why a module cannot be compiled for a device."""
    try:
        yield
    except JoulecastError:
        raise
    except RuntimeError as error:
        # What follows explains how to debug PyTorch.
        text = " ".join(str(error).split()).partition(" Set TORCHDYNAMO")[0][:_LONGEST_MESSAGE]
        advice = f"leave {arg('compiled')} out"
        if "compiler" in text.lower() and device.type == "cpu":
            advice = "install g++, or name a C++ compiler in CXX"
        raise NetError(f"torch.compile fails on {device} ({text}): {advice}") from error


@contextlib.contextmanager
def one_line_errors(device: torch.device) -> Iterator[None]:
    """Raise one line that explains why a module cannot be built, called or trained on a device."""
    try:
        yield
    except JoulecastError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise _make_memory_error("network", device) from error
        raise NetError(f"the step fails on {device}: {describe_user_error(error)}") from error


def _make_memory_error(what: str, device: torch.device) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"the {what} does not fit into the memory of {device}: use a smaller batch or network"
    )
