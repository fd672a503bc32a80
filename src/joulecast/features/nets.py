"""Find the net that a name, a Network or a PyTorch module stands for.

    cnn5:16,32,64,128        a family            needs no framework
    speech                   a reference application of ``joulecast score``
    net.json                 a network file      needs no framework
    net.onnx                 an ONNX file        needs the package onnx
    file.py:make_net         a callable          needs PyTorch, imported on first use
    package.module:make_net

The result is a ResolvedNet: the Network, its batch, and how to load the user's own module where
there is one, because that is what ``measure`` runs.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from joulecast.families import FAMILIES, draw_family, is_family, make_family
from joulecast.features.arguments import choose_setup_fields
from joulecast.operators import checkpoint_blocks
from joulecast.records import Network, Setup
from joulecast.system.errors import InputError, MissingError, NetError, arg
from joulecast.system.units import format_shape

# Random narrower members that a campaign for a family also targets.
_MEMBER_COUNT = 24

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ResolvedNet:
    """A network, and how to load the module behind it.

    Attributes:
        load: Returns the user's own net, which ``measure`` runs; None where Joulecast builds it.
        draw_members: Returns the networks that a campaign targets: the net, and random narrower
            members of its family. Only campaigns need them.
    """

    network: Network
    batch: int  # the requested batch size, else the net's own
    load: Callable[[], Any] | None = None
    draw_members: Callable[[], tuple[Network, ...]] = tuple
    form: str = "module"  # what the user's own net is: a module, or a file (onnx)


@dataclass(frozen=True)
class NetRequest:
    """A net and how it is trained, as a caller specifies it.

    Attributes:
        setup: How the net is trained or run; by default SGD, fp32, and the net's own batch, or
            batch 1 for inference.
        input_shape: For a name, the shape of one sample where it differs from the usual one.
        setup_options: Fields that replace those of ``setup``. For a module, ``loss`` may be a
            callable from its output to a scalar.
    """

    net: Any  # a name, a Network, or a module
    inputs: Any = None  # for a module, what it is called on: a tensor, a tuple or a dict of tensors
    setup: Setup | None = None
    input_shape: Shape | None = None
    setup_options: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: bool = False  # put the net's repeated blocks under activation checkpointing

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> NetRequest:
        """Return the net and the fields of a setup among the arguments of a verb: its locals."""
        own = {one.name: arguments[one.name] for one in fields(cls) if one.name in arguments}
        given = {one.name: arguments.get(one.name) for one in fields(Setup)}
        return cls(**own, setup_options=choose_setup_fields(**given))

    @property
    def name(self) -> str:
        """The name of the net; empty where it is a module or a Network."""
        return os.fspath(self.net) if isinstance(self.net, (str, os.PathLike)) else ""

    def resolve(self) -> tuple[ResolvedNet, Setup]:
        """Return the net, and its setup with the batch size that applies."""
        if not isinstance(self.setup, Setup | None):
            raise InputError(f"setup is {self.setup!r}: give a joulecast.Setup")
        options = dict(self.setup_options)
        loss = options.pop("loss") if callable(options.get("loss")) else None
        setup = replace(self.setup or Setup(), **options)
        check_checkpoint(self.checkpoint, setup.phase)
        batch = setup.batch if self.setup is not None or "batch" in options else None
        if not isinstance(self.net, (str, os.PathLike, Network)):
            found = _read_module(replace(self, setup=setup), loss, batch)
        elif loss is not None:
            raise InputError(
                "loss is a function, which needs a module and its inputs: give both, or let your "
                "make_net return (module, inputs, loss)"
            )
        elif isinstance(self.net, Network):
            network = checkpoint_blocks(self.net) if self.checkpoint else self.net
            found = ResolvedNet(network, batch or choose_batch(setup.phase))
        else:
            options = {"phase": setup.phase, "checkpoint": self.checkpoint}
            found = resolve_name(self.name, batch, self.input_shape, **options)
        return found, replace(setup, batch=found.batch)


def resolve_name(
    name: str,
    batch: int | None = None,
    input_shape: Shape | None = None,
    *,
    phase: str = "train",
    checkpoint: bool = False,
    named_in: str | None = None,
) -> ResolvedNet:
    """Return the net that a name stands for.

    Args:
        name: A family with widths, ``file.py:make_net``, ``package.module:make_net``, ``x.json`` or
            ``x.onnx``.
        batch: Batch size; by default that of the net's inputs, else the usual one of the phase.
        input_shape: Shape of one sample, where the net accepts another than its own.
        phase: ``train`` or ``inference``.
        checkpoint: Put repeated blocks under activation checkpointing.
        named_in: The file that the name is from, if it is not from the user: a callable is then
            imported only if the user trusts the file's folder.
    """
    if batch is not None and batch < 1:
        raise InputError(f"batch is {batch}: give a whole number of at least 1")
    check_checkpoint(checkpoint, phase)
    found = resolve_built_in(name, batch, input_shape, phase=phase)
    if found is None and name.endswith(".json"):
        from joulecast.store.files import read_network

        network = read_network(name)
        _check_input(network, input_shape, ", or write the file again for another shape")
        found = ResolvedNet(network, batch or choose_batch(phase))
    elif found is None and name.endswith(".onnx"):
        found = _read_onnx(name, batch, input_shape, phase)
    elif found is None and ":" in name:
        if named_in is not None:
            from joulecast.features.trust import check_trusted

            location = name.rpartition(":")[0]
            try:
                # A module is looked for in the current folder first.
                check_trusted(named_in, location if location.endswith(".py") else os.curdir)
            except InputError as error:
                raise InputError(f"net is {name!r}, which runs code: {error}") from error
        require_torch(f"reading {name}")
        from joulecast.torch_nets.load import load_net, read_named_net

        network, own_batch = read_named_net(name, batch, input_shape, checkpoint)
        load = partial(load_net, name, batch, input_shape, checkpoint=checkpoint)
        return ResolvedNet(network, own_batch, load)
    if found is None and name.endswith(".py"):
        raise NetError(f"{name} is a file: name the function that makes the net, {name}:make_net")
    if found is None:
        raise NetError(
            f"there is no net {name!r}: give a family ({', '.join(FAMILIES)}), file.py:make_net, "
            "package.module:make_net, a network's .json or an .onnx file"
        )
    if not checkpoint:
        return found
    draw = found.draw_members
    return replace(
        found,
        network=checkpoint_blocks(found.network),
        draw_members=lambda: tuple(map(checkpoint_blocks, draw())),
    )


def resolve_built_in(
    name: str, batch: int | None = None, input_shape: Shape | None = None, *, phase: str = "train"
) -> ResolvedNet | None:
    """Return the net that a family or a reference application stands for; None for other names.

    No file is opened and no code is run, whatever the name.
    """
    if is_family(name):
        default = choose_batch(phase, FAMILIES[name.partition(":")[0]].batch)
        network = make_family(name, input_shape)
        draw_members = partial(_draw_members, name, network)
        return ResolvedNet(network, batch or default, draw_members=draw_members)
    # Few names are reference applications.
    from joulecast.features import reference_applications as applications

    if name not in applications.list_reference_applications():
        return None
    network = applications.build_reference_application(name)
    _check_input(network, input_shape)
    return ResolvedNet(network, batch or choose_batch(phase))


def check_checkpoint(checkpoint: bool, phase: str) -> None:
    """Raise InputError for checkpoints of inference, which keeps no activations."""
    if checkpoint and phase == "inference":
        raise InputError(
            f"inference keeps no activations to checkpoint: leave {arg('checkpoint')} out"
        )


def check_family(name: str) -> None:
    """Raise InputError unless a name stands for a family, with or without widths."""
    if not is_family(name):
        raise InputError(f"{name!r} is not a family: give one of {', '.join(FAMILIES)}")


def has_torch() -> bool:
    """Return whether PyTorch is installed, without importing it."""
    return find_spec("torch") is not None


def require_torch(purpose: str, extra: str = "torch") -> None:
    """Raise MissingError unless PyTorch is installed."""
    require_packages(purpose, {"torch": "PyTorch"}, extra)


def require_packages(purpose: str, packages: Mapping[str, str], extra: str) -> None:
    """Raise MissingError unless all packages are installed."""
    missing = [title for name, title in packages.items() if not find_spec(name)]
    if missing:
        raise MissingError(
            f"{purpose} needs {' and '.join(missing)}: run pip install 'joulecast[{extra}]'"
        )


def find_training(name: str) -> Callable[..., Any]:
    """Return the training function named by ``file.py:score`` or ``package.module:score``."""
    require_torch(f"building nets for {name}")
    from joulecast.torch_nets.load import find_callable

    return find_callable(name, "trains a net and returns its score")


def build_module(network: Network, seed: int) -> Any:
    """Build the module of a network, with first weights drawn from a seed."""
    require_torch("building a net")
    from joulecast.torch_nets.build import build_seeded

    return build_seeded(network, seed)


def _draw_members(name: str, network: Network) -> tuple[Network, ...]:
    """Return the network and random narrower members of its family, as the paper profiles them.

    Every other one has widths in multiples of 8 to 64, which libraries have faster kernels for.
    """
    rng = random.Random(0)

    def draw_aligned(low: int, high: int) -> int:
        width, tile = rng.randint(low, high), rng.choice((8, 16, 32, 64))
        return width // tile * tile or width

    draws = (rng.randint, draw_aligned)
    drawn = (
        draw_family(name, draws[number % 2], network.input.shape) for number in range(_MEMBER_COUNT)
    )
    return (network, *drawn)


def _read_module(request: NetRequest, loss: Any, batch: int | None) -> ResolvedNet:
    require_torch("reading a module")
    from torch import nn

    net, inputs = request.net, request.inputs
    if not isinstance(net, nn.Module):
        raise InputError(
            f"net is {net!r}: give a name, a joulecast.Network, or a PyTorch module with inputs"
        )
    if inputs is None:
        raise InputError(
            f"a {type(net).__name__} needs example inputs: give a tensor that it is called on"
        )
    from joulecast.torch_nets.inputs import resize_batch
    from joulecast.torch_nets.load import LoadedNet, read_loaded_net

    inputs = resize_batch(inputs, batch) if batch else inputs
    loaded = LoadedNet(net, inputs, loss, request.checkpoint)
    network = read_loaded_net(type(net).__name__, loaded)

    def load() -> LoadedNet:
        # Checkpoints change modules: the user's own must stay as it is.
        return replace(loaded, net=copy.deepcopy(net)) if request.checkpoint else loaded

    return ResolvedNet(network, loaded.batch, load)


def choose_batch(phase: str, trained: int = Setup.batch) -> int:
    """Return the usual batch size of a phase: inference answers one request at a time."""
    return 1 if phase == "inference" else trained


def _check_input(network: Network, input_shape: Shape | None, hint: str = "") -> None:
    if input_shape not in (None, network.input.shape):
        raise NetError(
            f"{network.name} is for inputs of {format_shape(network.input.shape)}: leave the input "
            f"shape out{hint}"
        )


def _read_onnx(name: str, batch: int | None, input_shape: Shape | None, phase: str) -> ResolvedNet:
    require_packages(f"reading {name}", {"onnx": "the package onnx"}, "onnx")
    from joulecast.onnx_nets.net_file import OnnxFile, read_onnx_net

    found = read_onnx_net(name, input_shape, batch, choose_batch(phase))
    file = OnnxFile(Path(name), input_shape)
    return ResolvedNet(found.network, found.batch, lambda: file, form="onnx")
