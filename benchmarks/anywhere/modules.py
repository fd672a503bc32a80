"""Networks of the third test that no library has, written as people write them.

They are as they were measured. Four more, and the hand-written networks of the first two tests, are
in git (``benchmarks/anywhere`` of commit 334f793); what Joulecast read of all is in ``results/``.
"""

from __future__ import annotations

import copy
import itertools
import math
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.anywhere.truth import TrainingExample, take_loss, take_second

# ---------------------------------------------------------------------------------------------
# Shared blocks


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embeddings to (batch, heads, tokens, head width)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class SwiGlu(nn.Module):
    """A gated MLP."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class LoraLinear(nn.Module):
    """A frozen linear layer with a trained low-rank update."""

    def __init__(self, base: nn.Linear, rank: int = 16, scale: float = 2.0) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.dropout = nn.Dropout(0.05)
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.scale * self.lora_b(self.lora_a(self.dropout(x)))
        return out


def embed_times(times: Tensor, width: int) -> Tensor:
    """Return sinusoidal embeddings of diffusion times."""
    half = width // 2
    rates = torch.exp(-math.log(10000.0) * torch.arange(half, device=times.device) / half)
    angles = times.float()[:, None] * rates
    return torch.cat((angles.cos(), angles.sin()), dim=1)


class TimedResidual(nn.Module):
    """A residual block of two convolutions that is shifted by the time embedding."""

    def __init__(self, cin: int, cout: int, embedding: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.time = nn.Linear(embedding, cout)
        self.norm2, self.conv2 = nn.GroupNorm(32, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        out: Tensor = self.skip(x) + self.conv2(F.silu(self.norm2(h)))
        return out


# ---------------------------------------------------------------------------------------------
# Language


class LatentAttention(nn.Module):
    """Causal attention whose queries, keys and values come from short codes, as in DeepSeek.

    Only a part of each query and key is rotated; the rotated part of the keys is shared by all
    heads. Values are padded to the width of the keys, so that the fast kernels can be used.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, heads: int, context: int, plain: int = 64) -> None:
        super().__init__()
        self.heads, self.plain, self.turned = heads, plain, plain // 2
        self.code_q, self.code_kv = width // 2, width // 4
        self.down_q = nn.Linear(width, self.code_q, bias=False)
        self.norm_q, self.norm_kv = nn.RMSNorm(self.code_q), nn.RMSNorm(self.code_kv)
        self.up_q = nn.Linear(self.code_q, heads * (plain + self.turned), bias=False)
        self.down_kv = nn.Linear(width, self.code_kv + self.turned, bias=False)
        self.up_kv = nn.Linear(self.code_kv, heads * 2 * plain, bias=False)
        self.out = nn.Linear(heads * plain, width, bias=False)
        rates = 10000.0 ** (-torch.arange(0, self.turned, 2) / self.turned)
        angles = torch.outer(torch.arange(context).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        shape = (batch, tokens, self.heads, -1)
        q = self.up_q(self.norm_q(self.down_q(x))).view(shape).transpose(1, 2)
        q, q_turned = q.split([self.plain, self.turned], dim=-1)
        code, k_turned = self.down_kv(x).split([self.code_kv, self.turned], dim=-1)
        k, v = self.up_kv(self.norm_kv(code)).view(shape).transpose(1, 2).chunk(2, dim=-1)
        cos, sin = self.cos[:tokens].to(k.dtype), self.sin[:tokens].to(k.dtype)
        q_turned = rotate(q_turned, cos, sin)
        k_turned = rotate(k_turned.unsqueeze(1), cos, sin).expand(-1, self.heads, -1, -1)
        q, k = torch.cat((q, q_turned), dim=-1), torch.cat((k, k_turned), dim=-1)
        y = F.scaled_dot_product_attention(q, k, F.pad(v, (0, self.turned)), is_causal=True)
        y = y[..., : self.plain].transpose(1, 2).reshape(batch, tokens, -1)
        out: Tensor = self.out(y)
        return out


class LatentBlock(nn.Module):
    """Attention on short codes and a gated MLP, each after an RMS norm."""

    def __init__(self, width: int, heads: int, context: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = LatentAttention(width, heads, context)
        self.mlp = SwiGlu(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


def make_latent_attention(batch: int) -> TrainingExample:
    """Return a decoder of 12 layers, 1,024 wide with 16 heads, for 1,024 tokens."""
    width, tokens, vocab = 1024, 1024, 50304
    net = nn.Sequential(
        nn.Embedding(vocab, width),
        *(LatentBlock(width, 16, tokens, hidden=2816) for _ in range(12)),
        nn.RMSNorm(width),
        nn.Linear(width, vocab, bias=False),
    )
    return TrainingExample(net, torch.randint(0, vocab, (batch, tokens)))


def sum_segments(x: Tensor) -> Tensor:
    """Return the sums of x from each place to each later one, minus infinity before it."""
    total = x.cumsum(dim=-1)
    sums = total.unsqueeze(-1) - total.unsqueeze(-2)
    later = torch.ones(sums.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return sums.masked_fill(later, float("-inf"))


def scan_states(x: Tensor, decay: Tensor, b: Tensor, c: Tensor, chunk: int) -> Tensor:
    """Run the recurrence of Mamba-2 by products of matrices within and between chunks.

    Args:
        x: Inputs (batch, tokens, heads, width of a head).
        decay: Logarithm of each step's decay (batch, tokens, heads).
        b: What is written to the states (batch, tokens, size of a state).
        c: What is read from them, of the same shape.
        chunk: Tokens of a chunk.
    """
    batch, tokens, heads, width = x.shape
    b, c = (one.view(batch, -1, 1, chunk, one.shape[-1]) for one in (b, c))
    x = x.view(batch, -1, chunk, heads, width).transpose(2, 3)
    decay = decay.view(batch, -1, chunk, heads).transpose(2, 3)
    total = decay.cumsum(dim=-1)
    inner = (c @ b.transpose(-1, -2) * torch.exp(sum_segments(decay))) @ x
    to_end = torch.exp(total[..., -1:] - total).unsqueeze(-1)
    states = (x * to_end).transpose(-1, -2) @ b
    # The state before each chunk: all earlier ones, each decayed by the chunks in between.
    between = sum_segments(F.pad(total[..., -1].transpose(1, 2), (1, 0)))[..., :-1, :-1]
    before = F.pad(states, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1].transpose(1, 2)
    before = (torch.exp(between) @ before.flatten(3)).view(before.shape).transpose(1, 2)
    outer = (c @ before.transpose(-1, -2)) * torch.exp(total).unsqueeze(-1)
    return (inner + outer).transpose(2, 3).reshape(batch, tokens, heads, width)


class StateSpaceBlock(nn.Module):
    """A block of Mamba-2 in plain PyTorch: one projection, a short convolution, the scan."""

    def __init__(self, width: int, state: int, head_dim: int = 64, chunk: int = 128) -> None:
        super().__init__()
        self.inner, self.state, self.chunk = 2 * width, state, chunk
        self.heads, self.head_dim = self.inner // head_dim, head_dim
        mixed = self.inner + 2 * state
        self.norm = nn.RMSNorm(width)
        self.in_proj = nn.Linear(width, self.inner + mixed + self.heads, bias=False)
        self.conv = nn.Conv1d(mixed, mixed, 4, padding=3, groups=mixed)
        self.dt_bias = nn.Parameter(torch.empty(self.heads).uniform_(-6.9, -2.3))
        self.a_log = nn.Parameter(torch.empty(self.heads).uniform_(1.0, 16.0).log())
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.gate_norm = nn.RMSNorm(self.inner)
        self.out_proj = nn.Linear(self.inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        sizes = [self.inner, self.inner + 2 * self.state, self.heads]
        gate, mixed, dt = self.in_proj(self.norm(x)).split(sizes, dim=-1)
        mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., :tokens].transpose(1, 2))
        inputs, b, c = mixed.split([self.inner, self.state, self.state], dim=-1)
        dt = F.softplus(dt.float() + self.dt_bias)
        inputs = inputs.reshape(batch, tokens, self.heads, self.head_dim)
        scaled = inputs * dt.unsqueeze(-1)
        y = scan_states(scaled, -dt * self.a_log.exp(), b, c, self.chunk)
        y = (y + inputs * self.skip.unsqueeze(-1)).reshape(batch, tokens, self.inner)
        out: Tensor = x + self.out_proj(self.gate_norm(y * F.silu(gate)))
        return out


def make_state_space(batch: int) -> TrainingExample:
    """Return a Mamba-2 of 16 layers, 768 wide with states of 64, for 1,024 tokens."""
    width, vocab = 768, 50280
    net = nn.Sequential(
        nn.Embedding(vocab, width),
        *(StateSpaceBlock(width, state=64) for _ in range(16)),
        nn.RMSNorm(width),
        nn.Linear(width, vocab, bias=False),
    )
    return TrainingExample(net, torch.randint(0, vocab, (batch, 1024)))


def make_qwen_lora(batch: int) -> TrainingExample:
    """Return half of a frozen Qwen2.5 1.5B with LoRA on all linear layers of its blocks."""
    library: Any = import_module("transformers")

    config = library.Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=14,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        use_cache=False,
    )
    net = library.Qwen2ForCausalLM(config)
    net.requires_grad_(False)
    for layer in net.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, linear in list(part.named_children()):
                if isinstance(linear, nn.Linear):
                    setattr(part, name, LoraLinear(linear))
    ids = torch.randint(0, config.vocab_size, (batch, 1024))
    return TrainingExample(net, {"input_ids": ids, "labels": ids.clone()}, take_loss)


# ---------------------------------------------------------------------------------------------
# Speech, series, fields, tables, graphs, control


class ConvReluNorm(nn.Sequential):
    """A convolution over time with ReLU and batch norm."""

    def __init__(self, cin: int, cout: int, kernel: int = 1, dilation: int = 1) -> None:
        padding = dilation * (kernel - 1) // 2
        super().__init__(
            nn.Conv1d(cin, cout, kernel, padding=padding, dilation=dilation),
            nn.ReLU(),
            nn.BatchNorm1d(cout),
        )


class SpeakerBlock(nn.Module):
    """Dilated convolutions in a chain of eight groups of channels, then squeeze and excite."""

    def __init__(self, width: int, dilation: int, scale: int = 8) -> None:
        super().__init__()
        self.scale, part = scale, width // scale
        self.first, self.last = ConvReluNorm(width, width), ConvReluNorm(width, width)
        self.chain = nn.ModuleList(ConvReluNorm(part, part, 3, dilation) for _ in range(scale - 1))
        self.excite = nn.Sequential(
            nn.Conv1d(width, 128, 1), nn.ReLU(), nn.Conv1d(128, width, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        start, *rest = self.first(x).chunk(self.scale, dim=1)
        parts = [start]
        for number, (layer, part) in enumerate(zip(self.chain, rest, strict=True)):
            parts.append(layer(part + parts[-1] if number else part))
        y = self.last(torch.cat(parts, dim=1))
        return x + y * self.excite(y.mean(dim=2, keepdim=True))


class SpeakerEncoder(nn.Module):
    """Embeddings of speakers with attentive statistics and a margin, like ECAPA-TDNN."""

    def __init__(self, bins: int, width: int, speakers: int) -> None:
        super().__init__()
        self.first = ConvReluNorm(bins, width, 5)
        self.blocks = nn.ModuleList(SpeakerBlock(width, dilation) for dilation in (2, 3, 4))
        self.join = nn.Sequential(nn.Conv1d(3 * width, 1536, 1), nn.ReLU())
        self.attend = nn.Sequential(ConvReluNorm(3 * 1536, 128), nn.Tanh(), nn.Conv1d(128, 1536, 1))
        self.embed = nn.Sequential(
            nn.BatchNorm1d(2 * 1536), nn.Linear(2 * 1536, 192), nn.BatchNorm1d(192)
        )
        self.speakers = nn.Parameter(0.01 * torch.randn(speakers, 192))

    def forward(self, bins: Tensor, labels: Tensor) -> Tensor:
        x, found = self.first(bins), []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        x = self.join(torch.cat(found, dim=1))
        mean, deviation = (one.unsqueeze(2).expand_as(x) for one in (x.mean(2), x.std(2)))
        weights = self.attend(torch.cat((x, mean, deviation), dim=1)).softmax(dim=2)
        mean = (weights * x).sum(dim=2)
        variance = (weights * x.square()).sum(dim=2) - mean.square()
        code = self.embed(torch.cat((mean, variance.clamp(min=1e-4).sqrt()), dim=1))
        cosines = F.linear(F.normalize(code), F.normalize(self.speakers)).float()
        own = cosines.gather(1, labels.unsqueeze(1)).clamp(-0.9999, 0.9999)
        return 30.0 * cosines.scatter(1, labels.unsqueeze(1), torch.cos(torch.acos(own) + 0.2))


def make_speaker_encoder(batch: int) -> TrainingExample:
    """Return an ECAPA-TDNN for 5,994 speakers and 3 s of speech."""
    labels = torch.randint(0, 5994, (batch,))
    inputs = (torch.randn(batch, 80, 300), labels)
    net = SpeakerEncoder(80, width=1024, speakers=5994)
    return TrainingExample(net, inputs, lambda logits: F.cross_entropy(logits, labels))


class GatedResidual(nn.Module):
    """Two linear layers, a gate, and a norm around them."""

    def __init__(self, cin: int, width: int, cout: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(cin, width), nn.ELU(), nn.Linear(width, width), nn.Dropout(0.1),
            nn.Linear(width, 2 * cout), nn.GLU(),
        )  # fmt: skip
        self.skip = nn.Linear(cin, cout) if cin != cout else nn.Identity()
        self.norm = nn.LayerNorm(cout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.skip(x) + self.layers(x))
        return out


class VariableChoice(nn.Module):
    """A weighted sum of the embeddings of variables, each transformed by its own layers."""

    def __init__(self, variables: int, width: int) -> None:
        super().__init__()
        self.embeds = nn.ModuleList(nn.Linear(1, width) for _ in range(variables))
        self.own = nn.ModuleList(GatedResidual(width, width, width) for _ in range(variables))
        self.weigh = GatedResidual(variables * width, width, variables)

    def forward(self, x: Tensor) -> Tensor:
        parts = [embed(x[..., at : at + 1]) for at, embed in enumerate(self.embeds)]
        weights = self.weigh(torch.cat(parts, dim=-1)).softmax(dim=-1)
        own = [layers(part) for layers, part in zip(self.own, parts, strict=True)]
        return (torch.stack(own, dim=-1) * weights.unsqueeze(-2)).sum(dim=-1)


class FusionForecaster(nn.Module):
    """Chosen variables, LSTMs, attention and quantiles, like the Temporal Fusion Transformer."""

    def __init__(self, past: int, future: int, width: int) -> None:
        super().__init__()
        self.choose_past, self.choose_future = (
            VariableChoice(count, width) for count in (past, future)
        )
        self.encoder = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.LSTM(width, width, batch_first=True)
        self.gate = nn.Sequential(nn.Linear(width, 2 * width), nn.GLU())
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.enrich, self.after = (GatedResidual(width, width, width) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.output = nn.Linear(width, 3)

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        known, coming = self.choose_past(past), self.choose_future(future)
        read, state = self.encoder(known)
        written, _ = self.decoder(coming, state)
        x = torch.cat((known, coming), dim=1)
        x = self.enrich(self.norm1(x + self.gate(torch.cat((read, written), dim=1))))
        steps, start = x.shape[1], past.shape[1]
        later = torch.ones(steps, steps, dtype=torch.bool, device=x.device).triu(1)[start:]
        y, _ = self.attention(x[:, start:], x, x, attn_mask=later)
        quantiles: Tensor = self.output(self.after(self.norm2(x[:, start:] + y)))
        return quantiles


def make_fusion_forecaster(batch: int) -> TrainingExample:
    """Return a Temporal Fusion Transformer for 168 past and 24 future hours of demand."""
    wanted, levels = torch.randn(batch, 24, 1), torch.tensor([0.1, 0.5, 0.9])

    def loss(quantiles: Tensor) -> Tensor:
        error = wanted - quantiles
        return torch.maximum(levels * error, (levels - 1.0) * error).mean()

    inputs = (torch.randn(batch, 168, 9), torch.randn(batch, 24, 5))
    return TrainingExample(FusionForecaster(9, 5, width=160), inputs, loss)


class SpectralConv(nn.Module):
    """A product with weights of the lowest frequencies of maps, in Fourier space."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.low, self.high = (
            nn.Parameter(torch.rand(width, width, modes, modes, 2) / width**2) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        waves, modes = torch.fft.rfft2(x), self.modes
        made = torch.zeros_like(waves)
        low, high = torch.view_as_complex(self.low), torch.view_as_complex(self.high)
        made[:, :, :modes, :modes] = torch.einsum(
            "bixy,ioxy->boxy", waves[:, :, :modes, :modes], low
        )
        made[:, :, -modes:, :modes] = torch.einsum(
            "bixy,ioxy->boxy", waves[:, :, -modes:, :modes], high
        )
        return torch.fft.irfft2(made, s=x.shape[-2:])


class FourierOperator(nn.Module):
    """Spectral and pointwise layers from one field to the next, like FNO."""

    def __init__(self, fields: int, width: int, modes: int, depth: int) -> None:
        super().__init__()
        self.lift = nn.Conv2d(fields, width, 1)
        self.spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(depth))
        self.pointwise = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        self.project = nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        for spectral, pointwise in zip(self.spectral, self.pointwise, strict=True):
            x = F.gelu(spectral(x) + pointwise(x))
        out: Tensor = self.project(x)
        return out


def make_fourier_operator(batch: int) -> TrainingExample:
    """Return a Fourier neural operator for flows of 128x128 from ten earlier steps and places."""
    wanted = torch.randn(batch, 1, 128, 128)

    def loss(found: Tensor) -> Tensor:
        errors = (found - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
        return errors.mean()

    net = FourierOperator(12, width=64, modes=24, depth=4)
    return TrainingExample(net, torch.randn(batch, 12, 128, 128), loss)


class DeepFm(nn.Module):
    """Clicks from categories: linear terms, all products of pairs, and an MLP, like DeepFM."""

    starts: Tensor

    def __init__(self, fields: int, rows: int, width: int, hidden: int) -> None:
        super().__init__()
        self.register_buffer("starts", rows * torch.arange(fields))
        self.table, self.linear = nn.Embedding(fields * rows, width), nn.Embedding(fields * rows, 1)
        layers: list[nn.Module] = []
        for cin, cout in itertools.pairwise((fields * width, hidden, hidden, hidden)):
            layers += [nn.Linear(cin, cout), nn.BatchNorm1d(cout), nn.ReLU(), nn.Dropout(0.2)]
        self.mlp = nn.Sequential(*layers, nn.Linear(hidden, 1))

    def forward(self, categories: Tensor) -> Tensor:
        ids = categories + self.starts
        vectors = self.table(ids)
        pairs = 0.5 * (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1)
        deep = self.mlp(vectors.flatten(1)).squeeze(1)
        return self.linear(ids).sum(dim=(1, 2)) + pairs + deep


def make_deepfm(batch: int) -> TrainingExample:
    """Return a DeepFM with 39 fields of 25,000 categories."""
    clicks = torch.randint(0, 2, (batch,)).float()
    net = DeepFm(39, 25000, width=16, hidden=400)
    for table in (net.table, net.linear):
        nn.init.normal_(table.weight, std=0.01)
    categories = torch.randint(0, 25000, (batch, 39))
    return TrainingExample(
        net, categories, lambda logits: F.binary_cross_entropy_with_logits(logits, clicks)
    )


class GraphConvolutions(nn.Module):
    """Classes of the nodes of one large graph by sums over neighbours, like a GCN."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.linear = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm1d(b) for _, b in pairs[:-1])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        ones = torch.ones(len(source), device=x.device)
        degrees = torch.ones(len(x), device=x.device).index_add(0, target, ones)
        scale = degrees.rsqrt()
        weights = (scale[source] * scale[target]).unsqueeze(1)
        for at, linear in enumerate(self.linear):
            x = linear(x)
            x = (x / degrees.unsqueeze(1)).index_add(0, target, x[source] * weights)
            if at < len(self.norms):
                x = F.dropout(F.relu(self.norms[at](x)), 0.5, self.training)
        return x


def make_citation_graph(batch: int) -> TrainingExample:
    """Return a GCN for the papers of a graph of citations, fourteen edges for each."""
    edges = torch.randint(0, batch, (2, 14 * batch))
    net = GraphConvolutions((128, 256, 256, 40))
    return TrainingExample(net, (torch.randn(batch, 128), edges))


class GameResidual(nn.Module):
    """Two convolutions after ReLUs, and a skip around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(), nn.Conv2d(width, width, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


class DuelingValues(nn.Module):
    """Values of actions from frames: the residual network of IMPALA with two heads."""

    def __init__(self, frames: int, actions: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for cin, cout in itertools.pairwise((frames, *widths)):
            layers += [nn.Conv2d(cin, cout, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            layers += [GameResidual(cout), GameResidual(cout)]
        self.features = nn.Sequential(*layers, nn.ReLU(), nn.Flatten())
        self.value, self.gain = (
            nn.Sequential(nn.Linear(121 * widths[-1], 512), nn.ReLU(), nn.Linear(512, outputs))
            for outputs in (1, actions)
        )

    def forward(self, frames: Tensor) -> Tensor:
        x = self.features(frames)
        gain = self.gain(x)
        return self.value(x) + gain - gain.mean(dim=1, keepdim=True)


class DoubleLearner(nn.Module):
    """Double Q-learning: the network and a frozen copy that judges its next actions."""

    def __init__(self, online: DuelingValues) -> None:
        super().__init__()
        self.online, self.frozen = online, copy.deepcopy(online).requires_grad_(False)

    def forward(
        self, frames: Tensor, following: Tensor, actions: Tensor, rewards: Tensor
    ) -> tuple[Tensor, Tensor]:
        values = self.online(frames).gather(1, actions.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = self.online(following).argmax(dim=1, keepdim=True)
            wanted = rewards + 0.99 * self.frozen(following).gather(1, best).squeeze(1)
        return values, F.smooth_l1_loss(values, wanted)


def make_double_q(batch: int) -> TrainingExample:
    """Return a dueling network with double Q-learning, for four frames of 84x84."""
    frames = tuple(torch.rand(batch, 4, 84, 84) for _ in range(2))
    inputs = (*frames, torch.randint(0, 18, (batch,)), torch.randn(batch))
    return TrainingExample(DoubleLearner(DuelingValues(4, 18, (32, 64, 64))), inputs, take_second)


# ---------------------------------------------------------------------------------------------
# Images, sound and text that are generated


class CrossAttention(nn.Module):
    """Attention of pixels to words, or among themselves."""

    def __init__(self, width: int, source: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(source, width, bias=False)
        self.to_v = nn.Linear(source, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        parts = (self.to_q(x), self.to_k(source), self.to_v(source))
        q, k, v = (one.unflatten(2, (self.heads, -1)).transpose(1, 2) for one in parts)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out: Tensor = self.out(y)
        return out


class TextTransformer(nn.Module):
    """A transformer block on the pixels of a map that also reads a text."""

    def __init__(self, width: int, text: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.own = CrossAttention(width, width, width // 64)
        self.cross = CrossAttention(width, text, width // 64)
        self.gate, self.shrink = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, maps: Tensor, texts: Tensor) -> Tensor:
        x = self.first(self.norm(maps).flatten(2).transpose(1, 2))
        normed = self.norm1(x)
        x = x + self.own(normed, normed)
        x = x + self.cross(self.norm2(x), texts)
        value, gate = self.gate(self.norm3(x)).chunk(2, dim=-1)
        x = self.last(x + self.shrink(value * F.gelu(gate)))
        return maps + x.transpose(1, 2).reshape(maps.shape)


class TextStage(nn.Module):
    """A residual block with the time and a transformer block with the text."""

    def __init__(self, cin: int, cout: int, embedding: int, text: int) -> None:
        super().__init__()
        self.residual = TimedResidual(cin, cout, embedding)
        self.transformer = TextTransformer(cout, text)

    def forward(self, x: Tensor, time: Tensor, texts: Tensor) -> Tensor:
        out: Tensor = self.transformer(self.residual(x, time), texts)
        return out


class TextDiffusionUNet(nn.Module):
    """A U-Net over latent images that predicts noise from a text, like Stable Diffusion's."""

    def __init__(self, width: int, factors: tuple[int, ...], text: int) -> None:
        super().__init__()
        self.width, embedding = width, 4 * width
        self.time = nn.Sequential(
            nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding)
        )
        self.first = nn.Conv2d(4, width, 3, padding=1)
        widths = [width, *(factor * width for factor in factors)]
        pairs = list(itertools.pairwise(widths))
        self.down1 = nn.ModuleList(TextStage(a, b, embedding, text) for a, b in pairs)
        self.down2 = nn.ModuleList(TextStage(b, b, embedding, text) for _, b in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(b, b, 3, 2, 1) for _, b in pairs[:-1])
        self.middle = TextStage(widths[-1], widths[-1], embedding, text)
        self.up1 = nn.ModuleList(TextStage(2 * b, b, embedding, text) for _, b in pairs)
        self.up2 = nn.ModuleList(TextStage(2 * b, a, embedding, text) for a, b in pairs)
        self.grow = nn.ModuleList(nn.Conv2d(a, a, 3, padding=1) for a, _ in pairs[1:])
        self.norm, self.last = nn.GroupNorm(32, width), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor, texts: Tensor) -> Tensor:
        time = self.time(embed_times(times, self.width))
        x, skips = self.first(x), []
        for level, (one, two) in enumerate(zip(self.down1, self.down2, strict=True)):
            x = self.shrink[level - 1](x) if level else x
            for stage in (one, two):
                x = stage(x, time, texts)
                skips.append(x)
        x = self.middle(x, time, texts)
        for level in reversed(range(len(self.up1))):
            for stage in (self.up1[level], self.up2[level]):
                x = stage(torch.cat((x, skips.pop()), dim=1), time, texts)
            if level:
                x = self.grow[level - 1](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        out: Tensor = self.last(F.silu(self.norm(x)))
        return out


def make_text_diffusion(batch: int) -> TrainingExample:
    """Return a diffusion U-Net for latent images of 32x32 with 77 words of 768."""
    noise = torch.randn(batch, 4, 32, 32)
    inputs = (
        torch.randn(batch, 4, 32, 32),
        torch.randint(0, 1000, (batch,)),
        torch.randn(batch, 77, 768),
    )
    net = TextDiffusionUNet(width=256, factors=(1, 2, 4), text=768)
    return TrainingExample(net, inputs, lambda output: F.mse_loss(output, noise))


# ---------------------------------------------------------------------------------------------
# Images that are read


class ImageAttention(nn.Module):
    """Attention among all patches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0))
        out: Tensor = self.proj(y.transpose(1, 2).reshape(batch, tokens, width))
        return out


class SoftExperts(nn.Module):
    """Experts that each work on mixtures of all patches, as in Soft MoE: no patch is dropped."""

    def __init__(self, width: int, hidden: int, experts: int, slots: int) -> None:
        super().__init__()
        self.experts = experts
        self.keys = nn.Parameter(torch.randn(width, experts * slots))
        self.scale = nn.Parameter(torch.ones(1))
        self.w_in = nn.Parameter(0.02 * torch.randn(experts, width, hidden))
        self.b_in = nn.Parameter(torch.zeros(experts, 1, hidden))
        self.w_out = nn.Parameter(0.02 * torch.randn(experts, hidden, width))
        self.b_out = nn.Parameter(torch.zeros(experts, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        keys = self.scale * F.normalize(self.keys, dim=0)
        scores = F.normalize(x, dim=-1) @ keys
        dispatch, combine = scores.softmax(dim=1), scores.softmax(dim=2)
        slots = dispatch.transpose(1, 2) @ x
        batch, _, width = x.shape
        grouped = slots.view(batch, self.experts, -1, width).transpose(0, 1).flatten(1, 2)
        hidden = F.gelu(torch.bmm(grouped, self.w_in) + self.b_in)
        made = torch.bmm(hidden, self.w_out) + self.b_out
        made = made.view(self.experts, batch, -1, width).transpose(0, 1).flatten(1, 2)
        return combine @ made


class ImageBlock(nn.Module):
    """Attention and an MLP, or experts in its place, each after a layer norm."""

    def __init__(self, width: int, heads: int, mlp: nn.Module | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = ImageAttention(width, heads)
        self.mlp = mlp or nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class SoftMixtureVit(nn.Module):
    """A vision transformer whose second half has soft mixtures of experts."""

    def __init__(self, width: int, depth: int, heads: int, experts: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, stride=16)
        self.places = nn.Parameter(0.02 * torch.randn(1, 196, width))
        dense = (ImageBlock(width, heads) for _ in range(depth // 2))
        mixed = (
            ImageBlock(width, heads, SoftExperts(width, 4 * width, experts, 192 // experts))
            for _ in range(depth // 2)
        )
        self.blocks = nn.Sequential(*dense, *mixed)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2) + self.places
        logits: Tensor = self.head(self.norm(self.blocks(x)).mean(dim=1))
        return logits


def make_soft_mixture(batch: int) -> TrainingExample:
    """Return a vision transformer of 12 layers, 512 wide, six of them with 16 experts."""
    net = SoftMixtureVit(width=512, depth=12, heads=8, experts=16)
    return TrainingExample(net, torch.randn(batch, 3, 224, 224))


class CropEncoder(nn.Module):
    """A ViT-S/16 for crops of two sizes, and a head with very many outputs."""

    def __init__(self, width: int, depth: int, heads: int, outputs: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, stride=16)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, width, 14, 14))
        self.blocks = nn.Sequential(*(ImageBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(
            nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(),
            nn.Linear(2048, 256),
        )  # fmt: skip
        self.prototypes = nn.Parameter(torch.randn(outputs, 256))

    def forward(self, crops: Tensor) -> Tensor:
        patches = self.patch(crops)
        places: Tensor = self.places
        if patches.shape[-1] != places.shape[-1]:
            places = F.interpolate(places, patches.shape[-2:], mode="bicubic")
        x = (patches + places).flatten(2).transpose(1, 2)
        x = self.blocks(torch.cat((self.token.expand(len(x), -1, -1), x), dim=1))
        code = F.normalize(self.head(self.norm(x[:, 0])), dim=-1)
        return F.linear(code, F.normalize(self.prototypes, dim=-1))


class SelfDistillation(nn.Module):
    """A student that agrees with a frozen teacher on crops of an image, like DINO.

    Returns the student's outputs and the loss. The teacher is updated outside the step.
    """

    center: Tensor

    def __init__(self, encoder: CropEncoder, outputs: int) -> None:
        super().__init__()
        self.student, self.teacher = encoder, copy.deepcopy(encoder).requires_grad_(False)
        self.register_buffer("center", torch.zeros(outputs))

    def forward(self, large: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
        views, images = large.shape[1], len(large)
        large = large.flatten(0, 1)
        with torch.no_grad():
            wanted = ((self.teacher(large).float() - self.center) / 0.04).softmax(dim=-1)
        found = [self.student(one).float() / 0.1 for one in (large, small.flatten(0, 1))]
        logs = torch.cat([one.view(images, -1, one.shape[-1]) for one in found], dim=1)
        logs, wanted = logs.log_softmax(dim=-1), wanted.view(images, views, -1)
        losses = [
            -(wanted[:, one] * logs[:, other]).sum(dim=-1).mean()
            for one in range(views)
            for other in range(logs.shape[1])
            if one != other
        ]
        return logs, torch.stack(losses).mean()


def make_dino(batch: int) -> TrainingExample:
    """Return a DINO of two ViT-S/16, with two large and six small crops of each image."""
    net = SelfDistillation(CropEncoder(384, depth=12, heads=6, outputs=65536), 65536)
    inputs = (torch.randn(batch, 2, 3, 224, 224), torch.randn(batch, 6, 3, 96, 96))
    return TrainingExample(net, inputs, lambda output: output[1])


class SetDetector(nn.Module):
    """A ResNet-50 and a transformer whose queries each find one object, like DETR."""

    def __init__(self, classes: int, queries: int, width: int, side: int) -> None:
        super().__init__()
        models: Any = import_module("torchvision.models")
        frozen: Any = import_module("torchvision.ops").FrozenBatchNorm2d
        net = models.resnet50(weights=None, norm_layer=frozen)
        self.backbone = nn.Sequential(*list(net.children())[:-2])
        self.reduce = nn.Conv2d(2048, width, 1)
        self.places = nn.Parameter(torch.rand(1, side * side, width))
        self.queries = nn.Parameter(torch.rand(1, queries, width))
        self.transformer = nn.Transformer(width, 8, 6, 6, 2048, dropout=0.1, batch_first=True)
        self.classify = nn.Linear(width, classes + 1)
        self.locate = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 4),
        )  # fmt: skip

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.reduce(self.backbone(images)).flatten(2).transpose(1, 2) + self.places
        found = self.transformer(x, self.queries.expand(len(images), -1, -1))
        return self.classify(found), self.locate(found).sigmoid()


def make_detr(batch: int) -> TrainingExample:
    """Return a DETR for 640x640; which query finds which object is given, not searched for."""
    classes, queries = 91, 100
    labels, boxes = torch.full((batch, queries), classes), torch.rand(batch, queries, 4)
    labels[:, :8] = torch.randint(0, classes, (batch, 8))
    weights = torch.ones(classes + 1)
    weights[classes] = 0.1

    def loss(output: tuple[Tensor, Tensor]) -> Tensor:
        scores, found = output
        wrong = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), weights)
        return wrong + 5.0 * F.l1_loss(found[:, :8], boxes[:, :8])

    net = SetDetector(classes, queries, width=256, side=20)
    return TrainingExample(net, torch.randn(batch, 3, 640, 640), loss)


def make_double_layers(cin: int, cout: int) -> nn.Sequential:
    """Return two convolutions with batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class NestedUNet(nn.Module):
    """A U-Net with dense paths between its two sides and a mask from each, like U-Net++."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.levels = len(widths)
        layers = {}
        for level, width in enumerate(widths):
            layers[f"0_{level}"] = make_double_layers(widths[level - 1] if level else 3, width)
            for column in range(1, self.levels - level):
                cin = column * width + widths[level + 1]
                layers[f"{column}_{level}"] = make_double_layers(cin, width)
        self.nodes = nn.ModuleDict(layers)
        self.masks = nn.ModuleList(nn.Conv2d(widths[0], 1, 1) for _ in range(self.levels - 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        rows: list[list[Tensor]] = []
        for level in range(self.levels):
            x = self.nodes[f"0_{level}"](F.max_pool2d(rows[-1][0], 2) if level else x)
            rows.append([x])
        for column in range(1, self.levels):
            for level in range(self.levels - column):
                below = rows[level + 1][column - 1]
                up = F.interpolate(below, scale_factor=2.0, mode="bilinear", align_corners=True)
                joined = torch.cat((*rows[level], up), dim=1)
                rows[level].append(self.nodes[f"{column}_{level}"](joined))
        return [mask(one) for mask, one in zip(self.masks, rows[0][1:], strict=True)]


def make_nested_unet(batch: int) -> TrainingExample:
    """Return a U-Net++ for one mask at 256x256, with cross-entropy and Dice loss at each output."""
    truth = torch.randint(0, 2, (batch, 1, 256, 256)).float()

    def judge(logits: Tensor) -> Tensor:
        found = logits.sigmoid()
        dice = 2 * (found * truth).sum() / (found.sum() + truth.sum() + 1.0)
        return 0.5 * F.binary_cross_entropy_with_logits(logits, truth) + 1.0 - dice

    net = NestedUNet((32, 64, 128, 256, 512))

    def loss(masks: list[Tensor]) -> Tensor:
        return sum(map(judge, masks)) / len(masks)  # type: ignore[return-value]

    return TrainingExample(net, torch.randn(batch, 3, 256, 256), loss)


class FaceBlock(nn.Module):
    """A residual block with PReLU and a norm before its first convolution."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(cin),
            nn.Conv2d(cin, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.PReLU(cout),
            nn.Conv2d(cout, cout, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(cout),
        )
        self.skip: nn.Module = nn.Identity()
        if stride > 1:
            self.skip = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x) + self.skip(x)
        return out


class FaceRecognizer(nn.Module):
    """An IR-50 and a classifier of angles with a margin, like ArcFace."""

    def __init__(self, people: int, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.PReLU(64),
        ]  # fmt: skip
        cin = 64
        for cout, depth in ((64, 3), (128, 4), (256, 14), (512, 3)):
            for number in range(depth):
                layers.append(FaceBlock(cin, cout, 1 if number else 2))
                cin = cout
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(512), nn.Dropout(0.4), nn.Flatten())
        self.embed = nn.Sequential(nn.Linear(512 * 49, 512), nn.BatchNorm1d(512))
        self.people = nn.Parameter(0.01 * torch.randn(people, 512))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        code = F.normalize(self.embed(self.features(images)))
        cosines = F.linear(code, F.normalize(self.people)).float()
        own = cosines.gather(1, labels.unsqueeze(1)).clamp(-0.9999, 0.9999)
        harder = torch.cos(torch.acos(own) + self.margin)
        return 64.0 * cosines.scatter(1, labels.unsqueeze(1), harder)


def make_face_recognizer(batch: int) -> TrainingExample:
    """Return an ArcFace for 85,742 people at 112x112, in channels-last format."""
    net: Any = FaceRecognizer(85742)
    images, labels = torch.randn(batch, 3, 112, 112), torch.randint(0, 85742, (batch,))
    net, images = (one.to(memory_format=torch.channels_last) for one in (net, images))
    return TrainingExample(net, (images, labels), lambda logits: F.cross_entropy(logits, labels))


class TextRecognizer(nn.Module):
    """Convolutions and two bidirectional LSTMs along a line of text, like CRNN."""

    def __init__(self, letters: int, hidden: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        widths = (1, 64, 128, 256, 256, 512, 512)
        pools: tuple[tuple[int, int] | None, ...] = ((2, 2), (2, 2), None, (2, 1), None, (2, 1))
        for cin, cout, pool in zip(widths[:-1], widths[1:], pools, strict=True):
            layers += [nn.Conv2d(cin, cout, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(pool)] if pool else []
        layers += [nn.Conv2d(512, 512, 2, bias=False), nn.BatchNorm2d(512), nn.ReLU(inplace=True)]
        self.features = nn.Sequential(*layers)
        self.lstm = nn.LSTM(512, hidden, 2, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * hidden, letters)

    def forward(self, images: Tensor) -> Tensor:
        x = self.features(images).squeeze(2).transpose(1, 2)
        scores: Tensor = self.output(self.lstm(x)[0])
        return scores.log_softmax(dim=-1)


def make_text_recognizer(batch: int) -> TrainingExample:
    """Return a CRNN for lines of 32x320 with 24 of 96 letters."""
    letters = torch.randint(1, 97, (batch, 24))

    def loss(scores: Tensor) -> Tensor:
        frames = torch.full((batch,), scores.shape[1], dtype=torch.long)
        lengths = torch.full((batch,), 24, dtype=torch.long)
        return F.ctc_loss(scores.transpose(0, 1), letters, frames, lengths, zero_infinity=True)

    return TrainingExample(TextRecognizer(97, hidden=256), torch.randn(batch, 1, 32, 320), loss)
