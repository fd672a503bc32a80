"""Finds a user's net by name: ``path/to/file.py:make_net`` or ``package.module:make_net``.

The callable returns the module, or module and example inputs, or module, inputs and loss. For
reading it is called on ``meta``, so that a net of any size costs no memory; where that fails, and
for measuring, it is called as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from joulecast.errors import NetError
from joulecast.records import Network
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.memory_format import match_memory_format
from joulecast.runtimes.torch.net_reader import cross_entropy_loss, mean_square_loss, read_net


@dataclass(frozen=True)
class LoadedNet:
    """A user's net with what it is called on."""

    net: nn.Module
    inputs: Any
    loss: Callable[[Any], torch.Tensor] | None

    @property
    def batch(self) -> int:
        first = next(t for t in pytree.tree_leaves(self.inputs) if isinstance(t, torch.Tensor))
        return int(first.shape[0])


def load_net(
    name: str,
    batch: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    on_meta: bool = False,
) -> LoadedNet:
    """Call the callable that ``name`` points at.

    Raises:
        NetError: It cannot be found, does not import, fails, or gives something else.
    """
    make = find_callable(name)
    try:
        with torch.device("meta" if on_meta else "cpu"):
            made = make()
    except (Exception, SystemExit) as error:
        raise NetError(f"{name} fails: {type(error).__name__}: {_one_line(error)}") from error
    net, inputs, loss = _unpack(name, made)
    if inputs is None or input_shape is not None:
        inputs = _default_inputs(name, batch, input_shape)
    elif batch is not None:
        inputs = resize_batch(inputs, batch)
    return LoadedNet(net, inputs, loss)


def build_example_net(network: Network, batch: int) -> LoadedNet:
    """A net built of a network and a batch for it: always the same weights and numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = build_net(network)
        shape = (batch, *network.input.shape)
        if network.input.vocabulary:
            return LoadedNet(net, torch.randint(0, network.input.vocabulary, shape), None)
        return LoadedNet(net, torch.randn(shape), None)


def read_named_net(
    name: str, batch: int | None = None, input_shape: tuple[int, ...] | None = None
) -> tuple[Network, int]:
    """The Network behind a name, and the batch it was read with."""
    try:
        loaded = load_net(name, batch, input_shape, on_meta=True)
        return read_loaded_net(name, loaded), loaded.batch
    except NetError:
        loaded = load_net(name, batch, input_shape)
        return read_loaded_net(name, loaded), loaded.batch


def read_loaded_net(name: str, loaded: LoadedNet) -> Network:
    """The Network of a net with its own loss, else cross-entropy, else the mean square."""
    if loaded.loss is not None:
        return read_net(loaded.net, loaded.inputs, loaded.loss, name)
    try:
        return read_net(loaded.net, loaded.inputs, cross_entropy_loss, name)
    except NetError:
        return read_net(loaded.net, loaded.inputs, mean_square_loss, name)


MAKES_NET = "makes a net"


def find_callable(name: str, what: str = MAKES_NET) -> Callable[..., Any]:
    """The callable that ``file.py:name`` or ``package.module:name`` means.

    Args:
        name: Where it is.
        what: What it does, for whoever reads that there is none.
    """
    place, _, attribute = name.rpartition(":")
    if not place:
        raise NetError(
            f"{name!r} names no function that {what}: give file.py:name, package.module:name"
            + (", a family (cnn5) or a network's .json" if what == MAKES_NET else "")
        )
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    make = getattr(module, attribute, None)
    if not callable(make):
        raise NetError(f"{place} has no function {attribute!r} that {what}")
    found: Callable[..., Any] = make
    return found


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise NetError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"joulecast_net_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _importing(str(path), path.resolve().parent):
        spec.loader.exec_module(module)
    return module


def _import_module(place: str) -> Any:
    with _importing(place, Path.cwd()):
        return importlib.import_module(place)


@contextmanager
def _importing(what: str, folder: Path) -> Iterator[None]:
    """Modules beside it can be found, and whatever it raises is one line."""
    sys.path.insert(0, str(folder))
    try:
        yield
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {_one_line(error)}"
        raise NetError(f"{what} does not import: {reason}") from error
    finally:
        sys.path.pop(0)


def _unpack(name: str, made: Any) -> tuple[nn.Module, Any, Any]:
    parts = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise NetError(
            f"{name} must return a module, or module and inputs, or module, inputs and loss; "
            f"it returned {type(made).__name__}"
        )
    net, inputs, loss = (*parts, None, None)[:3]
    return net, inputs, loss


def _default_inputs(
    name: str, batch: int | None, input_shape: tuple[int, ...] | None
) -> torch.Tensor:
    if input_shape is None:
        raise NetError(
            f"{name} returns no example inputs: give --input (like 3x96x96), or return "
            "the net and its inputs"
        )
    return torch.zeros(batch or 32, *input_shape)


def resize_batch(inputs: Any, batch: int) -> Any:
    """The same inputs at another batch: samples are repeated or dropped.

    Only tensors as long as the first one hold samples; a mask or positions stay as they are.
    """
    first = next(t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor))
    before = first.shape[:1]

    def resize(value: torch.Tensor) -> torch.Tensor:
        if not value.shape or value.shape[:1] != before or not value.shape[0]:
            return value
        if value.device.type == "meta":
            return match_memory_format(value.new_empty(batch, *value.shape[1:]), value)
        places = torch.arange(batch) % value.shape[0]
        return match_memory_format(value[places], value)

    return pytree.tree_map_only(torch.Tensor, resize, inputs)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
