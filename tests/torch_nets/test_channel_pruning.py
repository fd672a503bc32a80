"""Narrowed records equal what is read from pruned modules; saved modules are data, not code."""

import copy
import json
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from joulecast.families import make_family
from joulecast.operators.channel_groups import ChannelGroup, narrow_network
from joulecast.system.errors import FileError, InputError, NetError
from joulecast.torch_nets.build import build_net
from joulecast.torch_nets.channel_pruning import PrunableChannels, find_channel_groups
from joulecast.torch_nets.channel_removal import (
    ARCHITECTURE,
    WEIGHTS,
    compute_importance,
    list_removed_channels,
    load_pruned,
    prune_channels,
    run_backward,
    save_pruned,
)
from joulecast.torch_nets.load import LoadedNet, build_example_net, read_loaded_net
from torch_nets.made_net import MadeNet


def add_residual(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = net.norm2(net.conv2(F.relu(net.norm1(net.conv1(x)))))
    return F.relu(y + (x if net.project is None else net.project(x)))


def make_residual(inside: int, outside: int, stride: int = 1) -> nn.Module:
    is_projected = stride > 1 or inside != outside
    return MadeNet(
        add_residual,
        conv1=nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
        norm1=nn.BatchNorm2d(outside),
        conv2=nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
        norm2=nn.BatchNorm2d(outside),
        project=nn.Conv2d(inside, outside, 1, stride, bias=False) if is_projected else None,
    )


def add_inverted(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = F.relu6(net.norm2(net.depthwise(F.relu6(net.norm1(net.expand(x))))))
    y = net.reduce(y)
    return x + y if net.residual else y


def make_inverted(inside: int, outside: int, times: int) -> nn.Module:
    hidden = inside * times
    return MadeNet(
        add_inverted,
        expand=nn.Conv2d(inside, hidden, 1, bias=False),
        norm1=nn.BatchNorm2d(hidden),
        depthwise=nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False),
        norm2=nn.BatchNorm2d(hidden),
        reduce=nn.Conv2d(hidden, outside, 1, bias=False),
        residual=inside == outside,
    )


def read_densely(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    one = F.relu(net.one(x))
    two = F.relu(net.two(one))
    three = F.relu(net.three(torch.cat([one, two], 1)))
    y = net.norm(torch.cat([one, two, three], 1)) + net.side(x)
    return net.fc(F.adaptive_avg_pool2d(y, 4).flatten(1))


def make_dense() -> nn.Module:
    """Every convolution reads all before it; a sum couples concatenated channels with others."""
    return MadeNet(
        read_densely,
        one=nn.Conv2d(3, 8, 3, padding=1),
        two=nn.Conv2d(8, 6, 3, padding=1),
        three=nn.Conv2d(14, 5, 3, padding=1),
        norm=nn.BatchNorm2d(19),
        side=nn.Conv2d(3, 19, 1),
        fc=nn.Linear(19 * 16, 10),
    )


class Encoder(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 5, width))
        self.blocks = nn.ModuleList([Encoder(width, heads)])
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class Attention(nn.Module):
    """Functional attention whose head count either follows the width or is fixed."""

    def __init__(self, fixed: bool, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.last = nn.Linear(width, 3)
        self.sizes = (heads, -1) if fixed else (-1, width // heads)

    def forward(self, x):
        x = self.embed(x)
        q, k, v = (
            layer(x).view(*x.shape[:2], *self.sizes).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.last((x + self.o(y)).mean(1))


def _convolve(*layers: nn.Module, channels: int) -> nn.Module:
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *layers, *pool)


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
NETS = {
    "residual": lambda: (
        _convolve(make_residual(8, 8), make_residual(8, 16, 2), channels=16),
        IMAGES,
    ),
    "inverted": lambda: (
        _convolve(make_inverted(8, 8, 3), make_inverted(8, 12, 2), channels=12),
        IMAGES,
    ),
    "grouped": lambda: (
        _convolve(
            nn.Conv2d(8, 16, 3),
            nn.Conv2d(16, 24, 3, groups=4),
            nn.GroupNorm(2, 24),
            nn.Conv2d(24, 8, 1),
            channels=8,
        ),
        IMAGES,
    ),
    "dense": lambda: (make_dense(), IMAGES),
    "vit": lambda: (VisionTransformer(), IMAGES),
    "heads follow": lambda: (Attention(fixed=False), TOKENS),
    "heads fixed": lambda: (Attention(fixed=True), TOKENS),
    "transposed": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.ConvTranspose2d(8, 6, 2, 2),
            nn.PReLU(6),
            nn.Conv2d(6, 3, 1),
        ),
        IMAGES,
    ),
}
FAMILIES = ("lenet5:4,6,12,10", "har:4,6,8,10", "transformer:16,1")
_FOUND: dict[str, tuple[nn.Module, torch.Tensor, PrunableChannels]] = {}


def find_channels(name: str) -> tuple[nn.Module, torch.Tensor, PrunableChannels]:
    """Return a module with inputs and its prunable channels, found once per name."""
    if name not in _FOUND:
        torch.manual_seed(0)
        if name in NETS:
            net, inputs = NETS[name]()
            channels = find_channel_groups(net, inputs)
        else:
            network = make_family(name)
            loaded = build_example_net(network, 2)
            net, inputs = loaded.net, loaded.inputs
            channels = find_channel_groups(net, inputs, names=network)
        _FOUND[name] = net, inputs, channels
    return _FOUND[name]


def draw_counts(groups: tuple[ChannelGroup, ...], shares: list[float]) -> dict[str, int]:
    return {
        group.name: group.step * max(1, round(share * len(group.importance)))
        for group, share in zip(groups, shares * len(groups), strict=False)
    }


@pytest.mark.parametrize("name", [*NETS, *FAMILIES])
def test_a_pruned_module_is_what_its_record_says_and_trains(name):
    net, inputs, channels = find_channels(name)
    assert channels.groups and not channels.not_prunable
    last = [path for path, module in net.named_modules() if hasattr(module, "weight")][-1]
    assert (last, "out") not in {m for group in channels.groups for m in group.members}
    before = copy.deepcopy(net.state_dict())
    for shares in ([0.2, 0.9, 0.5, 0.0, 0.7], [1.0, 0.3, 0.6]):
        counts = draw_counts(channels.groups, shares)
        pruned = prune_channels(net, channels.groups, counts)
        read = read_loaded_net("", LoadedNet(pruned, inputs, None))
        assert read == narrow_network(channels.network, channels.groups, counts)
    out = pruned.train()(inputs)
    assert out.shape == net(inputs).shape
    out.square().mean().backward()
    assert all(value.grad is not None for value in pruned.parameters())
    assert sum(p.numel() for p in pruned.parameters()) < sum(p.numel() for p in net.parameters())
    norms = ("running_mean", "running_var", "num_batches_tracked")
    for key, value in net.state_dict().items():
        assert key.endswith(norms) or torch.equal(before[key], value)


def test_zero_channels_are_removed_first_without_effect():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten())
    with torch.no_grad():
        for layer, axis in ((net[0], 0), (net[2], 1)):
            layer.weight.index_fill_(axis, torch.tensor([1, 4]), 0.0)
        net[0].bias[[1, 4]] = 0.0
    channels = find_channel_groups(net, IMAGES)
    groups = compute_importance(net, channels.groups)
    assert list_removed_channels(groups, {"0": 4})["0"]["out"] == [1, 4]
    assert torch.allclose(prune_channels(net, groups, {"0": 4})(IMAGES), net(IMAGES), atol=1e-6)


