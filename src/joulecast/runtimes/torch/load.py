"""Load a user's module by name: ``path/to/file.py:make_net`` or ``package.module:make_net``.

The callable returns the module, or ``(module, inputs)``, or ``(module, inputs, loss)``. To read a
network it is called under ``torch.device("meta")``, so that no weights are allocated. Where that
fails, and to measure, it is called normally.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from joulecast.errors import NetError
from joulecast.records import Network, Trial
from joulecast.runtimes.base import Step
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.example_inputs import find_first_tensor, resize_batch
from joulecast.runtimes.torch.losses import LossFunction, cross_entropy_loss, mean_square_loss
from joulecast.runtimes.torch.module_checkpoints import checkpoint_module, checkpointed_blocks
from joulecast.runtimes.torch.net_reader import read_net
from joulecast.runtimes.torch.trace_limits import find_available_bytes
from joulecast.units import format_bytes
from joulecast.user_errors import describe_user_error

if TYPE_CHECKING:
    from joulecast.runtimes.torch.runtime import TorchRuntime

RETURNS_NET = "returns a module"
_DEFAULT_BATCH = 32


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
        return int(_first_tensor(self.inputs).shape[0])

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
    net, inputs, loss = _unpack(name, made)
    if inputs is None or input_shape is not None:
        inputs = _make_default_inputs(name, batch, input_shape)
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
        with checkpointed_blocks(loaded.net, loaded.inputs, loaded.loss):
            return read_loaded_net(name, replace(loaded, checkpoint=False))
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

    Args:
        name: Where it is.
        what: What it does, for error messages.

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
    module = _import_file(Path(location)) if location.endswith(".py") else _import_module(location)
    make = getattr(module, attribute, None)
    if not callable(make):
        raise NetError(f"{location} has no function {attribute!r} that {what}")
    found: Callable[..., Any] = make
    return found


def _first_tensor(inputs: Any) -> torch.Tensor:
    first = find_first_tensor(inputs)
    assert first is not None, "example inputs contain a tensor"
    return first


def _check_weights_fit(net: nn.Module, error: NetError) -> None:
    weights_bytes = sum(p.numel() * p.element_size() for p in net.parameters())
    if weights_bytes > find_available_bytes():
        raise NetError(
            f"it can only be read with its weights, and {format_bytes(weights_bytes)} of them do "
            f"not fit in memory: {error}"
        ) from error


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise NetError(f"there is no file {path}: check the path")
    spec = importlib.util.spec_from_file_location(f"joulecast_net_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _importing(str(path), path.resolve().parent):
        spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> Any:
    with _importing(name, Path.cwd()):
        return importlib.import_module(name)


@contextmanager
def _importing(what: str, folder: Path) -> Iterator[None]:
    """Put a folder on the import path, and report any failure in one line."""
    sys.path.insert(0, str(folder))
    try:
        yield
    except (Exception, SystemExit) as error:
        raise NetError(f"{what} fails to import: {describe_user_error(error)}") from error
    finally:
        sys.path.pop(0)


def _unpack(name: str, made: Any) -> tuple[nn.Module, Any, Any]:
    parts = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise NetError(
            f"{name} returned {type(made).__name__}: it must return a module, (module, inputs) or "
            "(module, inputs, loss)"
        )
    net, inputs, loss = (*parts, None, None)[:3]
    return net, inputs, loss


def _make_default_inputs(
    name: str, batch: int | None, input_shape: tuple[int, ...] | None
) -> torch.Tensor:
    if input_shape is None:
        raise NetError(
            f"{name} returns no example inputs: give --input (such as 3x96x96), or return "
            "(module, inputs)"
        )
    return torch.zeros(batch or _DEFAULT_BATCH, *input_shape)
