"""From a net to steps that can be run again and again.

A step is forward, loss, backward and update on one resident batch. ``prepare_step`` also checks it:
after two steps the loss must be finite and every trainable weight must have moved, so that nothing
is ever measured that only looks like training.

Stages run apart keep what they need from a whole step before them: ``backward`` repeats the
backward of one kept forward, ``update`` repeats the update with kept gradients.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from joulecast.errors import InputError, NotTrainingError, OutOfMemoryError
from joulecast.records import Execution, Setup
from joulecast.runtimes.torch.tracer import first_float_tensor

_RATES = {"sgd": 0.01, "adam": 1e-3, "adamw": 1e-3}
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_WARM_STEPS = 3
# While steps are measured, weights move by this share of a usual step: trained again and again on
# one batch, a net's units die and its energy falls (a wide CNN's on a GPU by 6 % within 2 s).
_STILL_SHARE = 1e-4


@dataclass
class Replica:
    """One net with its own resident batch."""

    net: nn.Module
    inputs: Any
    loss: Callable[[Any], torch.Tensor]


def make_loss(setup: Setup, output: Any, generator: torch.Generator) -> Callable[..., torch.Tensor]:
    """A loss against targets drawn once, in the shape that the net's output asks for."""
    logits = first_float_tensor(output)
    if setup.loss == "mse":
        aim = torch.randn(logits.shape, generator=generator, device=generator.device)
        aim = aim.to(logits.device)
        return lambda out: F.mse_loss(first_float_tensor(out).float(), aim)
    classes = logits.shape[-1]
    shape = (math.prod(logits.shape[:-1]),)
    aims = torch.randint(0, classes, shape, generator=generator, device=generator.device)
    aims = aims.to(logits.device)
    return lambda out: F.cross_entropy(first_float_tensor(out).reshape(-1, classes).float(), aims)


