"""The host waits for the device where it needs a value: how often, and in which part of a step."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from joulecast.records import Network, Setup, StepTotals, Trial, list_reading_notes
from joulecast.records.network import WAIT_BINS
from joulecast.torch_nets.net_reader import read_net
from torch_nets.made_net import MadeNet

X = torch.randn(4, 8)
MASK = torch.arange(8) < 3


def count_waits(function: Callable[..., torch.Tensor], **members: object) -> tuple[int, int]:
    """Return how often a module waits in forward and in backward, between two linear layers."""

    def forward(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return net.last(function(net, net.first(x)))

    net = MadeNet(forward, first=nn.Linear(8, 8), last=nn.Linear(8, 8), **members)
    network = read_net(net, X)
    totals = network.totals
    assert totals is not None and len(totals.waits) in (0, 2 * WAIT_BINS)
    assert sum(totals.waits) == network.wait_count
    return sum(totals.waits[:WAIT_BINS]), sum(totals.waits[WAIT_BINS:])


def set_rows(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor | float) -> torch.Tensor:
    x = x.clone()
    x[mask] = value
    return x


@pytest.mark.parametrize(
    ("function", "waits"),
    [
        (lambda net, x: x * x.sum().item(), (1, 0)),
        (lambda net, x: x if x.sum() > 0 else -x, (1, 0)),
        (lambda net, x: x[: int(x.abs().sum()) * 0 + 2], (1, 0)),
        (lambda net, x: x * len(x.sum(1).tolist()), (1, 0)),
        (lambda net, x: x * float(x.detach().cpu().numpy().sum()), (1, 0)),
        (lambda net, x: x.to("cpu"), (1, 0)),
        (lambda net, x: x[x.sum(1).abs() >= 0], (1, 1)),
        (lambda net, x: x[torch.where(x.sum(1).abs() >= 0)[0]], (1, 0)),
        (lambda net, x: x.index_select(0, x.sum(1).abs().ge(0).nonzero().flatten()), (1, 0)),
        (lambda net, x: x.masked_select(x.abs() >= 0).view(-1, 8), (1, 0)),
        (lambda net, x: x * len(x.detach().unique()), (1, 0)),
        (lambda net, x: x.repeat_interleave(x.sum(1).gt(-1e9).long(), 0), (1, 0)),
        (lambda net, x: set_rows(x, x.sum(1) > 0, x[:1]), (1, 2)),
        # The size is known, a number is filled in, or nothing but the shape depends on values.
        (lambda net, x: x.repeat_interleave(x.sum(1).gt(-9e9).long(), 0, output_size=4), (0, 0)),
        (lambda net, x: set_rows(x, x.sum(1) > 0, 0.0), (0, 0)),
        (lambda net, x: x.masked_fill(x > 0, 0.0), (0, 0)),
        (lambda net, x: x[x.sum(1).argsort()], (0, 0)),
        (lambda net, x: x * F.one_hot(x.argmax(1), 8), (0, 0)),
        # Random numbers and constants stay on the CPU.
        (lambda net, x: x if torch.rand([]) > 0.1 else -x, (0, 0)),
        (lambda net, x: x * torch.arange(3).sum().item(), (0, 0)),
        # A buffer is on the device.
        (lambda net, x: x + x[:, net.mask].sum(1, keepdim=True), (1, 1)),
        (lambda net, x: x * int(net.mask.sum()), (0, 0)),
        (lambda net, x: x * int(net.step), (1, 0)),
    ],
)
def test_functions_that_need_a_value_wait(function, waits) -> None:
    assert count_waits(function, mask=MASK, step=torch.tensor(2)) == waits


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_every_wait_is_counted_where_it_is(times: list[int]) -> None:
    def forward(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for layer, count in zip(net.layers, times, strict=True):
            for _ in range(count):
                x = x * x[0, 0].item()
            x = layer(x)
        return x

    layers = nn.ModuleList(nn.Linear(8, 8) for _ in times)
    network = read_net(MadeNet(forward, layers=layers), X)
    assert network.totals is not None and network.wait_count == sum(times)
    found = [at for at, count in enumerate(network.totals.waits) for _ in range(count)]
    # One launch for each product with the item, and one for each layer; all in the forward pass.
    launches = sum(times) + len(times)
    before = [sum(times[:at]) + at + i for at, count in enumerate(times) for i in range(count)]
    assert found == [WAIT_BINS * one // launches for one in before]
    assert bool(found) == any("waits" in note for note in list_reading_notes(network))


@pytest.mark.parametrize(("times", "kernels"), [(0, 0), (1, 2), (3, 6)])
def test_kernels_that_find_what_a_mask_selects_are_calls(times: int, kernels: int) -> None:
    def forward(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for _ in range(times):
            x = x.index_select(0, x.sum(1).abs().ge(0).nonzero()[:, 0])
        return net.layer(x)

    totals = read_net(MadeNet(forward, layer=nn.Linear(8, 8)), X).totals
    assert totals is not None
    # Selecting a column of the places is one more.
    assert totals.between == kernels + times


def wait(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x.sum().item()
    return net.layer(x)


def test_waits_change_no_key_and_are_optional() -> None:
    net = MadeNet(wait, layer=nn.Linear(8, 8))
    waiting, plain = read_net(net, X), read_net(nn.Sequential(net.layer), X)
    assert waiting.wait_count == 1 and plain.wait_count == 0
    data = waiting.to_dict()
    assert Network.from_dict(data).totals == waiting.totals
    del data["totals"]["waits"]
    old = Network.from_dict(data)
    assert old.wait_count == 0
    assert Trial(old, Setup()).key == Trial(waiting, Setup()).key
    assert "waits" not in plain.to_dict()["totals"]
    assert Network(totals=StepTotals(1.0, 1.0, 1)).wait_count == 0


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x.sum().cpu().item(),
        lambda x: x.cpu().numpy(),
        lambda x: x.to(torch.device("cpu")).sum().item(),
        lambda x: x.cpu()[0, 0].item(),
    ],
)
def test_what_is_on_the_host_is_not_waited_for_again(copy) -> None:
    def forward(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = net.layer(x)
        copy(y.detach() + 1)
        return y

    assert read_net(MadeNet(forward, layer=nn.Linear(8, 8)), X).wait_count == 1
