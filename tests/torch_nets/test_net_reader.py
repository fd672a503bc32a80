"""Modules of all sorts are read, and what cannot be read is named in one line."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from joulecast.operators import layer_work, network_work
from joulecast.records import Device, Input, Network, Setup
from joulecast.system.errors import NetError
from joulecast.torch_nets import tracer as trace_limits
from joulecast.torch_nets.build import build_net
from joulecast.torch_nets.losses import cross_entropy_loss
from joulecast.torch_nets.net_reader import read_net
from joulecast.torch_nets.runtime import TorchRuntime
from joulecast.torch_nets.tracer import TraceLimits
from torch_nets.made_net import MadeNet, list_kinds, moved_bytes, step_flops

X = torch.randn(4, 8)


def run_functions(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = F.max_pool2d(F.relu(net.conv(x)), 2)
    return net.fc(x.view(x.shape[0], -1))


def test_functions_and_modules_read_the_same() -> None:
    x = torch.randn(2, 3, 8, 8)
    conv, fc = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6 * 4 * 4, 5)
    body = nn.Sequential(conv, nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten())
    functional = read_net(MadeNet(run_functions, conv=conv, fc=fc), x)
    modules = read_net(nn.Sequential(body, fc), x)
    assert functional == modules
    assert functional.buildable
    assert [op.kind for op in functional.layers[0].tail] == ["elementwise", "pool", "flatten"]


def transpose_often(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Call three layers, with pairs of transpositions after each."""
    for layer in net.layers:
        x = layer(x)
        for _ in range(net.pairs):
            x = x.transpose(0, 1).transpose(0, 1)
    return x


@pytest.mark.parametrize("pairs", [0, 1, 4])
def test_calls_between_layers_are_counted(pairs: int) -> None:
    """They cost no device time, but the host has to make them."""
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    totals = read_net(MadeNet(transpose_often, layers=layers, pairs=pairs), X).totals
    assert totals.between == 6 * pairs
    plain = read_net(MadeNet(transpose_often, layers=layers, pairs=0), X).totals
    assert totals.size_bytes == plain.size_bytes


def test_batch_norm_counter_is_not_a_call_between_layers() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    network = read_net(net, torch.randn(2, 3, 8, 8))
    assert network.totals.between == 0


def test_decomposed_activations_of_libraries_are_rebuilt() -> None:
    pytest.importorskip("transformers")
    from transformers.activations import NewGELUActivation, QuickGELUActivation

    x = torch.randn(2, 8)
    for cls in (NewGELUActivation, QuickGELUActivation):
        net = nn.Sequential(nn.Linear(8, 8), cls())
        network = read_net(net, x)
        assert network.buildable
        built = build_net(network)
        built.load_state_dict(dict(zip(built.state_dict(), net.state_dict().values(), strict=True)))
        torch.testing.assert_close(built(x), net(x))


def test_tied_weights_count_once() -> None:
    net = MadeNet(
        lambda net, x: F.linear(net.table(x), net.table.weight), table=nn.Embedding(11, 8)
    )
    network = read_net(net, torch.zeros(2, 5, dtype=torch.long), cross_entropy_loss)
    assert list_kinds(network) == ["embedding", "linear"]
    assert [layer.tied for layer in network.layers] == [False, True]
    assert network.totals.params == 88
    assert network.totals.unattributed_params_share == 0.0
    assert network_work(network, Setup(batch=2)).params == 88


