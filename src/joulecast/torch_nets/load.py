"""Load a user's module by name: ``path/to/file.py:make_net`` or ``package.module:make_net``.

The callable returns the module, or ``(module, inputs)``, or ``(module, inputs, loss)``. To read a
network it is called under ``torch.device("meta")``, so that no weights are allocated. Where that
fails, and to measure, it is called normally.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from joulecast.records import Network, Setup, Trial
from joulecast.records.runtime import Step
from joulecast.system.errors import InputError, NetError, arg
from joulecast.system.units import format_bytes
from joulecast.system.user_errors import describe_user_error
from joulecast.torch_nets.build import build_net, run_checkpointed
from joulecast.torch_nets.inputs import find_batch, list_tensors, resize_batch
from joulecast.torch_nets.losses import LossFunction, cross_entropy_loss, mean_square_loss
from joulecast.torch_nets.net_reader import find_block_modules, read_net
from joulecast.torch_nets.tracer import find_available_bytes

if TYPE_CHECKING:
    from joulecast.torch_nets.runtime import TorchRuntime


RETURNS_NET = "returns a module"


@dataclass(frozen=True)
class LoadedNet:
    """A user's module with its example inputs and its loss.

    Attributes:
        checkpoint: Its repeated blocks are put under activation checkpointing.
    """

    net: nn.Module
    inputs: Any
    loss: LossFunction | None
    checkpoint: bool = False

    @property
    def batch(self) -> int:
        """Batch size of the example inputs."""
        return find_batch(self.inputs)

    def prepare(self, runtime: TorchRuntime, trial: Trial) -> Step:
        """Return the module as a checked step of PyTorch."""
        if self.checkpoint:
            checkpoint_module(self.net, self.inputs, self.loss)
        return runtime.prepare_net(self.net, self.inputs, self.loss, trial.setup, trial.execution)


def load_net(
    name: str,
    batch: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    *,
    on_meta: bool = False,
    checkpoint: bool = False,
) -> LoadedNet:
    """Call the callable that ``name`` points at.

    Args:
        name: Where the callable is.
        batch: Batch size of the inputs; their own by default.
        input_shape: Shape of one sample, where it differs from that of the inputs.
        on_meta: Allocate no weights.
        checkpoint: Put repeated blocks under activation checkpointing.

    Raises:
        NetError: It is not found, fails to import, raises, or returns something else.
    """
    with torch.device("meta" if on_meta else "cpu"):
        made = call_maker(name)
    parts = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise NetError(
            f"{name} returned {type(made).__name__}: it must return a module, (module, inputs) or "
            "(module, inputs, loss)"
        )
    net, inputs, loss = (*parts, None, None)[:3]
    if input_shape is not None:
        inputs = torch.zeros(batch or Setup.batch, *input_shape)
    elif inputs is None:
        raise NetError(
            f"{name} returns no example inputs: give {arg('input_shape')} (such as 3x96x96), "
            "or return (module, inputs)"
        )
    elif batch is not None:
        inputs = resize_batch(inputs, batch)
    return LoadedNet(net, inputs, loss, checkpoint)


def build_example_net(network: Network, batch: int) -> LoadedNet:
    """Build a network with a batch for it, always with the same weights and values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = build_net(network)
        shape = (batch, *network.input.shape)
        if network.input.vocabulary:
            return LoadedNet(net, torch.randint(0, network.input.vocabulary, shape), None)
        return LoadedNet(net, torch.randn(shape), None)


def read_named_net(
    name: str,
    batch: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    checkpoint: bool = False,
) -> tuple[Network, int]:
    """Return the Network of a named module, and the batch size it was read with.

    Raises:
        NetError: It cannot be read, or only with weights that do not fit in memory.
    """
    loaded = None
    try:
        loaded = load_net(name, batch, input_shape, on_meta=True, checkpoint=checkpoint)
        return read_loaded_net(name, loaded), loaded.batch
    except NetError as error:
        if loaded is not None:
            _check_weights_fit(loaded.net, error)
        loaded = load_net(name, batch, input_shape, checkpoint=checkpoint)
        return read_loaded_net(name, loaded), loaded.batch


def read_loaded_net(name: str, loaded: LoadedNet) -> Network:
    """Read a module with its own loss, else with cross-entropy, else with the mean square."""
    if loaded.checkpoint:
        undo = checkpoint_module(loaded.net, loaded.inputs, loaded.loss)
        try:
            return read_loaded_net(name, replace(loaded, checkpoint=False))
        finally:
            undo()
    if loaded.loss is not None:
        return read_net(loaded.net, loaded.inputs, loaded.loss, name)
    try:
        return read_net(loaded.net, loaded.inputs, cross_entropy_loss, name)
    except NetError:
        return read_net(loaded.net, loaded.inputs, mean_square_loss, name)


