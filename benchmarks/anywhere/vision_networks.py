"""Networks that read images and video: classifiers, segmentation, a detector."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training_examples import TrainingExample


def make_torchvision(
    name: str, shape: tuple[int, ...] = (3, 224, 224), channels_last: bool = False, **options: Any
) -> Callable[[int], TrainingExample]:
    """Return a function that builds a classifier of torchvision."""

    def make(batch: int) -> TrainingExample:
        package = "torchvision.models.video" if len(shape) > 3 else "torchvision.models"
        net = getattr(import_module(package), name)(weights=None, **options)
        images = torch.randn(batch, *shape)
        if channels_last:
            net, images = (one.to(memory_format=torch.channels_last) for one in (net, images))
        return TrainingExample(net, images)

    return make


# ---------------------------------------------------------------------------------------------
# ResMLP


class Affine(nn.Module):
    """Scale and shift of each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.alpha * x + self.beta


class ResMlpBlock(nn.Module):
    """A linear layer over patches and an MLP over channels, both with layer scale."""

    def __init__(self, width: int, patches: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = Affine(width), Affine(width)
        self.attn = nn.Linear(patches, patches)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.gamma_1 = nn.Parameter(0.1 * torch.ones(width))
        self.gamma_2 = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attn(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.gamma_1 * mixed
        return x + self.gamma_2 * self.mlp(self.norm2(x))


class ResMlp(nn.Module):
    """An image classifier of linear layers, like ResMLP-S24."""

    def __init__(self, width: int, depth: int, side: int = 14) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 16, stride=16)
        self.blocks = nn.Sequential(*(ResMlpBlock(width, side * side) for _ in range(depth)))
        self.norm, self.head = Affine(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).transpose(1, 2)
        logits: Tensor = self.head(self.norm(self.blocks(x)).mean(dim=1))
        return logits


def make_resmlp(batch: int) -> TrainingExample:
    """Return a ResMLP-S24."""
    return TrainingExample(ResMlp(width=384, depth=24), torch.randn(batch, 3, 224, 224))


# ---------------------------------------------------------------------------------------------
# Segmentation


def make_deeplab(batch: int) -> TrainingExample:
    """Return DeepLabv3 with a ResNet-50 for 21 classes at 512x512."""
    segmentation: Any = import_module("torchvision.models.segmentation")
    net = segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21)
    masks = torch.randint(0, 21, (batch, 512, 512))
    images = torch.randn(batch, 3, 512, 512)
    return TrainingExample(net, images, lambda output: F.cross_entropy(output["out"], masks))


class DoubleConv(nn.Sequential):
    """Two convolutions with batch norm and ReLU."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """A U-Net with transposed convolutions, for medical images."""

    def __init__(self, channels: int, classes: int, width: int, levels: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        pairs = list(itertools.pairwise(widths))
        self.first = DoubleConv(channels, width)
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in reversed(pairs))
        self.merge = nn.ModuleList(DoubleConv(b, a) for a, b in reversed(pairs))
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.first(x)]
        for down in self.down:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat((skips.pop(), up(x)), dim=1))
        logits: Tensor = self.last(x)
        return logits


def make_medical_unet(batch: int) -> TrainingExample:
    """Return a U-Net for one grey channel at 512x512, with cross-entropy and Dice loss."""
    truth = torch.randint(0, 2, (batch, 1, 512, 512)).float()

    def loss(logits: Tensor) -> Tensor:
        found = logits.sigmoid()
        dice = 2 * (found * truth).sum() / (found.sum() + truth.sum() + 1.0)
        return F.binary_cross_entropy_with_logits(logits, truth) + 1.0 - dice

    return TrainingExample(UNet(1, 1, width=56), torch.randn(batch, 1, 512, 512), loss)


# ---------------------------------------------------------------------------------------------
# Detection


class FpnDetector(nn.Module):
    """A ResNet-50 with a feature pyramid and one dense head for all levels, like FCOS."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        backbones: Any = import_module("torchvision.models.detection.backbone_utils")
        self.backbone = backbones.resnet_fpn_backbone(
            backbone_name="resnet50", weights=None, trainable_layers=5, returned_layers=[2, 3, 4]
        )
        self.classify, self.locate = self._make_head(classes), self._make_head(4)

    @staticmethod
    def _make_head(outputs: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Conv2d(256, 256, 3, padding=1), nn.GroupNorm(32, 256), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(256, outputs, 3, padding=1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        levels = list(self.backbone(images).values())
        scores = [self.classify(level).flatten(2) for level in levels]
        boxes = [self.locate(level).flatten(2) for level in levels]
        return torch.cat(scores, dim=2).transpose(1, 2), torch.cat(boxes, dim=2).transpose(1, 2)


def make_fpn_detector(batch: int) -> TrainingExample:
    """Return the detector for 80 classes at 640x640, with a focal and a box loss."""
    places = sum((640 // stride) ** 2 for stride in (8, 16, 32, 64))
    labels = (torch.rand(batch, places, 80) < 0.001).float()
    boxes = torch.rand(batch, places, 4)

    def loss(output: tuple[Tensor, Tensor]) -> Tensor:
        scores, found = output
        probability = scores.sigmoid()
        miss = labels * (1 - probability) + (1 - labels) * probability
        entropy = F.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        return (miss**2 * entropy).mean() + F.smooth_l1_loss(found, boxes)

    return TrainingExample(FpnDetector(80), torch.randn(batch, 3, 640, 640), loss)


# ---------------------------------------------------------------------------------------------
# Points


class PointTransform(nn.Module):
    """A small PointNet that predicts a square matrix and applies it to the points."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.points = make_point_layers(size, 64, 128, 1024)
        self.matrix = nn.Sequential(
            nn.Linear(1024, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.BatchNorm1d(256),
            nn.ReLU(),
            nn.Linear(256, size * size),
        )

    def forward(self, x: Tensor) -> Tensor:
        found = self.matrix(self.points(x).amax(dim=2)).view(-1, self.size, self.size)
        matrix = found + torch.eye(self.size, device=x.device)
        return torch.bmm(matrix.to(x.dtype), x)


def make_point_layers(*widths: int) -> nn.Sequential:
    """Return convolutions of one point with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for cin, cout in itertools.pairwise(widths):
        layers += [nn.Conv1d(cin, cout, 1), nn.BatchNorm1d(cout), nn.ReLU()]
    return nn.Sequential(*layers)


class PointNet(nn.Module):
    """A classifier of point clouds."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.align, self.align_features = PointTransform(3), PointTransform(64)
        self.near, self.far = make_point_layers(3, 64, 64), make_point_layers(64, 64, 128, 1024)
        self.head = nn.Sequential(
            nn.Linear(1024, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.Dropout(0.3),
            nn.BatchNorm1d(256),
            nn.ReLU(),
            nn.Linear(256, classes),
        )

    def forward(self, points: Tensor) -> Tensor:
        x = self.near(self.align(points))
        logits: Tensor = self.head(self.far(self.align_features(x)).amax(dim=2))
        return logits


def make_pointnet(batch: int) -> TrainingExample:
    """Return a PointNet for clouds of 1,024 points in 40 classes."""
    return TrainingExample(PointNet(40), torch.randn(batch, 3, 1024))
