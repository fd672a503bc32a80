"""Which net a person means: a family, a callable that makes one, a network's file.

    cnn5:16,32,64,128        a family            no framework
    net.json                 a network's file    no framework
    file.py:make_net         a callable          PyTorch, imported when it is asked for
    package.module:make_net

Takes a name, gives a NamedNet: the Network, its batch, and how to get the user's own module where
there is one, since that is what ``measure`` runs.
"""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError, MissingError, NetError
from joulecast.families import FAMILIES, draw_family, is_family, make_family
from joulecast.records import Network

DEFAULT_BATCH = 32
_MEMBERS = 24

Shape = tuple[int, ...]


@dataclass(frozen=True)
class NamedNet:
    """A net that somebody asked for.

    Attributes:
        batch: The batch asked for, else the net's own.
        load: Makes the user's own module, inputs and loss; None where Joulecast builds the net.
        members: What to be good at: the net itself, and of a family random narrower ones.
    """

    network: Network
    batch: int
    load: Callable[[], Any] | None = None
    members: tuple[Network, ...] = ()


def resolve_net(name: str, batch: int | None = None, input_shape: Shape | None = None) -> NamedNet:
    """The net behind a name.

    Args:
        name: A family with widths, ``file.py:make_net``, ``package.module:make_net`` or ``x.json``.
        batch: Samples of a step; the net's own by default.
        input_shape: Shape of one sample, where the net allows another than its own.

    Raises:
        NetError: There is no such net, or it does not import or run.
        FileError: The network's file is damaged.
        MissingError: It needs PyTorch, which is not installed.
    """
    if batch is not None and batch < 1:
        raise InputError(f"batch is {batch}: give a whole number of at least 1")
    if is_family(name):
        default = FAMILIES[name.partition(":")[0]].batch
        network = make_family(name, input_shape)
        return NamedNet(network, batch or default, members=_draw_members(name, network))
    if name.endswith(".json"):
        return _read_file(name, batch, input_shape)
    if ":" in name:
        return _read_callable(name, batch, input_shape)
    raise NetError(
        f"there is no net {name!r}: give a family ({', '.join(FAMILIES)}), file.py:make_net, "
        "package.module:make_net or a network's .json"
    )


def _draw_members(name: str, network: Network) -> tuple[Network, ...]:
    """A member of a family stands for all narrower ones too, as in the paper."""
    rng = random.Random(0)
    drawn = (draw_family(name, rng.randint, network.input.shape) for _ in range(_MEMBERS))
    return (network, *drawn)


def take_net(
    net: Any,
    inputs: Any = None,
    loss: Any = None,
    batch: int | None = None,
    input_shape: Shape | None = None,
) -> NamedNet:
    """The net that a program hands over: a name, a Network, or a module with example inputs.

    Args:
        net: One of those.
        inputs: For a module: a tensor, a tuple of positional ones or a dict of named ones.
        loss: For a module: its output → a scalar to run backward from.
        batch: Samples of a step; the net's own by default.
        input_shape: For a name: shape of one sample, where the net allows another than its own.
    """
    if isinstance(net, (str, os.PathLike)):
        return resolve_net(os.fspath(net), batch, input_shape)
    if isinstance(net, Network):
        return NamedNet(net, batch or DEFAULT_BATCH)
    if inputs is None:
        raise InputError(
            f"a {type(net).__name__} comes without inputs: give an example of what it is called on"
        )
    need_torch("reading a module")
    from joulecast.runtimes.torch.load import LoadedNet, read_loaded_net, with_batch

    loaded = LoadedNet(net, with_batch(inputs, batch) if batch else inputs, loss)
    network = read_loaded_net(type(net).__name__, loaded)
    return NamedNet(network, loaded.batch, lambda: loaded)


def has_torch() -> bool:
    """Whether PyTorch is installed; it is not imported."""
    return importlib.util.find_spec("torch") is not None


def need_torch(what: str) -> None:
    """Complain unless PyTorch is installed."""
    if not has_torch():
        raise MissingError(f"{what} needs PyTorch: run pip install 'joulecast[torch]'")


def find_training(name: str) -> Callable[..., Any]:
    """The training function that ``file.py:score`` or ``package.module:score`` means."""
    need_torch(f"building nets for {name}")
    from joulecast.runtimes.torch.load import find_callable

    return find_callable(name, "trains a net and returns its score")


def build_module(network: Network, seed: int) -> Any:
    """A module of a network, its first weights drawn by a seed."""
    need_torch("building a net")
    from joulecast.runtimes.torch.build import build_seeded

    return build_seeded(network, seed)


def _read_file(name: str, batch: int | None, input_shape: Shape | None) -> NamedNet:
    from joulecast.files import read_network

    network = read_network(name)
    if input_shape not in (None, network.input.shape):
        raise NetError(
            f"{name} is a network for inputs of {show_shape(network.input.shape)}: leave --input "
            "out, or write it again from its net with another"
        )
    return NamedNet(network, batch or DEFAULT_BATCH)


def _read_callable(name: str, batch: int | None, input_shape: Shape | None) -> NamedNet:
    need_torch(f"reading {name}")
    from joulecast.runtimes.torch.load import load_net, read_named_net

    network, own_batch = read_named_net(name, batch, input_shape)
    return NamedNet(network, own_batch, lambda: load_net(name, batch, input_shape))


def parse_shape(text: str) -> Shape:
    """Sizes of a text like ``3x96x96``."""
    try:
        shape = tuple(int(word) for word in text.lower().split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise InputError(f"{text!r} is no input shape: give sizes of one sample, like 3x96x96")
    return shape


def show_shape(shape: Shape) -> str:
    """``3x96x96``; a dash for a single number."""
    return "x".join(map(str, shape)) or "-"