def run_lora(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = net.before(x)
    return net.base(x) + net.up(net.down(x))


def test_lora_has_frozen_and_trainable_layers() -> None:
    frozen = {name: nn.Linear(8, 8).requires_grad_(False) for name in ("before", "base")}
    low = {"down": nn.Linear(8, 2, bias=False), "up": nn.Linear(2, 8, bias=False)}
    network = read_net(MadeNet(run_lora, **frozen, **low), X)
    before, base, down, up, plus = network.layers
    assert [layer.trains for layer in (before, base, down, up)] == [False, False, True, True]
    assert [layer.input_grad for layer in (before, base, down, up)] == [False, False, False, True]
    assert plus.kind == "elementwise" and plus.join == "add"
    frozen, trained = (layer_work(layer, Setup(batch=4)) for layer in (before, down))
    assert frozen.backward.flops == frozen.update.size_bytes == 0
    assert trained.backward.flops == trained.forward.flops
    assert step_flops(network, 4) == network.totals.flops
    assert network.buildable


def test_data_dependent_control_flow_is_read_on_real_tensors() -> None:
    net = make_branch()
    before = [w.clone() for w in net.parameters()]
    assert list_kinds(read_net(net, X))[0] == "linear"
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert all(w.grad is None for w in net.parameters())


def test_module_in_eval_mode_is_read_in_training_mode_and_restored() -> None:
    net = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)).eval()
    network = read_net(net, X)
    assert [op.kind for op in network.layers[0].tail] == ["dropout", "batch_norm"]
    assert not net.training and not net[1].training
    assert net[2].num_batches_tracked.item() == 0


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (MadeNet(lambda net, x: net.missing(x)), X),
        (nn.Linear(3, 2), X),
        (nn.Identity(), torch.zeros(())),
    ],
)
def test_module_that_does_not_run_raises_a_one_line_error(net: nn.Module, x: torch.Tensor) -> None:
    with pytest.raises(NetError) as caught:
        read_net(net, x)
    assert "\n" not in str(caught.value)


def test_shares_are_finite_without_flops() -> None:
    totals = read_net(nn.Sequential(nn.LayerNorm(8), nn.ReLU()), X).totals
    assert totals.flops == 0
    assert math.isfinite(totals.unattributed_flops_share)


def test_later_calls_of_a_looped_layer_need_an_input_gradient() -> None:
    """The first call of a looped layer reads the data, the others read an activation."""
    network = read_net(nn.Sequential(MadeNet(loop, fc=nn.Linear(8, 8)), nn.Linear(8, 2)), X)
    first, others, _ = network.layers
    assert (first.calls, others.calls) == (1, 3)
    assert (first.input_grad, others.input_grad) == (False, True)
    assert (first.tied, others.tied) == (False, True)
    assert step_flops(network, 4) == network.totals.flops


