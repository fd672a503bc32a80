"""Networks of the second test for speech, time series, tables and control."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training_examples import TrainingExample, take_second

# ---------------------------------------------------------------------------------------------
# Speech


class RecurrentSpeech(nn.Module):
    """Convolutions and bidirectional GRUs with CTC loss, like Deep Speech 2."""

    def __init__(self, bins: int, hidden: int, depth: int, letters: int) -> None:
        super().__init__()
        self.convolve = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5), bias=False),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5), bias=False),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        sizes = [32 * ((bins + 3) // 4), *(hidden for _ in range(depth))]
        self.norms = nn.ModuleList(nn.BatchNorm1d(size) for size in sizes)
        self.rnns = nn.ModuleList(
            nn.GRU(a, b, batch_first=True, bidirectional=True) for a, b in itertools.pairwise(sizes)
        )
        self.output = nn.Linear(hidden, letters, bias=False)

    def forward(self, bins: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.convolve(bins.unsqueeze(1)).flatten(1, 2).transpose(1, 2)
        for norm, rnn in zip(self.norms[:-1], self.rnns, strict=True):
            x = rnn(norm(x.transpose(1, 2)).transpose(1, 2))[0]
            x = sum(x.chunk(2, dim=2))
        x = self.norms[-1](x.transpose(1, 2)).transpose(1, 2)
        scores = self.output(x).log_softmax(dim=-1)
        frames = torch.full((len(scores),), scores.shape[1], dtype=torch.long)
        lengths = torch.full((len(targets),), targets.shape[1], dtype=torch.long)
        return scores, F.ctc_loss(scores.transpose(0, 1), targets, frames, lengths)


def make_recurrent_speech(batch: int) -> TrainingExample:
    """Return a Deep Speech 2 with five GRUs for 6 s of speech."""
    net = RecurrentSpeech(bins=161, hidden=800, depth=5, letters=29)
    inputs = (torch.randn(batch, 161, 600), torch.randint(1, 29, (batch, 90)))
    return TrainingExample(net, inputs, take_second)


class SeparableResidual(nn.Module):
    """A dilated depthwise convolution between two pointwise ones, with global norms."""

    def __init__(self, channels: int, hidden: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(channels, hidden, 1),
            nn.PReLU(),
            nn.GroupNorm(1, hidden),
            nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden),
            nn.PReLU(),
            nn.GroupNorm(1, hidden),
        )
        self.out, self.skip = nn.Conv1d(hidden, channels, 1), nn.Conv1d(hidden, channels, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layers(x)
        return x + self.out(y), self.skip(y)


class VoiceSeparator(nn.Module):
    """Masks over learned frames of a mixture of voices, like Conv-TasNet."""

    def __init__(self, filters: int, channels: int, hidden: int, voices: int = 2) -> None:
        super().__init__()
        self.voices = voices
        self.encoder = nn.Conv1d(1, filters, 16, stride=8, bias=False)
        self.norm, self.reduce = nn.GroupNorm(1, filters), nn.Conv1d(filters, channels, 1)
        self.blocks = nn.ModuleList(
            SeparableResidual(channels, hidden, 2**power) for _ in range(3) for power in range(8)
        )
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(channels, voices * filters, 1), nn.ReLU())
        self.decoder = nn.ConvTranspose1d(filters, 1, 16, stride=8, bias=False)

    def forward(self, sound: Tensor) -> Tensor:
        frames = F.relu(self.encoder(sound))
        x, total = self.reduce(self.norm(frames)), 0.0
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        masks = self.mask(total).unflatten(1, (self.voices, -1))
        masked = (masks * frames.unsqueeze(1)).flatten(0, 1)
        return self.decoder(masked).view(len(sound), self.voices, -1)


def make_voice_separator(batch: int) -> TrainingExample:
    """Return a separator of two voices in 4 s of sound at 8 kHz."""
    voices = torch.randn(batch, 2, 32000)

    def loss(found: Tensor) -> Tensor:
        scale = (found * voices).sum(-1, keepdim=True) / voices.square().sum(-1, keepdim=True)
        wanted = scale * voices
        ratio = wanted.square().sum(-1) / ((found - wanted).square().sum(-1) + 1e-8)
        return -10.0 * torch.log10(ratio + 1e-8).mean()

    net = VoiceSeparator(filters=512, channels=128, hidden=512)
    return TrainingExample(net, voices.sum(dim=1, keepdim=True), loss)


# ---------------------------------------------------------------------------------------------
# Time series


class PatchForecaster(nn.Module):
    """A transformer over patches of each channel by itself, like PatchTST."""

    def __init__(self, past: int, future: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.patches = (past - 16) // 8 + 1
        self.embed = nn.Linear(16, width)
        self.places = nn.Parameter(0.02 * torch.randn(self.patches, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, 0.2, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(self.patches * width, future)

    def forward(self, series: Tensor) -> Tensor:
        batch, channels, _ = series.shape
        mean = series.mean(dim=2, keepdim=True)
        scale = (series.var(dim=2, keepdim=True, unbiased=False) + 1e-5).sqrt()
        patches = ((series - mean) / scale).unfold(2, 16, 8).flatten(0, 1)
        x = self.encoder(self.embed(patches) + self.places)
        return self.head(x.flatten(1)).view(batch, channels, -1) * scale + mean


def make_patch_forecaster(batch: int) -> TrainingExample:
    """Return a forecaster of 96 steps from 512, for 21 channels."""
    net = PatchForecaster(512, 96, width=128, heads=16, depth=3)
    wanted = torch.randn(batch, 21, 96)
    return TrainingExample(
        net, torch.randn(batch, 21, 512), lambda found: F.mse_loss(found, wanted)
    )


class ForecastStack(nn.Module):
    """MLPs in a row, each explaining a part of the past and of the future, like N-BEATS."""

    def __init__(self, past: int, future: int, width: int, blocks: int) -> None:
        super().__init__()
        self.past, self.future = past, future
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(past, width),
                nn.ReLU(),
                *(layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())),
                nn.Linear(width, past + future),
            )
            for _ in range(blocks)
        )

    def forward(self, series: Tensor) -> Tensor:
        forecast = series.new_zeros(len(series), self.future)
        for block in self.blocks:
            back, ahead = block(series).split([self.past, self.future], dim=1)
            series, forecast = series - back, forecast + ahead
        return forecast


def make_forecast_stack(batch: int) -> TrainingExample:
    """Return an N-BEATS of 30 blocks that forecasts 18 steps from 90."""
    wanted = torch.randn(batch, 18)
    net = ForecastStack(90, 18, width=512, blocks=30)
    return TrainingExample(net, torch.randn(batch, 90), lambda found: F.l1_loss(found, wanted))


# ---------------------------------------------------------------------------------------------
# Tables


class TwoTowers(nn.Module):
    """Users and items as vectors whose products are compared within a batch."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user_tower, self.item_tower = self._make_tower(width + 24), self._make_tower(width)

    @staticmethod
    def _make_tower(size: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(size, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 128)
        )

    def forward(self, users: Tensor, features: Tensor, history: Tensor, items: Tensor) -> Tensor:
        known = self.users(users) + self.items(history).mean(dim=1)
        left = self.user_tower(torch.cat((known, features), dim=1))
        right = self.item_tower(self.items(items))
        return F.normalize(left, dim=1) @ F.normalize(right, dim=1).t() / 0.05


