"""Functions are read as operators with their work: indexing, experts, folded samples, blocks."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from joulecast.operators import layer_work, network_work
from joulecast.records import Device, Network, Setup
from joulecast.torch_nets.build import build_net
from joulecast.torch_nets.net_reader import read_net
from joulecast.torch_nets.runtime import TorchRuntime
from joulecast.torch_nets.tracer import replace_result
from joulecast.variants import (
    REPEATED,
    make_isolated_network,
    make_isolated_trial,
    split_blocks,
    split_network,
)
from torch_nets.made_net import MadeNet, find_layers, moved_bytes, step_flops


def recommend(net: nn.Module, dense: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
    """Take embeddings of categories, and the products of all pairs of them."""
    x = net.dense(dense)
    found = [table(categories[:, i : i + 1]) for i, table in enumerate(net.tables)]
    stacked = torch.stack([x, *found], dim=1)
    products = torch.bmm(stacked, stacked.transpose(1, 2))
    return net.top(torch.cat([x, products[:, net.rows, net.columns]], dim=1))


def test_recommendation_model_is_read_completely() -> None:
    """Reading embedding bags and indexing as elementwise left three quarters of the bytes."""
    rows, columns = torch.tril_indices(7, 7, -1)
    net = MadeNet(
        recommend,
        tables=nn.ModuleList(nn.EmbeddingBag(1000, 16) for _ in range(6)),
        dense=nn.Linear(4, 16),
        rows=rows.clone(),
        columns=columns.clone(),
        top=nn.Linear(16 + 21, 1),
    )
    network = read_net(net, (torch.randn(64, 4), torch.zeros(64, 6, dtype=torch.long)))
    assert len(find_layers(network, "embedding_bag")) == 6
    (index,) = find_layers(network, "index")
    assert [index.sizes[name] for name in ("shape", "out", "axes")] == [(7, 7), (21,), (0, 1)]
    assert moved_bytes(network, 64) == pytest.approx(network.totals.size_bytes, rel=0.05)
    assert network.totals.unattributed_params_share == 0.0
    work = layer_work(index, Setup(batch=64))
    assert work.backward.launches > work.forward.launches == 1


def assign(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, torch.arange(4)] = x[:, 4:]
    return y


def repeat_index(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(1, 4, 1, dtype=torch.long).expand(x.shape[0], 4, 16)


MOVES = {
    "gather": ("index", lambda x: x.gather(1, repeat_index(x))),
    "index_select": ("index", lambda x: x.index_select(1, torch.arange(4))),
    "rows": ("index", lambda x: x.flatten(0, 1)[torch.arange(16)].view(-1, 4, 16)),
    "topk": ("sort", lambda x: x.topk(3, dim=1).values),
    "sort": ("sort", lambda x: x.sort(dim=-1).values),
    "scatter": ("scatter", lambda x: torch.zeros_like(x).scatter_add(1, repeat_index(x), x[:, :4])),
    "index_add": (
        "scatter",
        lambda x: torch.zeros_like(x).index_add_(1, torch.arange(4), x[:, :4]),
    ),
}


def read_between(move: Callable[[torch.Tensor], torch.Tensor]) -> Network:
    """Return what is read from a function between two linear layers."""
    net = MadeNet(
        lambda net, x: net.last(move(net.first(x))), first=nn.Linear(8, 16), last=nn.Linear(16, 2)
    )
    return read_net(net, torch.randn(4, 8, 8))


@pytest.mark.parametrize("way", MOVES)
def test_moving_elements_is_a_layer_with_a_cost(way: str) -> None:
    kind, move = MOVES[way]
    network = read_between(move)
    (layer,) = find_layers(network, kind)
    work = layer_work(layer, Setup(batch=4))
    assert work.forward.size_bytes > 0
    assert work.backward.size_bytes > 0
    assert work.forward.launches and work.backward.launches
    assert not network.buildable


def test_assignment_to_elements_is_not_lost() -> None:
    assert read_between(assign).totals.unattributed_bytes_share < 0.02


def scan(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    gate, value = net.gate(x), net.value(x)
    state = torch.zeros_like(value[:, 0])
    for token in range(x.shape[1]):
        state = state * gate[:, token] + value[:, token]
    return state


def test_gradients_of_slices_are_counted_where_they_matter() -> None:
    net = MadeNet(scan, gate=nn.Linear(8, 32), value=nn.Linear(8, 32))
    network = read_net(net, torch.randn(4, 24, 8))
    assert len(find_layers(network, "slice")) == 2 * 24
    assert moved_bytes(network, 4) == pytest.approx(network.totals.size_bytes, rel=0.1)


def attend_in_one(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Take queries, keys and values out of one tensor."""
    qkv = net.project(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0) if net.way == "unbind" else (qkv[0], qkv[1], qkv[2])
    mixed = F.scaled_dot_product_attention(q, k, v)
    return net.last(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("way", "kind", "count"), [("index", "slice", 3), ("unbind", "copy", 1)])