def call_maker(name: str, what: str = RETURNS_NET) -> Any:
    """Return what the callable gives that ``file.py:name`` or ``package.module:name`` points at.

    Raises:
        NetError: It is not found, fails to import, or raises.
    """
    make = find_callable(name, what)
    try:
        return make()
    except (Exception, SystemExit) as error:
        raise NetError(f"{name} fails: {describe_user_error(error)}") from error


def find_callable(name: str, what: str = RETURNS_NET) -> Callable[..., Any]:
    """Return the callable that ``file.py:name`` or ``package.module:name`` points at.

    Raises:
        NetError: There is none, or its module fails to import.
    """
    location, _, attribute = name.rpartition(":")
    if not location:
        raise NetError(
            f"{name!r} does not name a function that {what}: give file.py:name or "
            "package.module:name"
            + (", a family (cnn5) or a network's .json file" if what == RETURNS_NET else "")
        )
    path, is_file = Path(location), location.endswith(".py")
    if is_file and not path.is_file():
        raise NetError(f"there is no file {path}: check the path")
    sys.path.insert(0, str(path.resolve().parent if is_file else Path.cwd()))
    try:
        module = _import_file(path) if is_file else importlib.import_module(location)
    except (Exception, SystemExit) as error:
        raise NetError(f"{location} fails to import: {describe_user_error(error)}") from error
    finally:
        sys.path.pop(0)
    make = getattr(module, attribute, None)
    if not callable(make):
        raise NetError(f"{location} has no function {attribute!r} that {what}")
    found: Callable[..., Any] = make
    return found


def read_at_tokens(net: Any, inputs: Any, tokens: int) -> Network:
    """Return the network of a language model with one sequence of this many tokens.

    Labels, masks and further inputs are left out: generation has none of them.

    Raises:
        InputError: It is not a module, or has no inputs.
        NetError: It does not read tokens, or fails on that many.
    """
    name = net if isinstance(net, str) else type(net).__name__
    if isinstance(net, str):
        loaded = load_net(net, on_meta=True)
        net, inputs = loaded.net, loaded.inputs
    if not isinstance(net, nn.Module) or inputs is None:
        raise InputError(
            f"net is {net!r}: give file.py:make_net, or a PyTorch module with its example inputs"
        )
    return read_net(net, make_sequence(inputs, tokens), name=name)


def make_sequence(inputs: Any, tokens: int) -> Any:
    """Return inputs that consist of one sequence of tokens.

    Raises:
        NetError: No input is a batch of token numbers.
    """
    named = inputs.items() if isinstance(inputs, dict) else enumerate(list_tensors(inputs))
    for name, value in named:
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor and value.dim() == 2 and value.dtype in (torch.int64, torch.int32):
            sequence = torch.zeros((1, tokens), dtype=value.dtype, device=value.device)
            if isinstance(inputs, dict):
                return {name: sequence}
            return sequence if isinstance(inputs, torch.Tensor) else (sequence,)
    raise NetError("the example inputs have no batch of token numbers: give a language model")


def checkpoint_module(net: nn.Module, inputs: Any, loss: LossFunction | None) -> Callable[[], None]:
    """Checkpoint the blocks of a module, unless it does so itself; return what undoes it.

    Models of transformers know how to do so themselves. A block of any other module is called by
    ``torch.utils.checkpoint`` while it trains.

    Raises:
        InputError: The module repeats no block.
    """
    model: Any = net
    if getattr(net, "is_gradient_checkpointing", False):
        return lambda: None
    if getattr(net, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        undo_own: Callable[[], None] = model.gradient_checkpointing_disable
        return undo_own
    paths, is_checkpointed = find_block_modules(net, inputs, loss)
    if is_checkpointed:
        return lambda: None
    if not paths:
        raise InputError(
            f"{type(net).__name__} repeats no block to checkpoint: leave {arg('checkpoint')} out, "
            "or call torch.utils.checkpoint in the module itself"
        )
    modules = [net.get_submodule(path) for path in paths]
    for module in modules:
        module.forward = partial(_run_block, module, module.forward)

    def undo() -> None:
        for module in modules:
            # The class has the method that the attribute hides.
            del module.forward

    return undo


def _check_weights_fit(net: nn.Module, error: NetError) -> None:
    weights_bytes = sum(p.numel() * p.element_size() for p in net.parameters())
    if weights_bytes > find_available_bytes():
        raise NetError(
            f"it can only be read with its weights, and {format_bytes(weights_bytes)} of them do "
            f"not fit in memory: {error}"
        ) from error


def _import_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"joulecast_net_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_block(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a block's own ``forward``, under checkpointing while it trains."""
    if not (module.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    return run_checkpointed(forward, *args, **kwargs)
