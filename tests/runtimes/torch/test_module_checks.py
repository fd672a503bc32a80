"""Quantised, compiled, frozen and half-precision modules are handled or named."""

import pytest
import torch
from torch import nn

from joulecast.errors import NetError
from joulecast.kinds import network_work
from joulecast.records import Network, Setup, StepTotals
from joulecast.runtimes.torch.net_reader import read_net

X = torch.randn(4, 8)


def make_small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 2))


def totals_of(network: Network) -> StepTotals:
    assert network.totals is not None
    return network.totals


@pytest.mark.filterwarnings("ignore")
def test_quantised_module_is_refused() -> None:
    engines = torch.backends.quantized.supported_engines
    if "none" in engines and len(engines) == 1:
        pytest.skip("this PyTorch cannot quantise")
    net = torch.ao.quantization.quantize_dynamic(make_small_net(), {nn.Linear})
    with pytest.raises(NetError, match=r"^0 is quantised \(Linear\) and cannot be trained"):
        read_net(net, X)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_module_of_another_precision_is_counted_as_float32(dtype: torch.dtype) -> None:
    """The setup decides the precision of an estimate; the note names that of the module."""
    network = read_net(make_small_net().to(dtype), X.to(dtype))
    usual = read_net(make_small_net(), X)
    assert network == usual
    assert totals_of(network).flops == totals_of(usual).flops
    assert totals_of(network).size_bytes == totals_of(usual).size_bytes
    (note,) = totals_of(network).notes
    assert str(dtype).removeprefix("torch.") in note
    assert totals_of(usual).notes == ()


def test_half_precision_module_reads_float32_inputs() -> None:
    assert read_net(make_small_net().to(torch.bfloat16), X) == read_net(make_small_net(), X)


def test_explicit_casts_of_a_half_precision_module_are_read() -> None:
    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 2).to(torch.bfloat16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x.to(torch.bfloat16))

    assert [layer.kind for layer in read_net(Casts(), X).layers] == ["elementwise", "linear"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_module_is_read_as_it_is_written() -> None:
    network = read_net(torch.compile(make_small_net()), X)
    assert network == read_net(make_small_net(), X)
    assert network.name == "Sequential"
    assert ["torch.compile" in note for note in totals_of(network).notes] == [True]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_part_of_a_module_is_read_as_it_is_written() -> None:
    net = make_small_net()
    net[0] = torch.compile(net[0])
    network = read_net(net, X)
    assert network == read_net(make_small_net(), X)
    assert ["torch.compile" in note for note in totals_of(network).notes] == [True]


def test_frozen_module_has_a_forward_pass_only() -> None:
    network = read_net(make_small_net().requires_grad_(False), X)
    work = network_work(network, Setup(batch=4))
    assert work.backward.flops == work.update.size_bytes == 0
    assert work.forward.flops == totals_of(network).flops > 0
    assert ["forward pass" in note for note in totals_of(network).notes] == [True]


def test_integer_weights_are_named() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codes = nn.Parameter(torch.ones(8, 8, dtype=torch.int8), requires_grad=False)
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.codes * self.scale)

    notes = totals_of(read_net(Packed(), X)).notes
    assert ["1 weights are integers" in note for note in notes] == [True]


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Conv3d(2, 3, 3, groups=1), (2, 2, 5, 6, 7)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), (2, 4, 5, 5)),
        (nn.ConvTranspose3d(4, 6, 3, stride=2, groups=2), (2, 4, 3, 4, 5)),
        (nn.Bilinear(8, 8, 3), (4, 8)),
    ],
    ids=["conv3d", "conv_transpose2d", "conv_transpose3d", "bilinear"],
)
def test_rare_modules_count_what_runs(net: nn.Module, shape: tuple[int, ...]) -> None:
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x, x) if isinstance(self.net, nn.Bilinear) else self.net(x)

    network = read_net(Called(), torch.randn(shape))
    totals = totals_of(network)
    work = network_work(network, Setup(batch=shape[0]))
    assert work.forward.flops + work.backward.flops == pytest.approx(totals.flops)
    assert work.params == totals.params


def test_dense_gradient_of_an_embedding_is_as_large_as_its_table() -> None:
    network = read_net(nn.Embedding(5000, 16), torch.zeros(4, 3, dtype=torch.long))
    work = network_work(network, Setup(batch=4))
    assert work.backward.size_bytes > 5000 * 16 * 4
    assert totals_of(network).size_bytes == pytest.approx(
        work.forward.size_bytes + work.backward.size_bytes, rel=0.05
    )
