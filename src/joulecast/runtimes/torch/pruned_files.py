"""A pruned net as a folder: weights, and what makes a module that takes them.

    weights.safetensors     the state dict
    architecture.json       {"format": "joulecast-pruned", "network": ...} where Joulecast builds it
                            {"format": "joulecast-pruned", "net": "file.py:make_net", "removed":
                             {module: {side: channels}}} where somebody else's callable does

Never pickled. What the file names is only called where a person asks for it by ``load_pruned``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from joulecast.errors import FileError, InputError, MissingError
from joulecast.records import Network, load_record
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.channel_pruning import Removed, remove_channels
from joulecast.runtimes.torch.load import load_net

FORMAT = "joulecast-pruned"
WEIGHTS, ARCHITECTURE = "weights.safetensors", "architecture.json"


def save_pruned(
    net: nn.Module,
    folder: str | Path,
    *,
    network: Network,
    removed: Removed,
    source: str = "",
) -> Path:
    """Write a pruned net into a folder.

    Args:
        net: The smaller net.
        folder: Where to; it is made where it is missing.
        network: The smaller net as records.
        removed: What was cut of each module.
        source: The callable that makes the net before; empty where the network itself is built.
    """
    place = Path(folder)
    data: dict[str, Any] = {"format": FORMAT, "version": 1, "network": network.to_dict()}
    if source:
        data.update(net=_absolute(source), removed=removed)
    place.mkdir(parents=True, exist_ok=True)
    (place / ARCHITECTURE).write_text(json.dumps(data) + "\n", encoding="utf-8")
    _safetensors().save_model(net, str(place / WEIGHTS))
    return place


def load_pruned(folder: str | Path, net: nn.Module | None = None) -> nn.Module:
    """The pruned net in a folder, with its weights.

    Args:
        folder: What ``save_pruned`` wrote.
        net: The net before it was cut, where what made it is no longer where it was.

    Raises:
        FileError: The folder holds no pruned net, or its parts do not fit each other.
    """
    place = Path(folder)
    data = _read_architecture(place / ARCHITECTURE)
    if net is None and ":" not in str(data.get("net", ":")):
        raise FileError(f"{place} was made of a module without a name: give that module as net")
    try:
        smaller = _make(data, net, str(place))
        _safetensors().load_model(smaller, str(place / WEIGHTS))
    except (InputError, KeyError, OSError, RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise FileError(f"{place} cannot be rebuilt ({reason}): prune the net again") from error
    return smaller


def _make(data: Mapping[str, Any], net: nn.Module | None, place: str) -> nn.Module:
    if "net" not in data:
        return build_net(load_record(Network, data["network"], place))
    before = net if net is not None else load_net(data["net"], input_shape=(1,)).net
    return remove_channels(before, data["removed"])


def _read_architecture(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(
            f"{path} cannot be read ({error}): give a folder of a pruned net"
        ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise FileError(f"{path} is no pruned net: give what `joulecast prune --out` wrote")
    return data


def _absolute(source: str) -> str:
    """A callable's name that holds from everywhere, as far as a file is named."""
    place, colon, name = source.rpartition(":")
    return f"{Path(place).resolve()}{colon}{name}" if place.endswith(".py") else source


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingError("weights need safetensors: pip install 'joulecast[prune]'") from error
    return safetensors.torch