def test_importance_sums_to_one_and_taylor_needs_gradients():
    net, inputs, channels = find_channels("residual")
    fresh = copy.deepcopy(net)
    with pytest.raises(InputError, match="backward"):
        compute_importance(fresh, channels.groups, "taylor")
    run_backward(LoadedNet(fresh, inputs, None))
    for criterion in ("magnitude", "taylor"):
        for group in compute_importance(fresh, channels.groups, criterion):
            assert sum(group.importance) == pytest.approx(1.0)
            assert len(set(group.importance)) > 1


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_rejected_in_one_line(cell):
    with pytest.raises(NetError, match=f"{cell.__name__}.*cannot be pruned") as caught:
        find_channel_groups(nn.Sequential(cell(8, 8)), TOKENS)
    assert "\n" not in str(caught.value)


def return_cache(net: nn.Module, x: torch.Tensor):
    """Return what was computed before as well, or look at values, as language models do."""
    y = net.first(x)
    if net.config.use_cache:
        return net.last(F.relu(y)), y
    return net.last(F.relu(y)) * (1.0 if y.sum().item() else 0.0), None


def test_what_runs_on_the_meta_device_with_a_cache_alone_is_pruned():
    layers = {"first": nn.Linear(8, 6), "last": nn.Linear(6, 3)}
    net = MadeNet(return_cache, config=SimpleNamespace(use_cache=True), **layers)
    channels = find_channel_groups(net, TOKENS, lambda output: output[0].mean())
    assert [group.channels for group in channels.groups] == [6]
    assert net.config.use_cache