class TorchStep:
    """A checked step on one device: see ``runtimes.base.Step``."""

    def __init__(
        self, copies: list[Replica], setup: Setup, execution: Execution, device: torch.device
    ) -> None:
        self.copies = copies
        self.setup = setup
        self.execution = execution
        self.device = device
        self.training = setup.phase == "train"
        weights = [w for copy in copies for w in copy.net.parameters() if w.requires_grad]
        self.weights = weights if self.training else []
        self.optimizer = _make_optimizer(self.weights, setup, execution, device)
        # Scaling needs a loss, and looks at gradients from the host, which no graph can capture.
        whole = execution.upstream == "loss" and execution.mode == "eager"
        fp16 = whole and self.training and setup.precision == "fp16" and device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type) if fp16 else None
        self.feeds = [x for copy in copies for x in list_grad_inputs(copy.inputs)]
        self.upstream: list[torch.Tensor] = []
        self.last_losses: list[torch.Tensor] = []
        self.kept: list[torch.Tensor] = []
        self.graph: torch.cuda.CUDAGraph | None = None
        self.body = self._choose_body()

    # -- what a Step offers ----------------------------------------------------------------

    def run(self, count: int) -> None:
        if self.graph is not None:
            for _ in range(count):
                self.graph.replay()
            return
        with apply_settings(self.setup, self.device):
            for _ in range(count):
                self.body()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_memory_bytes(self) -> int:
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return 0

    def close(self) -> None:
        self.copies, self.weights, self.feeds, self.upstream, self.kept = [], [], [], [], []
        self.last_losses = []
        self.optimizer = None
        self.graph = None
        self.body = _closed
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # -- making it trustworthy -------------------------------------------------------------

    def check(self) -> None:
        """Run two whole steps and refuse what does not train.

        Raises:
            NotTrainingError: With the reason and the weight's name.
        """
        if not self.training:
            with apply_settings(self.setup, self.device):
                self._infer()
            return
        if self.is_forward_only:
            with apply_settings(self.setup, self.device):
                self.body()
            return
        if not self.weights and not (self.feeds and self.execution.upstream == "random"):
            raise NotTrainingError(
                "no weight of the net needs a gradient: there is nothing to train"
            )
        before = [weight.detach().clone() for weight in self.weights]
        with apply_settings(self.setup, self.device):
            self._step()
            self._step()
        self.wait()
        self._slow_down()
        for loss in self.last_losses:
            if not math.isfinite(float(loss)):
                raise NotTrainingError(f"the loss is {float(loss)} after two steps: not measured")
        self._check_moved(before)

        # What holds no weights is alive if a gradient comes through to its input.
        if not self.weights and not any(x.grad is not None and x.grad.any() for x in self.feeds):
            raise NotTrainingError("no gradient reaches the input of the layer: not measured")

    def _slow_down(self) -> None:
        """Keep the numbers in the net as they are from here on; the work is the same."""
        for group in self.optimizer.param_groups if self.optimizer is not None else ():
            group["lr"] *= _STILL_SHARE

    def _check_moved(self, before: list[torch.Tensor]) -> None:
        """Every weight moved, or has a gradient too small to show beside a sibling that moved.

        A bias in front of a norm, and that of attention's keys, change nothing that follows: their
        gradient is zero up to rounding although they train.
        """
        names = [
            f"{number}.{name}"
            for number, copy in enumerate(self.copies)
            for name, weight in copy.net.named_parameters()
            if weight.requires_grad
        ]
        still = [
            torch.equal(old, new.detach()) for old, new in zip(before, self.weights, strict=False)
        ]
        moved = {_owner(name) for name, stands in zip(names, still, strict=False) if not stands}
        rate = _RATES[self.setup.optimizer]
        for name, stands, weight in zip(names, still, self.weights, strict=False):
            excused = weight.grad is not None and _owner(name) in moved
            if stands and not excused and not _too_small_to_move(weight, rate):
                raise NotTrainingError(
                    f"weight {name.partition('.')[2]} did not move in two steps: not measured; if "
                    "it is not meant to train, set requires_grad to False"
                )

    def make_ready(self) -> None:
        """What the chosen stage or mode needs before it can be repeated."""
        with apply_settings(self.setup, self.device):
            if self.execution.stage == "backward":
                self.kept = self._forward()
            if self.execution.mode == "graph":
                self._capture()

    def _capture(self) -> None:
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_STEPS):
                self.body()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.body()
        self.graph = graph

    # -- the step --------------------------------------------------------------------------

    @property
    def is_forward_only(self) -> bool:
        """A frozen layer alone that needs no gradient of its input: forward is all it does."""
        return self.execution.upstream == "random" and not self.weights and not self.feeds

    def _choose_body(self) -> Callable[[], Any]:
        if self.training and self.is_forward_only:
            if self.execution.stage not in ("step", "forward"):
                raise InputError(f"a frozen layer has no stage {self.execution.stage!r}")
            return self._infer
        if not self.training:
            if self.execution.stage not in ("step", "forward"):
                raise InputError(
                    f"inference has no stage {self.execution.stage!r}: use step or forward"
                )
            return self._infer
        bodies: dict[str, Callable[[], Any]] = {
            "step": self._step,
            "forward": self._forward,
            "backward": self._backward_again,
            "update": self._update,
        }
        return bodies[self.execution.stage]

    def _infer(self) -> None:
        with torch.no_grad():
            for copy in self.copies:
                call_net(copy.net, copy.inputs)

    def _forward(self) -> list[torch.Tensor]:
        """What backward starts from, for each copy: its loss, or its output."""
        ends = []
        for copy in self.copies:
            output = call_net(copy.net, copy.inputs)
            random = self.execution.upstream == "random"
            ends.append(first_float_tensor(output) if random else copy.loss(output))
        return ends

    def _backward(self, ends: list[torch.Tensor], keep: bool = False) -> None:
        if self.execution.upstream == "random":
            if not self.upstream:
                self.upstream = [torch.randn_like(end) / math.sqrt(end.numel()) for end in ends]
            torch.autograd.backward(ends, self.upstream, retain_graph=keep)
            return
        for end in ends:
            (self.scaler.scale(end) if self.scaler else end).backward(retain_graph=keep)

    def _backward_again(self) -> None:
        self._clear()
        self._backward(self.kept, keep=True)

    def _update(self) -> None:
        if self.optimizer is None:
            return
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def _clear(self) -> None:
        # Gradients are made anew, as in ordinary training; a captured graph makes them once, in its
        # own memory, and every replay writes there. Inputs inside a net never add gradients up.
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
        for x in self.feeds:
            x.grad = None

    def _step(self) -> None:
        self._clear()
        ends = self._forward()
        self._backward(ends)
        self._update()
        self.last_losses = [end.detach() for end in ends if end.numel() == 1]


