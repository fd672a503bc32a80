"""Save and load a pruned module as a folder with its weights and its architecture.

    weights.safetensors     the state dict
    architecture.json       {"format": "joulecast-pruned", "network": ...} if Joulecast builds it,
                            {"format": "joulecast-pruned", "net": "file.py:make_net", "removed":
                             {module: {side: channels}}} if it is a user's module

Nothing is pickled, and no callable that the file names is imported: whoever loads a pruned module
gives the original, unless Joulecast can build it from its Network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from joulecast.errors import FileError, InputError, MissingError
from joulecast.input_files import MOST_JSON_BYTES, parse_json, read_limited
from joulecast.kinds import check_network, network_work
from joulecast.records import Network, Setup, load_record
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.channel_removal import RemovedChannels, remove_channels

FORMAT = "joulecast-pruned"
WEIGHTS, ARCHITECTURE = "weights.safetensors", "architecture.json"


def save_pruned(
    net: nn.Module,
    folder: str | Path,
    *,
    network: Network,
    removed: RemovedChannels,
    source: str = "",
) -> Path:
    """Write a pruned module into a folder and return the folder.

    Args:
        net: The pruned module.
        folder: Created if it does not exist.
        network: The Network of the pruned module.
        removed: The channels removed from each module.
        source: What makes the original module, for messages; empty if it was built from a Network.
    """
    path = Path(folder)
    data: dict[str, Any] = {"format": FORMAT, "version": 1, "network": network.to_dict()}
    if source:
        data.update(net=_make_absolute(source), removed=removed)
    path.mkdir(parents=True, exist_ok=True)
    (path / ARCHITECTURE).write_text(json.dumps(data) + "\n", encoding="utf-8")
    _import_safetensors().torch.save_model(net, str(path / WEIGHTS))
    return path


def load_pruned(folder: str | Path, net: nn.Module | None = None) -> nn.Module:
    """Return the pruned module in a folder, with its weights.

    Args:
        folder: A folder that ``save_pruned`` wrote.
        net: The original module, unless Joulecast built it from a Network. Its weights do not
            matter.

    Raises:
        FileError: The folder contains no pruned module, or its files do not match.
    """
    path = Path(folder)
    data = _read_architecture(path / ARCHITECTURE)
    if net is None and "net" in data:
        raise FileError(f"{path} was pruned from {data['net']}: give the original module as net")
    safetensors = _import_safetensors()
    damages = (InputError, KeyError, OSError, RuntimeError, TypeError, ValueError, AttributeError)
    try:
        pruned = _make_pruned(data, net, str(path))
        safetensors.torch.load_model(pruned, str(path / WEIGHTS))
    except (*damages, safetensors.SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise FileError(f"{path} cannot be rebuilt ({reason}): prune the network again") from error
    return pruned


def _make_pruned(data: Mapping[str, Any], net: nn.Module | None, path: str) -> nn.Module:
    if "net" not in data:
        network = load_record(Network, data.get("network"), f"{path}/{ARCHITECTURE}")
        check_network(network)
        # Without its weights, a damaged network could take any amount of memory.
        if network_work(network, Setup()).params > (Path(path) / WEIGHTS).stat().st_size:
            raise FileError(f"{WEIGHTS} is smaller than {ARCHITECTURE} says")
        return build_net(network)
    assert net is not None, "its absence was reported"
    return remove_channels(net, data["removed"])


def _read_architecture(path: Path) -> Mapping[str, Any]:
    try:
        data = parse_json(read_limited(path, MOST_JSON_BYTES))
    except (FileError, ValueError) as error:
        raise FileError(
            f"{path} cannot be read ({error}): give the folder of a pruned network"
        ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise FileError(
            f"{path} is not a pruned network: give a folder that `joulecast prune --save` wrote"
        )
    return data


def _make_absolute(source: str) -> str:
    """Return a callable's name with an absolute path, if it is in a file."""
    path, colon, name = source.rpartition(":")
    return f"{Path(path).resolve()}{colon}{name}" if path.endswith(".py") else source


def _import_safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise MissingError(
            "saving pruned weights needs safetensors: pip install 'joulecast[prune]'"
        ) from error
    return safetensors
