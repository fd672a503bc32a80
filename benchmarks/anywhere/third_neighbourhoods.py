"""Networks of the third test that attend to neighbours: pixels of a window, nearest points."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training_examples import TrainingExample

# ---------------------------------------------------------------------------------------------
# Windows of images


class WindowAttention(nn.Module):
    """Attention within windows of maps (batch, rows, columns, channels), shifted if wanted."""

    offsets: Tensor
    mask: Tensor

    def __init__(self, width: int, heads: int, window: int, side: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(0.02 * torch.randn((2 * window - 1) ** 2, heads))
        line = torch.arange(window)
        places = torch.stack(torch.meshgrid(line, line, indexing="ij")).flatten(1)
        gaps = places[:, :, None] - places[:, None, :] + window - 1
        self.register_buffer("offsets", (gaps[0] * (2 * window - 1) + gaps[1]).flatten())
        # Shifted windows at the border hold pixels from two sides of the image: keep them apart.
        part = torch.zeros(1, side, side, 1)
        if shift:
            part[:, -window:-shift] += 1.0
            part[:, -shift:] += 2.0
            part[:, :, -window:-shift] += 3.0
            part[:, :, -shift:] += 6.0
        part = self.split(part).squeeze(-1)
        apart = part[:, :, None] != part[:, None, :]
        self.register_buffer("mask", torch.zeros(apart.shape).masked_fill(apart, -100.0))

    def split(self, x: Tensor) -> Tensor:
        """Return the windows of maps: (batch times windows, pixels, channels)."""
        batch, rows, columns, channels = x.shape
        size = self.window
        x = x.view(batch, rows // size, size, columns // size, size, channels)
        return x.transpose(2, 3).reshape(-1, size * size, channels)

    def join(self, windows: Tensor, shape: torch.Size) -> Tensor:
        """Return the maps that windows are from."""
        batch, rows, columns, channels = shape
        size = self.window
        x = windows.view(batch, rows // size, columns // size, size, size, channels)
        return x.transpose(2, 3).reshape(shape)

    def forward(self, x: Tensor) -> Tensor:
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), dims=(1, 2))
        windows = self.split(x)
        count, pixels, width = windows.shape
        qkv = self.qkv(windows).view(count, pixels, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-2, -1)
        bias = self.bias[self.offsets].view(pixels, pixels, self.heads).permute(2, 0, 1)
        scores = scores + bias
        if self.shift:
            grouped = scores.unflatten(0, (-1, len(self.mask))) + self.mask.unsqueeze(1)
            scores = grouped.flatten(0, 1)
        y = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(count, pixels, width)
        out = self.join(self.out(y), x.shape)
        return torch.roll(out, (self.shift, self.shift), dims=(1, 2)) if self.shift else out


class WindowBlock(nn.Module):
    """Attention within windows and an MLP, each after a layer norm."""

    def __init__(self, width: int, heads: int, window: int, side: int, shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, window, side, shift)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class WindowGroup(nn.Module):
    """Blocks with plain and shifted windows in turn, a convolution, and a skip around both."""

    def __init__(self, width: int, depth: int, heads: int, window: int, side: int) -> None:
        super().__init__()
        shifts = [window // 2 * (number % 2) for number in range(depth)]
        self.blocks = nn.Sequential(
            *(WindowBlock(width, heads, window, side, shift) for shift in shifts)
        )
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.blocks(x).permute(0, 3, 1, 2))
        return x + y.permute(0, 2, 3, 1)


class SwinRestorer(nn.Module):
    """Groups of window blocks between convolutions and a pixel shuffle, like SwinIR."""

    def __init__(self, width: int, groups: int, depth: int, side: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.groups = nn.Sequential(
            *(WindowGroup(width, depth, heads=6, window=8, side=side) for _ in range(groups))
        )
        self.norm = nn.LayerNorm(width)
        self.after = nn.Conv2d(width, width, 3, padding=1)
        self.up = nn.Sequential(
            nn.Conv2d(width, 64, 3, padding=1), nn.LeakyReLU(),
            nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2),
            nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2),
            nn.Conv2d(64, 3, 3, padding=1),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        start = self.first(images)
        x = self.norm(self.groups(start.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        out: Tensor = self.up(start + self.after(x))
        return out


def make_swin_restorer(batch: int) -> TrainingExample:
    """Return a SwinIR that quadruples the resolution of 48x48 patches."""
    wanted = torch.rand(batch, 3, 192, 192)
    net = SwinRestorer(width=180, groups=6, depth=6, side=48)
    return TrainingExample(net, torch.rand(batch, 3, 48, 48), lambda out: F.l1_loss(out, wanted))


# ---------------------------------------------------------------------------------------------
# Points


def find_nearest(places: Tensor, among: Tensor, count: int) -> Tensor:
    """Return the indices of the nearest points (batch, points, count)."""
    with torch.no_grad():
        return torch.cdist(places, among).topk(count, dim=-1, largest=False).indices


def take_points(x: Tensor, indices: Tensor) -> Tensor:
    """Return the values (batch, points, count, channels) of points."""
    batch, points, count = indices.shape
    flat = indices.view(batch, points * count, 1).expand(-1, -1, x.shape[-1])
    return x.gather(1, flat).view(batch, points, count, x.shape[-1])


class PointAttention(nn.Module):
    """Attention of each point to its neighbours with a weight for every channel."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.place = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.weigh = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        nearest = find_nearest(places, places, self.count)
        y = self.first(self.norm(x))
        gaps = self.place(places.unsqueeze(2) - take_points(places, nearest))
        keys, values = take_points(self.k(y), nearest), take_points(self.v(y), nearest)
        weights = self.weigh(self.q(y).unsqueeze(2) - keys + gaps).softmax(dim=2)
        out: Tensor = x + self.last((weights * (values + gaps)).sum(dim=2))
        return out


class PointDown(nn.Module):
    """The largest values around every fourth point."""

    def __init__(self, cin: int, cout: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.linear, self.norm = nn.Linear(cin + 3, cout), nn.BatchNorm1d(cout)

    def forward(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        centres = places[:, ::4]
        nearest = find_nearest(centres, places, self.count)
        gaps = take_points(places, nearest) - centres.unsqueeze(2)
        y = self.linear(torch.cat((take_points(x, nearest), gaps), dim=-1))
        y = F.relu(self.norm(y.flatten(0, 2))).view(y.shape)
        return y.amax(dim=2), centres


class PointTransformer(nn.Module):
    """A classifier of point clouds by attention to neighbours at falling resolution."""

    def __init__(self, classes: int, count: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Linear(3, widths[0]), nn.ReLU(), nn.Linear(widths[0], widths[0])
        )
        pairs = list(itertools.pairwise(widths))
        self.attentions = nn.ModuleList(PointAttention(width, count) for width in widths)
        self.downs = nn.ModuleList(PointDown(a, b, count) for a, b in pairs)
        self.head = nn.Sequential(
            nn.Linear(widths[-1], 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, classes)
        )

    def forward(self, places: Tensor) -> Tensor:
        x = self.attentions[0](self.first(places), places)
        for down, attention in zip(self.downs, self.attentions[1:], strict=True):
            x, places = down(x, places)
            x = attention(x, places)
        logits: Tensor = self.head(x.mean(dim=1))
        return logits


def make_point_transformer(batch: int) -> TrainingExample:
    """Return a Point Transformer for clouds of 4,096 points with 16 neighbours in 40 classes."""
    net = PointTransformer(40, 16, (32, 64, 128, 256, 512))
    return TrainingExample(net, torch.randn(batch, 4096, 3))
