"""Speech recognition, and networks for tables: recommendation and tabular data."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training_examples import TrainingExample, take_loss, take_second

# ---------------------------------------------------------------------------------------------
# Conformer


class ConvolutionModule(nn.Module):
    """The convolution module of a Conformer: gated, depthwise, pointwise."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.project = nn.Conv1d(width, width, 1)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.glu(self.expand(self.norm(x).transpose(1, 2)), dim=1)
        x = self.project(F.silu(self.batch_norm(self.depthwise(x))))
        out: Tensor = self.dropout(x.transpose(1, 2))
        return out


def make_half_mlp(width: int) -> nn.Sequential:
    """Return the MLP that a Conformer has before and after attention."""
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 4 * width),
        nn.SiLU(),
        nn.Dropout(0.1),
        nn.Linear(4 * width, width),
        nn.Dropout(0.1),
    )


class ConformerBlock(nn.Module):
    """Half an MLP, attention, convolution and half an MLP."""

    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.before, self.after = make_half_mlp(width), make_half_mlp(width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.convolution = ConvolutionModule(width, kernel)
        self.final = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.before(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.convolution(x)
        out: Tensor = self.final(x + 0.5 * self.after(x))
        return out


class ConformerCtc(nn.Module):
    """A Conformer over spectrograms that returns its log-probabilities and CTC loss."""

    def __init__(self, mels: int, width: int, depth: int, tokens: int) -> None:
        super().__init__()
        self.subsample = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.project = nn.Linear(width * (mels // 4), width)
        self.blocks = nn.ModuleList(ConformerBlock(width, 4, 31) for _ in range(depth))
        self.output = nn.Linear(width, tokens)

    def forward(self, mels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.subsample(mels.unsqueeze(1))
        x = self.project(x.permute(0, 3, 1, 2).flatten(2))
        for block in self.blocks:
            x = block(x)
        scores = self.output(x).float().log_softmax(dim=-1)
        frames = torch.full((len(scores),), scores.shape[1], dtype=torch.long)
        lengths = torch.full((len(targets),), targets.shape[1], dtype=torch.long)
        loss = F.ctc_loss(scores.transpose(0, 1), targets, frames, lengths)
        return scores, loss


def make_conformer(batch: int) -> TrainingExample:
    """Return a Conformer of 16 blocks for 16 s of speech."""
    net = ConformerCtc(mels=80, width=256, depth=16, tokens=1024)
    inputs = (torch.randn(batch, 80, 1600), torch.randint(1, 1024, (batch, 60)))
    return TrainingExample(net, inputs, take_second)


# ---------------------------------------------------------------------------------------------
# wav2vec 2.0


def make_wav2vec2(batch: int) -> TrainingExample:
    """Return a wav2vec 2.0 base for 5 s of sound in 8 classes, with a frozen feature encoder."""
    library: Any = import_module("transformers")

    # No layer is left out at random: every step is the same work.
    config = library.Wav2Vec2Config(num_labels=8, layerdrop=0.0)
    net = library.Wav2Vec2ForSequenceClassification(config)
    net.freeze_feature_encoder()
    inputs = {
        "input_values": torch.randn(batch, 80000),
        "labels": torch.randint(0, 8, (batch,)),
    }
    return TrainingExample(net, inputs, take_loss)


# ---------------------------------------------------------------------------------------------
# Recommendation


class CrossNetwork(nn.Module):
    """Clicks from dense and categorical features: cross layers, then an MLP, like DCN v2."""

    def __init__(self, dense: int, rows: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(count, width) for count in rows)
        size = dense + width * len(rows)
        self.cross = nn.ModuleList(nn.Linear(size, size) for _ in range(3))
        self.deep = nn.Sequential(
            nn.Linear(size, 1024),
            nn.ReLU(),
            nn.Linear(1024, 512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.ReLU(),
            nn.Linear(256, 1),
        )

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        columns = categories.unbind(dim=1)
        found = [table(ids) for table, ids in zip(self.embeddings, columns, strict=True)]
        first = torch.cat((torch.log1p(dense), *found), dim=1)
        x = first
        for layer in self.cross:
            x = first * layer(x) + x
        logits: Tensor = self.deep(x)
        return logits.squeeze(1)


def make_dcn_v2(batch: int) -> TrainingExample:
    """Return a DCN v2 with 26 tables of 2.3 million rows in all."""
    rows = (
        *(800_000, 500_000, 300_000, 200_000, 150_000, 120_000, 90_000, 60_000, 40_000),
        *(20_000, 12_000, 8_000, 5_000, 3_000, 2_000, 1_500, 1_000, 600, 300, 200, 100),
        *(60, 30, 20, 10, 4),
    )
    net = CrossNetwork(13, rows, width=32)
    ids = torch.stack([torch.randint(0, count, (batch,)) for count in rows], dim=1)
    clicks = torch.randint(0, 2, (batch,)).float()
    return TrainingExample(
        net,
        (torch.rand(batch, 13), ids),
        lambda logits: F.binary_cross_entropy_with_logits(logits, clicks),
    )


# ---------------------------------------------------------------------------------------------
# Tabular data


class TabularResidual(nn.Module):
    """A residual block of two linear layers after a batch norm."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.expand, self.project = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.dropout(F.relu(self.expand(self.norm(x))))
        out: Tensor = x + self.project(h)
        return out


def make_tabular_resnet(batch: int) -> TrainingExample:
    """Return a residual MLP for 136 features and one target."""
    width = 448
    net = nn.Sequential(
        nn.Linear(136, width),
        *(TabularResidual(width, 2 * width) for _ in range(8)),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, 1),
    )
    wanted = torch.randn(batch, 1)
    return TrainingExample(net, torch.randn(batch, 136), lambda out: F.mse_loss(out, wanted))