def chunk_channels(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    one, two = net.first(x).chunk(2, 1)
    return net.last(torch.cat([one, net.second(two)], 1).mean((2, 3)))


def test_unprunable_layers_are_reported_with_a_reason():
    convs = {"first": nn.Conv2d(3, 8, 1), "second": nn.Conv2d(4, 4, 1)}
    channels = find_channel_groups(MadeNet(chunk_channels, **convs, last=nn.Linear(8, 5)), IMAGES)
    assert not channels.groups
    assert channels.not_prunable and all(": " in line for line in channels.not_prunable)


def test_impossible_counts_are_rejected():
    net, _, channels = find_channels("grouped")
    group = next(one for one in channels.groups if one.step > 1)
    for counts in ({group.name: group.step + 1}, {group.name: 0}, {"nowhere": 4}):
        with pytest.raises(InputError):
            prune_channels(net, channels.groups, counts)
        with pytest.raises(InputError):
            narrow_network(channels.network, channels.groups, counts)


def test_saved_module_is_loaded_with_its_weights(tmp_path):
    net, inputs, channels = find_channels("vit")
    counts = draw_counts(channels.groups, [0.5])
    pruned = prune_channels(net, channels.groups, counts).eval()
    network = narrow_network(channels.network, channels.groups, counts)
    removed = list_removed_channels(channels.groups, counts)
    save_pruned(pruned, tmp_path, network=network, removed=removed, source="a module")
    again = load_pruned(tmp_path, net).eval()
    assert torch.equal(again(inputs), pruned(inputs))
    with pytest.raises(InputError, match="give the original module"):
        load_pruned(tmp_path)
    with pytest.raises(FileError, match="nowhere"):
        load_pruned(tmp_path / "nowhere")


NETWORK = make_family("lenet5:2,4,8,8")
REMOVED = {"0": {"out": [1]}, "1": {"in": [1]}}


def make_original():
    return nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3))


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a pruned module that names a callable."""
    pruned = nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 3))
    save_pruned(pruned, tmp_path, network=NETWORK, removed=REMOVED, source="evil.py:make")
    return tmp_path


def change(folder, **values):
    path = folder / ARCHITECTURE
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("name", ["{}/evil.py:make", "evil:make", "os:getcwd"])
def test_no_code_that_a_folder_names_is_run(folder, monkeypatch, name):
    (folder / "evil.py").write_text("import sys\nsys.was_run = True\ndef make(): return None")
    monkeypatch.chdir(folder)
    change(folder, net=name.format(folder))
    with pytest.raises(FileError, match=r"was pruned from .*: give the original module as net"):
        load_pruned(folder)
    assert load_pruned(folder, make_original())[0].out_features == 1
    assert not hasattr(sys, "was_run") and "evil" not in sys.modules


def test_a_built_network_needs_no_module(tmp_path):
    pruned = build_net(NETWORK)
    save_pruned(pruned, tmp_path, network=NETWORK, removed={})
    again = load_pruned(tmp_path)
    for old, new in zip(pruned.parameters(), again.parameters(), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize(
    "removed",
    [[], None, 7, {"0": []}, {"0": {"out": "x"}}, {"nowhere": {"out": [0]}}, {"forward": {"": []}}],
)
def test_damaged_channels_are_one_line(folder, removed):
    change(folder, removed=removed)
    with pytest.raises(FileError, match="cannot be rebuilt"):
        load_pruned(folder, make_original())


@pytest.mark.parametrize("file", [WEIGHTS, ARCHITECTURE])
@pytest.mark.parametrize(
    "data", [b"", b"x" * 100, b"\xff" * 8 + b"{}", b"[]", b"[" * 100_000, b'{"format": "other"}']
)
def test_damaged_files_are_one_line(folder, file, data):
    (folder / file).write_bytes(data)
    with pytest.raises(FileError, match="rebuilt" if file == WEIGHTS else "give a folder"):
        load_pruned(folder, make_original())
