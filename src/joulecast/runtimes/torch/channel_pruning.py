"""Finds the channels of a net that can be cut, and cuts them.

    find_groups   net, example inputs → Channels: its Network, its groups, what stays whole and why
    cut           net, groups, counts → a smaller net with the weights that are left

Torch-Pruning says which channels go together (couple.py). Whether a group can really go is tried on
a copy without numbers, and what it changes in the Network is read off such copies (slots.py): a
group that breaks the net stays whole, and it is said why. Which channels matter says weigh.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from joulecast.errors import InputError
from joulecast.kinds import find_kind
from joulecast.kinds.channel_groups import ChannelGroup, Coupling, check_counts
from joulecast.records import Network
from joulecast.runtimes.torch.channel_dependencies import (
    ChannelDependency,
    Places,
    find_channel_dependencies,
    import_pruning,
    refuse_recurrent,
)
from joulecast.runtimes.torch.channel_slots import find_channel_slots
from joulecast.runtimes.torch.load import LoadedNet, read_loaded_net
from joulecast.runtimes.torch.modules import PackedSdpa
from joulecast.runtimes.torch.training_step import call_net

Removed = Mapping[str, Mapping[str, Sequence[int]]]


@dataclass(frozen=True)
class PrunableChannels:
    """What of a net can be cut.

    Attributes:
        network: The net as it was read; the groups' slots are its sizes.
        whole: Layers that stay as they are, each with the reason.
    """

    network: Network
    groups: tuple[ChannelGroup, ...]
    whole: tuple[str, ...]


def find_channel_groups(
    net: nn.Module,
    inputs: Any,
    loss: Callable[[Any], torch.Tensor] | None = None,
    names: Network | None = None,
) -> PrunableChannels:
    """Channels that can be cut, with equal importance; the net itself is not touched.

    Args:
        net: Any module.
        inputs: What it is called on.
        loss: Its output → a scalar to run backward from.
        names: The same network under the names that people know its layers by.

    Raises:
        NetError: It has recurrences, or cannot be followed or run.
        MissingError: Torch-Pruning is not installed.
    """
    import_pruning()
    refuse_recurrent(net)
    bare, bare_inputs = _strip(net, inputs)
    loaded = LoadedNet(bare, bare_inputs, loss)
    base = read_loaded_net(type(net).__name__, loaded)
    ties = [
        tie if tie.why_whole else _find_way(tie, loaded, base)
        for tie in _try_all(_follow(net, inputs, bare, bare_inputs), loaded)
    ]
    groups = [_make_group(tie) for tie in ties if not tie.why_whole]
    found, lost = find_channel_slots(base, groups, lambda some: _read_cut(loaded, groups, some))
    known = {
        layer.name: label.name
        for layer, label in zip(base.layers, (names or base).layers, strict=False)
    }
    whole = {tie.name: tie.why_whole for tie in ties if tie.why_whole}
    whole.update((name, "its sizes do not follow its channels") for name in map(_bare_name, lost))
    said = tuple(f"{known.get(name, name)}: {why}" for name, why in whole.items())
    return PrunableChannels(names or base, _name_groups(found, names or base), said)


def prune_channels(
    net: nn.Module,
    groups: Sequence[ChannelGroup],
    counts: Mapping[str, int],
) -> nn.Module:
    """A copy of the net with so many channels left in each group, the most important ones.

    Raises:
        InputError: There is no such group, or it cannot have that many channels.
    """
    return remove_channels(net, list_removed_channels(groups, counts))


def list_removed_channels(
    groups: Sequence[ChannelGroup], counts: Mapping[str, int]
) -> dict[str, dict[str, list[int]]]:
    """For every module and side which of its channels go."""
    check_counts(groups, counts)
    removed: dict[str, dict[str, set[int]]] = {}
    for group in groups:
        steps = (group.channels - counts.get(group.name, group.channels)) // group.step
        for step in group.rank()[:steps]:
            for one in group.couplings:
                gone = removed.setdefault(one.path, {}).setdefault(one.side, set())
                gone.update(one.channels_by_step[step])
    return {
        path: {side: sorted(gone) for side, gone in sides.items()}
        for path, sides in removed.items()
    }


def remove_channels(net: nn.Module, removed: Removed) -> nn.Module:
    """A copy of the net without some channels.

    Raises:
        InputError: The net has no such module, or no such channels.
    """
    import_pruning()
    smaller = copy.deepcopy(net)
    ties = _list_tied(smaller)
    for path, sides in removed.items():
        for side, gone in sides.items():
            try:
                _remove_from(smaller, path, side, list(gone))
            except (AttributeError, IndexError, RuntimeError, AssertionError) as error:
                raise InputError(f"{path} cannot be cut as the file says: {error}") from error
    _tie_again(smaller, ties)
    return smaller


# ---------------------------------------------------------------------------------------------
# Trying


def _strip(net: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    """A copy without numbers where the net runs so; else a real one."""
    from torch.utils import _pytree as pytree

    bare = copy.deepcopy(net).to("meta")
    _tie_again(bare, _list_tied(net))
    bare_inputs = pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), inputs)
    if _runs(bare, bare_inputs):
        return bare, bare_inputs
    return copy.deepcopy(net), inputs


def _follow(
    net: nn.Module, inputs: Any, bare: nn.Module, bare_inputs: Any
) -> list[ChannelDependency]:
    """Ties of a copy that keeps nothing for the next token: that is joined to nothing here."""
    for one, given in ((bare, bare_inputs), (net, inputs)):
        tried = copy.deepcopy(one)
        if hasattr(getattr(tried, "config", None), "use_cache"):
            tried.config.use_cache = False  # type: ignore[union-attr]
        if _runs(tried, given):
            return find_channel_dependencies(tried, given)
    return find_channel_dependencies(copy.deepcopy(net), inputs)


def _runs(net: nn.Module, inputs: Any) -> bool:
    modes = [(module, module.training) for module in net.modules()]
    try:
        with torch.no_grad():
            call_net(net.eval(), inputs)
        return True
    except Exception:  # whatever a net raises, it does not run
        return False
    finally:
        for module, training in modes:
            module.training = training


def _try_all(ties: Sequence[ChannelDependency], loaded: LoadedNet) -> list[ChannelDependency]:
    """Ties that go well together are not tried one by one."""
    free = [tie for tie in ties if not tie.why_whole]
    tried = _survives(loaded, free)
    return [replace(tie, tried=tried) for tie in ties]


def _find_way(tie: ChannelDependency, loaded: LoadedNet, base: Network) -> ChannelDependency:
    """The tie as it is; by whole heads; by a dimension of every head: what the net survives."""
    if tie.tried or _survives(loaded, [tie]):
        return tie
    heads = _list_heads(base)
    ways = [(replace(tie, head_dim=dim), dim, 1) for dim in sorted({one[1] for one in heads})]
    ways += [(replace(tie, parts=count), count, 0) for count in sorted({one[0] for one in heads})]
    for way, step, kept in ways:
        fits = len(tie.channels) % step == 0 and len(tie.channels) > step
        if fits and _survives(loaded, [way]):
            # What is left must not be dealt out anew, to as many heads or in other dimensions.
            left = _list_heads(_read_ties(loaded, [way]))
            if [one[kept] for one in left] == [one[kept] for one in heads]:
                return way
    return replace(tie, why_whole="the net does not run with fewer of its channels")


def _list_heads(network: Network) -> list[tuple[int, int]]:
    """Heads and their dimension of every attention."""
    sizes = [layer.sizes for layer in network.layers if find_kind(layer.kind).has_head_dim]
    return [(one["heads"], one["head_dim"]) for one in sizes]


def _read_ties(loaded: LoadedNet, ties: Sequence[ChannelDependency]) -> Network:
    groups = [_make_group(tie) for tie in ties]
    return _read_cut(loaded, groups, {one.name: one.channels - one.step for one in groups})


def _survives(loaded: LoadedNet, ties: Sequence[ChannelDependency]) -> bool:
    groups = [_make_group(tie) for tie in ties]
    groups = [group for group in groups if len(group.importance) > 1]
    counts = {group.name: group.channels - group.step for group in groups}
    try:
        return _runs(prune_channels(loaded.net, groups, counts), loaded.inputs)
    except InputError:
        return False


def _read_cut(
    loaded: LoadedNet, groups: Sequence[ChannelGroup], counts: Mapping[str, int]
) -> Network:
    smaller = prune_channels(loaded.net, groups, counts)
    return read_loaded_net("", replace(loaded, net=smaller))


def _make_group(tie: ChannelDependency) -> ChannelGroup:
    """A group in the steps that its tie asks for."""
    channels, width = tie.channels, len(tie.channels)
    if tie.head_dim:
        steps = [channels[at : at + tie.head_dim] for at in range(0, width, tie.head_dim)]
    else:
        apart = width // tie.parts
        steps = [channels[at::apart] for at in range(apart)]
    couplings = tuple(
        Coupling(path, side, tuple(_gather(places, step) for step in steps))
        for path, side, places in tie.items
    )
    name = f"{tie.name}[{channels[0]}]"
    return ChannelGroup(name, len(steps[0]), couplings, (), (1.0 / len(steps),) * len(steps))


def _bare_name(name: str) -> str:
    return name.rpartition("[")[0]


def _gather(places: Places, step: Sequence[int]) -> tuple[int, ...]:
    return tuple(index for channel in step for index in places[channel])


def _name_groups(groups: Sequence[ChannelGroup], names: Network) -> tuple[ChannelGroup, ...]:
    """Groups under the name of the first layer that makes their channels."""
    named: list[ChannelGroup] = []
    taken: set[str] = set()
    ordered = sorted(groups, key=lambda group: min(slot.layer for slot in group.slots))
    for group in ordered:
        made = [s.layer for s in group.slots if s.size in ("cout", "width", "heads") and not s.op]
        place = min(made, default=min(slot.layer for slot in group.slots))
        name = names.layers[place].name or f"layer {place + 1}"
        number = 2
        while name in taken:
            name, number = f"{name.split('#')[0]}#{number}", number + 1
        taken.add(name)
        named.append(replace(group, name=name))
    return tuple(named)


# ---------------------------------------------------------------------------------------------
# Cutting


def _remove_from(net: nn.Module, path: str, side: str, gone: list[int]) -> None:
    owner_path, _, last = path.rpartition(".")
    owner = net.get_submodule(owner_path)
    target = getattr(owner, last) if last else net
    if isinstance(target, nn.Parameter):
        setattr(owner, last, _keep_rest(target, gone, _last_axis(target)))
        if isinstance(owner, nn.RMSNorm):
            owner.normalized_shape = tuple(getattr(owner, last).shape)
    elif isinstance(target, PackedSdpa):
        target.drop_heads(len(gone) // target.head_dim)
    else:
        tp = import_pruning()
        pruner = tp.pruner.function.PrunerBox[tp.ops.module2type(target)]
        trains = {name: value.requires_grad for name, value in target.named_parameters()}
        (pruner.prune_in_channels if side == "in" else pruner.prune_out_channels)(target, gone)
        for name, value in target.named_parameters():
            value.requires_grad_(trains[name])


def _last_axis(value: torch.Tensor) -> int:
    """The axis that Torch-Pruning cuts of a parameter: the last one with more than one place."""
    return max((at for at, size in enumerate(value.shape) if size > 1), default=0)


def _keep_rest(value: nn.Parameter, gone: Sequence[int], axis: int) -> nn.Parameter:
    lost = set(gone)
    kept = [at for at in range(value.shape[axis]) if at not in lost]
    index = torch.tensor(kept, dtype=torch.long, device=value.device)
    return nn.Parameter(value.detach().index_select(axis, index), requires_grad=value.requires_grad)


def _list_tied(net: nn.Module) -> list[list[str]]:
    """Names of parameters that are one and the same."""
    names: dict[int, list[str]] = {}
    for name, value in net.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def _tie_again(net: nn.Module, ties: Sequence[Sequence[str]]) -> None:
    for first, *others in ties:
        for name in others:
            owner, _, last = name.rpartition(".")
            value = net.get_parameter(first)
            if net.get_parameter(name).shape == value.shape:
                setattr(net.get_submodule(owner), last, value)
