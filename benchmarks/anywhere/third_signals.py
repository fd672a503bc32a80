"""Networks of the third test for speech, series, fields, tables, graphs and control."""

from __future__ import annotations

import copy
import itertools
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training_examples import TrainingExample, take_loss, take_second

# ---------------------------------------------------------------------------------------------
# Speech


def make_whisper_small(batch: int) -> TrainingExample:
    """Return a Whisper small for 30 s of speech and 128 tokens."""
    library: Any = import_module("transformers")

    config = library.WhisperConfig(
        d_model=768,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        use_cache=False,
    )
    inputs = {
        "input_features": torch.randn(batch, config.num_mel_bins, 3000),
        "labels": torch.randint(0, 50000, (batch, 128)),
    }
    return TrainingExample(library.WhisperForConditionalGeneration(config), inputs, take_loss)


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


# ---------------------------------------------------------------------------------------------
# Time series


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


# ---------------------------------------------------------------------------------------------
# Fields


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


# ---------------------------------------------------------------------------------------------
# Tables


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


# ---------------------------------------------------------------------------------------------
# Graphs


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


# ---------------------------------------------------------------------------------------------
# Control


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