def test_gradients_of_views_are_counted_where_they_matter(way, kind, count) -> None:
    net = MadeNet(attend_in_one, way=way, project=nn.Linear(8, 24), last=nn.Linear(8, 8))
    network = read_net(net, torch.randn(4, 64, 8))
    found = [layer for layer in network.layers if layer.kind.endswith(kind)]
    assert len(found) == count
    whole_bytes = 4 * 64 * 24 * 4
    works = [layer_work(layer, Setup(batch=4)) for layer in found]
    assert all(work.backward.size_bytes >= 2 * whole_bytes for work in works)
    assert all(work.forward.size_bytes == 0 for work in works)


class Experts(nn.Module):
    """A mixture with a stack of weights, by grouped products or in a loop over experts."""

    def __init__(self, way: str, experts: int = 4, top: int = 2) -> None:
        super().__init__()
        self.way, self.top, self.is_half = way, top, False
        self.router = nn.Linear(16, experts)
        self.weight = nn.Parameter(torch.randn(experts, 32, 16) / 4)
        self.head = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        scores, chosen = self.router(tokens).softmax(-1).topk(self.top, dim=-1)
        out = self._group(tokens, chosen) if self.way == "grouped" else self._loop(tokens, chosen)
        out = out.view(-1, self.top, 32) if self.way == "grouped" else out.unsqueeze(1)
        return self.head((out * scores.sum(-1).view(-1, 1, 1)).sum(1).view(x.shape[0], -1, 32))

    def _group(self, tokens: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        order = chosen.flatten().argsort()
        counts = F.one_hot(chosen.flatten(), self.weight.shape[0]).sum(0)
        offsets = counts.cumsum(0).to(torch.int32)
        rows = tokens[order // self.top]
        if self.is_half:
            rows, weight = rows.bfloat16(), self.weight.bfloat16()
            return torch._grouped_mm(rows, weight.transpose(1, 2), offs=offsets).float()
        return torch._grouped_mm(rows, self.weight.transpose(1, 2), offs=offsets)

    def _loop(self, tokens: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(tokens.shape[0], 32)
        for expert in range(self.weight.shape[0]):
            rows = (chosen == expert).any(-1).nonzero().flatten()
            out = out.index_add(0, rows, F.linear(tokens[rows], self.weight[expert]))
        return out


@pytest.mark.parametrize("way", ["grouped", "loop"])
@pytest.mark.parametrize("experts", [4, 8])
def test_experts_count_the_tokens_that_they_see(way: str, experts: int) -> None:
    """Twice as many experts compute no more: each token still sees two of them."""
    torch.manual_seed(0)
    net = Experts(way, experts)
    network = read_net(net, torch.randn(6, 16, 16))
    tokens = 6 * 16
    products = 2 * tokens * 2 * 16 * 32
    others = 2 * tokens * (16 * experts + 32 * 2)
    # The router is the first layer, so its input needs no gradient; nor does that of the experts.
    expected = 2 * products + 2 * 2 * tokens * 16 * experts + 3 * 2 * tokens * 32 * 2
    assert network.totals.flops == pytest.approx(expected, rel=1e-6)
    forward = network_work(network, Setup(batch=6)).forward.flops
    assert forward == pytest.approx(products + others, rel=0.03)
    assert step_flops(network, 6) == pytest.approx(expected, rel=0.03)
    assert network.totals.unattributed_params_share == 0.0
    notes = ["with 2 samples" in note for note in network.totals.notes]
    assert notes == ([True] if way == "loop" else [])


@pytest.mark.parametrize("is_half", [False, True])
def test_experts_by_grouped_products_are_one_layer(is_half: bool) -> None:
    """Autocast does not cast them, so modules do; the weights then belong to the cast."""
    net = Experts("grouped")
    net.is_half = is_half
    network = read_net(net, torch.randn(6, 16, 16))
    (layer,) = find_layers(network, "grouped_linear")
    sizes = {"cin": 16, "cout": 32, "experts": 4, "half": int(is_half), "lead": (32,)}
    assert dict(layer.sizes) == sizes
    assert layer.trains and layer.tied == is_half
    assert network.totals.unattributed_params_share == 0.0
    assert network.totals.unattributed_flops_share < 0.01


def test_gradient_of_one_expert_is_as_large_as_the_stack() -> None:
    """Each is padded with zeros to all experts, and added to that of the others."""
    torch.manual_seed(0)
    network = read_net(Experts("loop", 32), torch.randn(2, 64, 16))
    (stack,) = find_layers(network, "slice")
    params = 32 * 32 * 16
    assert (stack.sizes["params"], stack.trains, stack.tied) == (params, True, False)
    # All experts are updated, also those without tokens; nothing is updated twice.
    work = network_work(network, Setup(batch=2))
    assert work.params == network.totals.params
    assert moved_bytes(network, 2) == pytest.approx(network.totals.size_bytes, rel=0.06)
    one, many = (layer_work(stack, Setup(batch=batch)).backward.size_bytes for batch in (2, 8))
    assert one == pytest.approx(4 * 4 * params * stack.calls, rel=0.1)
    assert many == pytest.approx(one, rel=0.2)  # whatever the batch
    for placed in split_network(network):
        if placed.block.layers[0].kind == "slice":
            trial = make_isolated_trial(placed.block, Setup(batch=2, threads=1))
            TorchRuntime("cpu", Device("a-cpu")).prepare(trial).close()


def test_experts_without_tokens_are_not_missing() -> None:
    def choose(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return net.experts[int(x.sum() > -1e9)](x)

    net = MadeNet(choose, experts=nn.ModuleList(nn.Linear(8, 8) for _ in range(4)))
    network = read_net(net, torch.randn(2, 8))
    assert len(find_layers(network, "linear")) == 1 and network.totals.params == 4 * 72
    assert network.totals.unattributed_params_share == 0.0


@pytest.mark.parametrize(
    "multiply",
    [
        lambda x, w: torch.einsum("bki,kio->bko", x, w),
        lambda x, w: torch.einsum("kio,bki->bko", w, x),
        lambda x, w: torch.bmm(x.transpose(0, 1), w).transpose(0, 1),
        lambda x, w: torch.bmm(w.mT, x.permute(1, 2, 0)).permute(2, 0, 1),
        lambda x, w: torch.baddbmm(torch.zeros(1), x.transpose(0, 1), w).transpose(0, 1),
        lambda x, w: (x.unsqueeze(-2) @ w).squeeze(-2),
    ],
)
@pytest.mark.parametrize(("members", "cin", "cout"), [(4, 5, 3), (3, 4, 4), (1, 5, 3)])
def test_weights_of_an_ensemble_belong_to_their_product(multiply, members, cin, cout) -> None:
    """Those of all members but one belonged to no layer."""
    weight = nn.Parameter(torch.randn(members, cin, cout))
    net = MadeNet(lambda net, x: multiply(net.first(x), net.weight), weight=weight)
    net.first = nn.Linear(cin, cin)
    network = read_net(net, torch.randn(24, members, cin))
    assert network_work(network, Setup(batch=24)).params == network.totals.params
    assert step_flops(network, 24) == network.totals.flops
    if members > 1:
        (layer,) = find_layers(network, "grouped_linear")
        sizes = {"cin": cin, "cout": cout, "lead": (members,), "experts": members, "half": 1}
        assert dict(layer.sizes) == sizes
        trial = make_isolated_trial(split_network(network)[-1].block, Setup(batch=24, threads=1))
        TorchRuntime("cpu", Device("a-cpu")).prepare(trial).close()


SAMPLES, FRAMES = 3, 5


def read_samples(net: nn.Module, *shape: int) -> Network:
    """Return what is read from a module whose layers describe all FLOPs."""
    network = read_net(net, torch.randn(SAMPLES, *shape))
    assert step_flops(network, SAMPLES) == pytest.approx(network.totals.flops, rel=0.02)
    return network


def convolve_frames(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Fold the frames of a video into the batch."""
    features = net.body(x.flatten(0, 1)).mean((2, 3))
    return net.head(features.view(len(x), FRAMES, 4).mean(1))


def test_frames_in_the_batch_are_counted_in_one_call():
    convs = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 2, 2))
    net = MadeNet(convolve_frames, body=nn.Sequential(*convs), head=nn.Linear(4, 2))
    network = read_samples(net, FRAMES, 3, 8, 8)
    assert network.layers[0].sizes["space"] == (FRAMES * 8, 8)
    assert {layer.calls for layer in network.layers} == {1}


def attend_inside(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Attend inside each of several sequences of a sample."""
    each = x.flatten(0, 1)
    return net.attention(each, each, each, need_weights=False)[0]


def test_sequences_in_the_batch_of_attention_are_windows_and_run_alone():
    net = MadeNet(attend_inside, attention=nn.MultiheadAttention(16, 4, batch_first=True))
    network = read_samples(net, FRAMES, 7, 16)
    (layer,) = find_layers(network, "attention")
    assert layer.sizes["windows"] == FRAMES
    blocks = [place.block for place in split_network(network)]
    (block,) = (one for one in blocks if one.layers[0].kind == "attention")
    alone = make_isolated_network(block)
    built, x = build_net(alone), torch.randn(SAMPLES, *alone.input.shape)
    out = built(x)
    assert out.shape == (SAMPLES, FRAMES, 7, 16)
    x[:, 0] = 0.0
    torch.testing.assert_close(built(x)[:, 1:], out[:, 1:])


def test_matrix_that_all_samples_share_is_a_weight_without_update():
    """Similarities of every sample with all others are such a product."""
    towers = {"query": nn.Linear(8, 6), "key": nn.Linear(8, 6)}
    network = read_samples(MadeNet(lambda net, x: net.query(x) @ net.key(x).T, **towers), 8)
    product = network.layers[-1]
    assert (product.kind, product.sizes["cin"], product.sizes["cout"]) == ("linear", 6, SAMPLES)
    assert product.tied and product.trains and product.input_grad
    assert not layer_work(product, Setup(SAMPLES)).update.size_bytes
    assert moved_bytes(network, SAMPLES) == pytest.approx(network.totals.size_bytes, rel=0.2)


def test_fixed_matrix_gets_no_gradient():
    head, matrix = nn.Linear(32, 2), torch.randn(8, 32)
    net = MadeNet(lambda net, x: net.head(torch.sin(x @ net.matrix)), head=head, matrix=matrix)
    product = read_samples(net, 8).layers[0]
    assert product.kind == "linear" and not product.trains


TWO = Setup(batch=2, optimizer="adamw")
WIDTH, HEADS, ROW = 32, 4, 8


class RotaryAttention(nn.Module):
    """Decoder attention with rotary embeddings and shared key-value heads."""

    def __init__(self, kv_heads):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH // HEADS * kv_heads)
        self.value = nn.Linear(WIDTH, WIDTH // HEADS * kv_heads)
        self.out = nn.Linear(WIDTH, WIDTH)

    def rotate(self, x):
        x = x.view(*x.shape[:2], -1, WIDTH // HEADS).transpose(1, 2)
        half = x.shape[-1] // 2
        return x * 0.9 + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * 0.1

    def forward(self, x):
        inner = self.norm(x)
        value = self.value(inner).view(*x.shape[:2], -1, WIDTH // HEADS).transpose(1, 2)
        query, key = self.rotate(self.query(inner)), self.rotate(self.key(inner))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


class WindowAttention(nn.Module):
    """Window attention with a learnt position bias, written with matrix products."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.bias = nn.Parameter(torch.randn(10, HEADS))
        self.register_buffer("positions", torch.arange(ROW * ROW // 4) % 10)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        windows = self.norm(x).reshape(-1, ROW // 2, WIDTH)
        mixed = self.mix(windows).reshape(*windows.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = mixed[0] * 0.3 @ mixed[1].transpose(-2, -1)
        bias = self.bias[self.positions].view(ROW // 2, ROW // 2, HEADS).permute(2, 0, 1)
        result = (scores + bias.contiguous().unsqueeze(0)).softmax(-1) @ mixed[2]
        return x + self.out(result.transpose(1, 2).reshape(windows.shape)).view(x.shape)


def make_patch_merging() -> nn.Module:
    """Concatenate neighbours along the last axis, as between stages of a Swin Transformer."""
    linears = {"halve": nn.Linear(2 * WIDTH, WIDTH), "again": nn.Linear(WIDTH, WIDTH)}
    return MadeNet(
        lambda net, x: x + net.again(F.gelu(net.halve(torch.cat((x, x.flip(1)), dim=2)))), **linears
    )


@pytest.mark.parametrize(
    "make",
    [lambda: RotaryAttention(2), lambda: RotaryAttention(4), WindowAttention, make_patch_merging],
)
def test_repeated_block_runs_alone_with_the_same_flops(make):
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), make(), make(), nn.Linear(WIDTH, 5))
    network = read_net(net, torch.randn(2, ROW, WIDTH))
    blocks = [place.block for place in split_blocks(network) if place.block.role == REPEATED]
    assert len(blocks) == 2
    trial = make_isolated_trial(blocks[0], TWO)
    step = TorchRuntime("cpu", Device("here")).prepare(trial)
    inner = step.replicas[0].net
    again = read_net(inner, step.replicas[0].inputs)
    step.close()
    alone = sum(layer_work(layer, TWO).total.flops for layer in again.layers)
    assert alone == sum(layer_work(layer, TWO).total.flops for layer in blocks[0].layers)


GROUPED = torch.ops.aten._grouped_mm.default


@pytest.mark.parametrize(
    ("left", "right", "out"),
    [
        ((10, 8), (4, 8, 6), (10, 6)),
        ((4, 6, 8), (8, 10), (6, 10)),
        ((6, 10), (10, 8), (4, 6, 8)),
        ((4, 5, 8), (4, 8, 6), (4, 5, 6)),
    ],
)
def test_grouped_products_of_fake_tensors_have_a_shape(
    left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]
) -> None:
    with FakeTensorMode():
        offsets = torch.zeros(4, dtype=torch.int32)
        args = (torch.zeros(left), torch.zeros(right))
        made = replace_result(GROUPED, args, {"offs": offsets})
    assert tuple(made.shape) == out


def test_random_scalars_are_typical_and_can_be_compared() -> None:
    rand = torch.ops.aten.rand.default
    assert replace_result(rand, ([],), {}) == 0.5
    assert replace_result(rand, ([3],), {}) is None
    with FakeTensorMode():
        drawn = replace_result(rand, ([],), {"device": torch.device("cpu")})
        assert not drawn < 0.1
