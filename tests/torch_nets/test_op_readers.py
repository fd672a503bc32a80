"""Functions are read as operators with their work: indexing, experts, folded samples, blocks."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from joulecast.operators import layer_work, network_work
from joulecast.records import Device, Layer, Network, Setup, StepTotals
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


def find_layers(network: Network, kind: str) -> list[Layer]:
    return [layer for layer in network.layers if layer.kind == kind]


def read_parts(network: Network, batch: int) -> tuple[float, StepTotals]:
    """Return the bytes of the layers' formulas, and the independent count."""
    work = network_work(network, Setup(batch=batch))
    assert network.totals is not None
    return work.forward.size_bytes + work.backward.size_bytes, network.totals


class Dlrm(nn.Module):
    """Embeddings of categories, pairwise products, and a perceptron."""

    def __init__(self, tables: int = 6, rows: int = 1000, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width) for _ in range(tables))
        self.dense = nn.Linear(4, width)
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("rows", pairs[0].clone())
        self.register_buffer("columns", pairs[1].clone())
        self.top = nn.Linear(width + pairs.shape[1], 1)

    def forward(self, dense: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        x = self.dense(dense)
        found = [table(categories[:, i : i + 1]) for i, table in enumerate(self.tables)]
        stacked = torch.stack([x, *found], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.rows, self.columns]], dim=1))


def test_recommendation_model_is_read_completely() -> None:
    """Reading embedding bags and indexing as elementwise left three quarters of the bytes."""
    inputs = (torch.randn(64, 4), torch.zeros(64, 6, dtype=torch.long))
    network = read_net(Dlrm(), inputs)
    formula, totals = read_parts(network, 64)
    assert len(find_layers(network, "embedding_bag")) == 6
    (index,) = find_layers(network, "index")
    assert index.sizes["shape"] == (7, 7)
    assert index.sizes["out"] == (21,)
    assert index.sizes["axes"] == (0, 1)
    assert formula == pytest.approx(totals.size_bytes, rel=0.05)
    assert totals.unattributed_params_share == 0.0


def test_gradient_of_indexing_takes_several_kernels() -> None:
    network = read_net(Dlrm(), (torch.randn(8, 4), torch.zeros(8, 6, dtype=torch.long)))
    (index,) = find_layers(network, "index")
    work = layer_work(index, Setup(batch=8))
    assert work.backward.launches > work.forward.launches == 1


class Glue(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        index = torch.zeros(1, 4, 1, dtype=torch.long).expand(x.shape[0], 4, 16)
        if self.way == "gather":
            x = x.gather(1, index)
        elif self.way == "index_select":
            x = x.index_select(1, torch.arange(4))
        elif self.way == "topk":
            x = x.topk(3, dim=1).values
        elif self.way == "sort":
            x = x.sort(dim=-1).values
        elif self.way == "scatter":
            x = torch.zeros_like(x).scatter_add(1, index, x[:, :4])
        elif self.way == "index_add":
            x = torch.zeros_like(x).index_add_(1, torch.arange(4), x[:, :4])
        elif self.way == "setitem":
            y = x.clone()
            y[:, torch.arange(4)] = x[:, 4:]
            x = y
        elif self.way == "rows":
            x = x.flatten(0, 1)[torch.arange(16)].view(-1, 4, 16)
        return self.last(x.mean(1) if self.way != "rows" else x)


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        ("gather", "index"),
        ("index_select", "index"),
        ("rows", "index"),
        ("topk", "sort"),
        ("sort", "sort"),
        ("scatter", "scatter"),
        ("index_add", "scatter"),
    ],
)
def test_moving_elements_is_a_layer_with_a_cost(way: str, kind: str) -> None:
    network = read_net(Glue(way), torch.randn(4, 8, 8))
    (layer,) = find_layers(network, kind)
    work = layer_work(layer, Setup(batch=4))
    assert work.forward.size_bytes > 0
    assert work.backward.size_bytes > 0
    assert work.forward.launches and work.backward.launches
    assert not network.buildable


def test_assignment_to_elements_is_not_lost() -> None:
    network = read_net(Glue("setitem"), torch.randn(4, 8, 8))
    assert network.totals is not None
    assert network.totals.unattributed_bytes_share < 0.02


class Scan(nn.Module):
    """A recurrence that slices every token of two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(8, 32), nn.Linear(8, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.gate(x), self.value(x)
        state = torch.zeros_like(value[:, 0])
        for token in range(x.shape[1]):
            state = state * gate[:, token] + value[:, token]
        return state


def test_gradients_of_slices_are_counted_where_they_matter() -> None:
    network = read_net(Scan(), torch.randn(4, 24, 8))
    formula, totals = read_parts(network, 4)
    assert len(find_layers(network, "slice")) == 2 * 24
    assert formula == pytest.approx(totals.size_bytes, rel=0.1)


class FusedProjection(nn.Module):
    """Attention that takes queries, keys and values out of one tensor."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.project, self.last = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.project(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0) if self.way == "unbind" else (qkv[0], qkv[1], qkv[2])
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.last(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("way", "kind", "count"), [("index", "slice", 3), ("unbind", "copy", 1)])
def test_gradients_of_views_are_counted_where_they_matter(way, kind, count) -> None:
    network = read_net(FusedProjection(way), torch.randn(4, 64, 8))
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
    formula = network_work(network, Setup(batch=6))
    tokens = 6 * 16
    products = 2 * tokens * 2 * 16 * 32
    others = 2 * tokens * (16 * experts + 32 * 2)
    # The router is the first layer, so its input needs no gradient; nor does that of the experts.
    expected = 2 * products + 2 * 2 * tokens * 16 * experts + 3 * 2 * tokens * 32 * 2
    assert network.totals is not None
    assert network.totals.flops == pytest.approx(expected, rel=1e-6)
    assert formula.forward.flops == pytest.approx(products + others, rel=0.03)
    assert formula.forward.flops + formula.backward.flops == pytest.approx(expected, rel=0.03)
    assert network.totals.unattributed_params_share == 0.0