def loop(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = F.relu(net.fc(x))
    return x


@pytest.mark.parametrize("frozen", [0, 1])
def test_norm_joins_only_a_layer_that_is_frozen_as_it_is(frozen: int) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
    net[frozen].requires_grad_(False)
    network = read_net(net, torch.randn(2, 3, 8, 8))
    assert list_kinds(network) == ["conv2d", "batch_norm", "conv2d"]
    assert [layer.trains for layer in network.layers[:2]] == [frozen == 1, frozen == 0]
    trained = sum(w.numel() for w in net.parameters() if w.requires_grad)
    updated = network_work(network, Setup(batch=2)).update.size_bytes
    assert updated == trained * 5 * 4


def check_flops_and_params(net: nn.Module, inputs: object) -> Network:
    network = read_net(net, inputs)
    totals = network.totals
    assert step_flops(network, 2) == pytest.approx(totals.flops, rel=0.05)
    assert network_work(network, Setup(batch=2)).params == totals.params
    return network


def run_packed(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    lengths = torch.full((x.shape[0],), x.shape[1])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    return net.lstm(packed)[0].data


def test_rnn_packed_sequence_and_keyword_arguments_are_read() -> None:
    x = torch.randn(2, 5, 8)
    attend = MadeNet(
        lambda net, x: net.attention(query=x, key=x, value=x, need_weights=False)[0],
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
    )
    assert list_kinds(read_net(attend, x)) == ["attention"]
    rnn = nn.Sequential(nn.Linear(8, 8), nn.RNN(8, 4, batch_first=True))
    assert list_kinds(check_flops_and_params(rnn, x)) == ["linear", "rnn"]
    assert "lstm" in list_kinds(
        read_net(MadeNet(run_packed, lstm=nn.LSTM(8, 4, batch_first=True)), x)
    )


def test_computed_weight_is_counted_once() -> None:
    linear = nn.Linear(8, 8, bias=False)
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(linear), nn.Linear(8, 2))
    network = check_flops_and_params(net, torch.randn(2, 8))
    assert not network.buildable


def test_module_that_does_more_than_its_layers_is_not_buildable() -> None:
    net = MadeNet(
        lambda net, x: net.fc(x) + 0 * (net.constant @ net.constant).sum(),
        fc=nn.Linear(8, 2),
        constant=torch.randn(50, 50),
    )
    network = read_net(net, X)
    assert network.totals.unattributed_flops_share > 0.5
    assert not network.buildable


def test_nested_output_is_read_and_trained() -> None:
    net = MadeNet(lambda net, x: {"all": [net.fc(x)]}, fc=nn.Linear(8, 3))
    read_net(net, X)
    runtime = TorchRuntime("cpu", Device("a-cpu"))
    runtime.prepare_net(net, X, None, Setup(batch=4, threads=1)).run(1)


def mix(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Mix tokens with linear layers on transposed inputs."""
    x = net.stem(x)
    for tokens, channels in zip(net.tokens, net.channels, strict=True):
        x = x + tokens(x.transpose(1, 2)).transpose(1, 2)
        x = x + channels(x)
    return x


def read_mixer() -> Network:
    linears = {
        "tokens": nn.ModuleList(nn.Linear(12, 12) for _ in range(3)),
        "channels": nn.ModuleList(nn.Linear(16, 16) for _ in range(3)),
    }
    return read_net(MadeNet(mix, stem=nn.Linear(6, 16), **linears), torch.randn(4, 12, 6))


def test_transposed_inputs_are_recorded_and_rebuilt() -> None:
    network = read_mixer()
    flags = {layer.name: layer.transposed for layer in network.layers}
    assert flags["stem"] == flags["channels.0"] == ()
    assert flags["tokens.0"] == flags["tokens.2"] == (0,)
    tokens = next(layer for layer in network.layers if layer.name == "tokens.1")
    alone = Network((replace(tokens, reads=(1,)),), Input((16, 12)))
    again = read_net(build_net(alone), torch.randn(4, 16, 12))
    assert [layer.transposed for layer in again.layers] == [(0,)]


def test_transposed_inputs_are_copied() -> None:
    """The formula of a linear layer adds a copy of its input and a pass for its bias."""
    network = read_mixer()
    tokens = next(layer for layer in network.layers if layer.name == "tokens.1")
    work = layer_work(tokens, Setup(batch=4)).forward
    plain = layer_work(replace(tokens, transposed=()), Setup(batch=4)).forward
    elements = 4 * 16 * 12
    assert work.size_bytes - plain.size_bytes == 4 * (2 * elements + 2 * elements)
    assert work.launches - plain.launches == 2
    assert work.flops == plain.flops


def gate(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Add gated residuals, with operands in either order."""
    x = net.layers[0](x)
    for layer, opening in zip(net.layers[1::2], net.layers[2::2], strict=False):
        h = torch.relu(layer(x))
        open_gate = torch.sigmoid(opening(h))
        x = x + open_gate * h if net.is_swapped else h * open_gate + x
    return x


def test_order_of_operands_does_not_matter() -> None:
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
    one, other = (
        read_net(MadeNet(gate, layers=layers, is_swapped=is_), X) for is_ in (True, False)
    )
    assert one == other


def look_at_values(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if net.sizes is not None and not isinstance(x, FakeTensor):
        net.sizes.append(x.shape[0])
    for layer in net.layers:
        x = layer(x)
        if x.sum() > 1e9:
            x = -x
    return x


def make_branch(function=look_at_values, sizes: list[int] | None = None) -> nn.Module:
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
    return MadeNet(function, layers=layers, sizes=sizes)


def test_step_on_real_tensors_takes_two_samples() -> None:
    sizes: list[int] = []
    network = read_net(make_branch(sizes=sizes), torch.randn(64, 8))
    assert max(sizes) == 2
    assert network.totals.flops == 64 * 2 * 8 * 8 * 5
    assert "with 2 samples; counts were scaled to 64" in network.totals.notes[0]


def test_step_on_real_tensors_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_limits, "MAX_TRACE_S", -1.0)
    with pytest.raises(NetError, match="takes more than -1 s on this CPU: give smaller inputs"):
        read_net(make_branch(), X)


def test_random_numbers_do_not_decide_which_layers_are_read() -> None:
    def drop_layers(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for layer in net.layers:
            if torch.rand([]) > 0.1:
                x = layer(x)
        return x

    network = read_net(make_branch(drop_layers), X)
    assert list_kinds(network) == ["linear", "linear"]
    assert network.totals.notes == ()


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2, ceil_mode=True), nn.MaxPool2d(2, ceil_mode=True)])
def test_ceil_mode_of_pooling_is_read(pool):
    """Average pooling passes its ceil_mode by position, max pooling after a dilation."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), pool, nn.Flatten(), nn.Linear(64, 2))
    network = read_net(net, torch.randn(2, 3, 7, 7))
    assert network.layers[0].tail[0].sizes["ceil"] == 1
    assert build_net(network)(torch.randn(2, 3, 7, 7)).shape == (2, 2)


def make_small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 2))


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
    assert network == usual == read_net(make_small_net().to(dtype), X)
    assert network.totals.flops == usual.totals.flops
    assert network.totals.size_bytes == usual.totals.size_bytes
    (note,) = network.totals.notes
    assert str(dtype).removeprefix("torch.") in note
    assert usual.totals.notes == ()


def test_explicit_casts_of_a_half_precision_module_are_read() -> None:
    fc = nn.Linear(8, 2).to(torch.bfloat16)
    net = MadeNet(lambda net, x: net.fc(x.to(torch.bfloat16)), fc=fc)
    assert list_kinds(read_net(net, X)) == ["elementwise", "linear"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("part", ["module", "layer"])
def test_compiled_module_is_read_as_it_is_written(part: str) -> None:
    net = make_small_net()
    if part == "module":
        net = torch.compile(net)
    else:
        net[0] = torch.compile(net[0])
    network = read_net(net, X)
    assert network == read_net(make_small_net(), X)
    assert network.name == "Sequential"
    assert ["torch.compile" in note for note in network.totals.notes] == [True]


def test_frozen_module_has_a_forward_pass_only() -> None:
    network = read_net(make_small_net().requires_grad_(False), X)
    work = network_work(network, Setup(batch=4))
    assert work.backward.flops == work.update.size_bytes == 0
    assert work.forward.flops == network.totals.flops > 0
    assert ["forward pass" in note for note in network.totals.notes] == [True]


def test_integer_weights_are_named() -> None:
    net = MadeNet(
        lambda net, x: x @ (net.codes * net.scale),
        codes=nn.Parameter(torch.ones(8, 8, dtype=torch.int8), requires_grad=False),
        scale=nn.Parameter(torch.ones(8)),
    )
    notes = read_net(net, X).totals.notes
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
    def call(called: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return called.net(x, x) if isinstance(called.net, nn.Bilinear) else called.net(x)

    network = read_net(MadeNet(call, net=net), torch.randn(shape))
    assert step_flops(network, shape[0]) == pytest.approx(network.totals.flops)
    work, totals = network_work(network, Setup(batch=shape[0])), network.totals
    assert work.params == totals.params


def test_dense_gradient_of_an_embedding_is_as_large_as_its_table() -> None:
    network = read_net(nn.Embedding(5000, 16), torch.zeros(4, 3, dtype=torch.long))
    work = network_work(network, Setup(batch=4))
    assert work.backward.size_bytes > 5000 * 16 * 4
    assert network.totals.size_bytes == pytest.approx(moved_bytes(network, 4), rel=0.05)


def test_memory_is_counted_with_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_limits, "find_available_bytes", lambda: 10_000.0)
    limits = TraceLimits(nn.Linear(8, 8))
    limits.spend(torch.zeros(100))
    with pytest.raises(NetError, match="takes more memory than is free"):
        limits.spend([torch.zeros(1000), None, torch.zeros(1000)])
    with pytest.raises(NetError, match="takes more memory than is free"):
        TraceLimits(nn.Linear(100, 100))