def call_net(net: nn.Module, inputs: Any) -> Any:
    """Call a net with one tensor, a tuple of positional or a dict of named inputs."""
    if isinstance(inputs, dict):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, (tuple, list)) else net(inputs)


def list_grad_inputs(inputs: Any) -> list[torch.Tensor]:
    """The inputs that get a gradient."""
    tensors = inputs.values() if isinstance(inputs, dict) else inputs
    tensors = tensors if isinstance(inputs, (dict, tuple, list)) else [inputs]
    return [x for x in tensors if isinstance(x, torch.Tensor) and x.requires_grad]


def prepare_step(
    copies: list[Replica], setup: Setup, execution: Execution, device: torch.device
) -> TorchStep:
    """A checked step, ready to be repeated."""
    if execution.mode == "graph" and device.type != "cuda":
        raise InputError(f"graph capture needs a CUDA device, not {device}; use eager")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    step = None
    try:
        step = TorchStep(copies, setup, execution, device)
        step.check()
        step.make_ready()
        return step
    except BaseException as error:
        if step is not None:
            step.close()
        if is_out_of_memory(error):
            raise OutOfMemoryError(
                f"the step does not fit into the memory of {device}: use a smaller batch or net"
            ) from error
        raise


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the framework or Python says that memory ran out."""
    text = str(error).lower()
    return isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError)
        and ("can't allocate memory" in text or "out of memory" in text)
    )


def _closed() -> None:
    raise InputError("this step is closed; prepare it again")


def _owner(name: str) -> str:
    """The module that a weight belongs to."""
    return name.rpartition(".")[0]


def _too_small_to_move(weight: torch.Tensor, rate: float) -> bool:
    """Its gradient is there but below what the weight's precision can show."""
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
    rate = _RATES[setup.optimizer]
    on_gpu = device.type == "cuda"
    if setup.optimizer == "sgd":
        return torch.optim.SGD(weights, lr=rate, momentum=0.9)
    capturable = on_gpu and execution.mode == "graph"
    if setup.optimizer == "adam":
        return torch.optim.Adam(weights, lr=rate, capturable=capturable)
    return torch.optim.AdamW(weights, lr=rate, fused=on_gpu, capturable=capturable)


@contextlib.contextmanager
def apply_settings(setup: Setup, device: torch.device) -> Iterator[None]:
    """Threads, TF32, cudnn.benchmark and autocast as the Setup says; put back afterwards."""
    with contextlib.ExitStack() as stack:
        if setup.threads:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(setup.threads)
        if device.type == "cuda":
            stack.enter_context(_cuda_settings(setup))
        if setup.precision in HALF:
            half = HALF[setup.precision]
            # A captured graph must not hold the cache of casts of another step.
            stack.enter_context(torch.autocast(device.type, dtype=half, cache_enabled=False))
        yield


@contextlib.contextmanager
def _cuda_settings(setup: Setup) -> Iterator[None]:
    backends: tuple[tuple[Any, str, Any], ...] = (
        (torch.backends.cuda.matmul, "allow_tf32", setup.precision == "tf32"),
        (torch.backends.cudnn, "allow_tf32", setup.precision == "tf32"),
        (torch.backends.cudnn, "benchmark", setup.cudnn_benchmark),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in backends]
    for owner, name, value in backends:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
