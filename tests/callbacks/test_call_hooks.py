"""Calls of modules are seen, and neither copies nor compiled graphs suffer from it."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

from joulecast.callbacks.module_reading import watch_calls

X = torch.zeros(3, 2)


class Net(nn.Linear):
    """A module of a user: torch.compile does not compile calls of PyTorch's own modules alone."""

    def forward(self, x):
        return super().forward(x)


class Watcher:
    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def see_call(self, args, kwargs) -> None:
        self.calls.append(tuple(args[0].shape))


def compile_nothing(net: nn.Module) -> nn.Module:
    return net


def compile_wrapped(net: nn.Module) -> nn.Module:
    return torch.compile(net, backend="eager", fullgraph=True)


def compile_in_place(net: nn.Module) -> nn.Module:
    net.compile(backend="eager", fullgraph=True)
    return net


@pytest.mark.parametrize("prepare", [compile_nothing, compile_wrapped, compile_in_place])
def test_calls_are_seen_until_watching_ends(prepare):
    torch._dynamo.reset()
    net, watcher = prepare(Net(2, 2)), Watcher()
    compiled = net._compiled_call_impl
    end_watching = watch_calls(net, watcher)
    net(X)
    net(X)
    assert watcher.calls == [(3, 2), (3, 2)]
    end_watching()
    net(X)
    assert len(watcher.calls) == 2
    assert not net._forward_pre_hooks and net._compiled_call_impl is compiled


def test_a_module_inside_of_one_graph_is_not_seen_and_compiles():
    torch._dynamo.reset()
    net, watcher = nn.Linear(2, 2), Watcher()
    watch_calls(net, watcher)
    compile_wrapped(nn.Sequential(net))(X)
    assert watcher.calls == []


def test_copies_and_pickles_are_not_seen():
    net, watcher = nn.Linear(2, 2), Watcher()
    watcher.secret = (one for one in ())  # a generator can be neither copied nor pickled
    watch_calls(net, watcher)
    copy.deepcopy(net)(X)
    pickle.loads(pickle.dumps(net))(X)  # noqa: S301 - written here
    assert watcher.calls == []


def test_a_watcher_is_not_kept_alive():
    net, watcher = nn.Linear(2, 2), Watcher()
    calls = watcher.calls
    watch_calls(net, watcher)
    del watcher
    gc.collect()
    net(X)
    assert calls == []
