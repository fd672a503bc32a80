"""Nets of a user's own, for the golden outputs."""

import torch
from torch import nn


def make_mlp():
    return nn.Sequential(
        nn.Linear(100, 256), nn.GELU(), nn.LayerNorm(256), nn.Dropout(0.1), nn.Linear(256, 10)
    ), torch.zeros(32, 100)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


class ResidualNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 7, stride=2, padding=3)
        self.blocks = nn.Sequential(Residual(24), Residual(24), nn.MaxPool2d(2), Residual(24))
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def make_residual():
    torch.manual_seed(0)
    return ResidualNet(), torch.zeros(8, 3, 64, 64)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(64), nn.LayerNorm(64), Attention()
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(64, 1000)

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids)))


def make_language():
    return Language(), torch.zeros(2, 48, dtype=torch.long)


def make_recurrent():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(40, 96, 2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(192, 7)

        def forward(self, x):
            return self.head(self.gru(x)[0][:, -1])

    return Recurrent(), torch.zeros(16, 6, 40)


def make_broken():
    raise RuntimeError("no data")


def make_nothing():
    return None


number = 3