def make_two_towers(batch: int) -> TrainingExample:
    """Return two towers for 400,000 users with 20 earlier items each, and 150,000 items."""
    inputs = (
        torch.randint(0, 400_000, (batch,)),
        torch.rand(batch, 24),
        torch.randint(0, 150_000, (batch, 20)),
        torch.randint(0, 150_000, (batch,)),
    )
    pairs = torch.arange(batch)
    net = TwoTowers(400_000, 150_000, width=64)
    return TrainingExample(net, inputs, lambda scores: F.cross_entropy(scores, pairs))


class FeatureBlock(nn.Module):
    """Attention between features and an MLP with gated ReLUs."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.project = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2 if self.training else 0.0)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        left, right = self.expand(self.norm2(x)).chunk(2, dim=2)
        out: Tensor = x + self.project(left * F.relu(right))
        return out


class FeatureTransformer(nn.Module):
    """A transformer whose tokens are the features of a row, like FT-Transformer."""

    def __init__(self, features: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(features, width))
        self.bias = nn.Parameter(0.1 * torch.randn(features, width))
        self.summary = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.blocks = nn.ModuleList(FeatureBlock(width, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, rows: Tensor) -> Tensor:
        x = rows.unsqueeze(2) * self.weight + self.bias
        x = torch.cat((self.summary.expand(len(x), -1, -1), x), dim=1)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x[:, 0])
        return out


def make_feature_transformer(batch: int) -> TrainingExample:
    """Return an FT-Transformer for 90 features and one target."""
    wanted = torch.randn(batch, 1)
    net = FeatureTransformer(90, width=192, heads=8, depth=3)
    return TrainingExample(net, torch.randn(batch, 90), lambda out: F.mse_loss(out, wanted))


# ---------------------------------------------------------------------------------------------
# Control


class ActorCritic(nn.Module):
    """A policy and a value from four frames of a game."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
        )
        self.policy, self.value = nn.Linear(512, actions), nn.Linear(512, 1)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        x = self.features(frames)
        return self.policy(x), self.value(x).squeeze(1)


def make_actor_critic(batch: int) -> TrainingExample:
    """Return an actor and critic with the loss of PPO, for frames of 84x84."""
    chosen, gains = torch.randint(0, 6, (batch, 1)), torch.randn(batch)
    before, returns = torch.full((batch,), -1.8), torch.randn(batch)

    def loss(output: tuple[Tensor, Tensor]) -> Tensor:
        logits, values = output
        logs = logits.log_softmax(dim=1)
        ratio = torch.exp(logs.gather(1, chosen).squeeze(1) - before)
        gain = torch.minimum(ratio * gains, ratio.clamp(0.9, 1.1) * gains).mean()
        entropy = -(logs.exp() * logs).sum(dim=1).mean()
        return 0.5 * F.mse_loss(values, returns) - gain - 0.01 * entropy

    return TrainingExample(ActorCritic(6), torch.rand(batch, 4, 84, 84), loss)