def test_experts_by_grouped_products_are_one_layer() -> None:
    network = read_net(Experts("grouped"), torch.randn(6, 16, 16))
    (layer,) = find_layers(network, "grouped_linear")
    assert dict(layer.sizes) == {"cin": 16, "cout": 32, "experts": 4, "half": 0, "lead": (32,)}
    assert layer.trains
    assert network.totals is not None and network.totals.notes == ()


def test_experts_that_are_cast_to_half_precision_stay_one_layer() -> None:
    """Autocast does not cast them, so modules do; the weights belong to the cast."""
    net = Experts("grouped")
    net.is_half = True
    network = read_net(net, torch.randn(6, 16, 16))
    (layer,) = find_layers(network, "grouped_linear")
    assert layer.sizes["half"] == 1
    assert layer.trains and layer.tied
    assert network.totals is not None
    assert network.totals.unattributed_params_share == 0.0
    assert network.totals.unattributed_flops_share < 0.01


def test_loop_over_experts_is_traced_with_two_samples() -> None:
    torch.manual_seed(0)
    network = read_net(Experts("loop"), torch.randn(6, 16, 16))
    assert network.totals is not None
    assert ["with 2 samples" in note for note in network.totals.notes] == [True]


SAMPLES, FRAMES = 3, 5
THREE = Setup(SAMPLES)


def flops_share(network: Network) -> float:
    """Return the FLOPs of the layers over those that were traced."""
    assert network.totals is not None
    works = [layer_work(layer, THREE) for layer in network.layers]
    return sum(one.forward.flops + one.backward.flops for one in works) / network.totals.flops


def bytes_share(network: Network) -> float:
    assert network.totals is not None
    works = [layer_work(layer, THREE) for layer in network.layers]
    moved = sum(one.forward.size_bytes + one.backward.size_bytes for one in works)
    return moved / network.totals.size_bytes


class Frames(nn.Module):
    """Convolutions over frames that are folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 2, 2)
        )
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(x.flatten(0, 1)).mean((2, 3))
        return self.head(features.view(len(x), FRAMES, 4).mean(1))


def test_frames_in_the_batch_are_counted_in_one_call():
    network = read_net(Frames(), torch.randn(SAMPLES, FRAMES, 3, 8, 8))
    first = network.layers[0]
    assert first.sizes["space"] == (FRAMES * 8, 8)
    assert {layer.calls for layer in network.layers} == {1}
    assert flops_share(network) == pytest.approx(1.0, abs=0.02)


class Channels(nn.Module):
    """Attention inside each of several sequences of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        each = x.flatten(0, 1)
        return self.attention(each, each, each, need_weights=False)[0]


def test_sequences_in_the_batch_of_attention_are_windows():
    network = read_net(Channels(), torch.randn(SAMPLES, FRAMES, 7, 16))
    (layer,) = (one for one in network.layers if one.kind == "attention")
    assert layer.sizes["windows"] == FRAMES
    assert flops_share(network) == pytest.approx(1.0, abs=0.02)


def run_alone(network: Network, layer: Layer) -> torch.Tensor:
    part = next(
        one.block for one in split_network(network) if one.block.layers[0].kind == layer.kind
    )
    alone = make_isolated_network(part)
    out: torch.Tensor = build_net(alone)(torch.randn(SAMPLES, *alone.input.shape))
    return out


def test_windowed_attention_runs_alone():
    network = read_net(Channels(), torch.randn(SAMPLES, FRAMES, 7, 16))
    (layer,) = (one for one in network.layers if one.kind == "attention")
    assert run_alone(network, layer).shape == (SAMPLES, FRAMES, 7, 16)


class Towers(nn.Module):
    """Similarities of every sample with all others."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 6), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.query(x) @ self.key(x).T


def test_matrix_that_all_samples_share_is_a_weight_without_update():
    inputs = torch.randn(SAMPLES, 8)
    network = read_net(Towers(), inputs)
    product = network.layers[-1]
    assert (product.kind, product.sizes["cin"], product.sizes["cout"]) == ("linear", 6, SAMPLES)
    assert product.tied and product.trains and product.input_grad
    assert not layer_work(product, THREE).update.size_bytes
    assert flops_share(network) == pytest.approx(1.0, abs=0.02)
    assert bytes_share(network) == pytest.approx(1.0, abs=0.2)


class FourierFeatures(nn.Module):
    """A product with a matrix that is not learned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.randn(8, 32))
        self.head = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.sin(x @ self.matrix))


def test_fixed_matrix_gets_no_gradient():
    network = read_net(FourierFeatures(), torch.randn(SAMPLES, 8))
    product = network.layers[0]
    assert product.kind == "linear"
    assert not product.trains
    assert flops_share(network) == pytest.approx(1.0, abs=0.02)


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


class PatchMerging(nn.Module):
    """Concatenates neighbours along the last axis, as between stages of a Swin Transformer."""

    def __init__(self):
        super().__init__()
        self.halve = nn.Linear(2 * WIDTH, WIDTH)
        self.again = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        pairs = torch.cat((x, x.flip(1)), dim=2)
        return x + self.again(F.gelu(self.halve(pairs)))


@pytest.mark.parametrize(
    "make", [lambda: RotaryAttention(2), lambda: RotaryAttention(4), WindowAttention, PatchMerging]
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
