"""Networks of the second test that read images, volumes, videos and points."""

from __future__ import annotations

import itertools
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training_examples import TrainingExample, take_loss

# ---------------------------------------------------------------------------------------------
# Models of torchvision


def make_inception(batch: int) -> TrainingExample:
    """Return an Inception v3 for 299x299 with its auxiliary classifier."""
    models: Any = import_module("torchvision.models")
    net = models.inception_v3(weights=None, init_weights=False)
    labels = torch.randint(0, 1000, (batch,))

    def loss(output: Any) -> Tensor:
        return F.cross_entropy(output[0], labels) + 0.4 * F.cross_entropy(output[1], labels)

    return TrainingExample(net, torch.randn(batch, 3, 299, 299), loss)


class ContrastiveImages(nn.Module):
    """A ResNet-34 and a projection that compare all views of a batch, like SimCLR."""

    def __init__(self, width: int) -> None:
        super().__init__()
        models: Any = import_module("torchvision.models")
        self.encoder = models.resnet34(weights=None)
        self.encoder.fc = nn.Identity()
        self.project = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, width))

    def forward(self, views: Tensor) -> Tensor:
        codes = F.normalize(self.project(self.encoder(views)), dim=1)
        own = torch.eye(len(codes), dtype=torch.bool, device=codes.device)
        return (codes @ codes.t() / 0.5).masked_fill(own, -1e4)


def make_simclr(batch: int) -> TrainingExample:
    """Return a contrastive network for two views of each image of 96x96."""
    partners = torch.arange(2 * batch).roll(batch)
    views = torch.randn(2 * batch, 3, 96, 96)
    return TrainingExample(
        ContrastiveImages(128), views, lambda scores: F.cross_entropy(scores, partners)
    )


# ---------------------------------------------------------------------------------------------
# Models of the transformers library


def make_poolformer(batch: int) -> TrainingExample:
    """Return a PoolFormer-S24, which mixes patches by pooling."""
    library: Any = import_module("transformers")

    config = library.PoolFormerConfig(
        depths=[4, 4, 12, 4],
        hidden_sizes=[64, 128, 320, 512],
        drop_path_rate=0.0,
        num_labels=1000,
    )
    inputs = {
        "pixel_values": torch.randn(batch, 3, 224, 224),
        "labels": torch.randint(0, 1000, (batch,)),
    }
    return TrainingExample(library.PoolFormerForImageClassification(config), inputs, take_loss)


def make_segformer(batch: int) -> TrainingExample:
    """Return a SegFormer-B1 for 150 classes at 512x512."""
    library: Any = import_module("transformers")

    config = library.SegformerConfig(
        num_labels=150,
        depths=[2, 2, 2, 2],
        hidden_sizes=[64, 128, 320, 512],
        decoder_hidden_size=256,
        drop_path_rate=0.0,
    )
    inputs = {
        "pixel_values": torch.randn(batch, 3, 512, 512),
        "labels": torch.randint(0, 150, (batch, 512, 512)),
    }
    return TrainingExample(library.SegformerForSemanticSegmentation(config), inputs, take_loss)


def make_masked_autoencoder(batch: int) -> TrainingExample:
    """Return a masked autoencoder that reads a quarter of the patches of an image."""
    library: Any = import_module("transformers")

    net = library.ViTMAEForPreTraining(library.ViTMAEConfig(norm_pix_loss=True))
    return TrainingExample(net, {"pixel_values": torch.randn(batch, 3, 224, 224)}, take_loss)


class ImageTextPairs(nn.Module):
    """CLIP as a function of images and texts that returns their similarities."""

    def __init__(self, clip: nn.Module) -> None:
        super().__init__()
        self.clip = clip

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        scores: Tensor = self.clip(input_ids=ids, pixel_values=images).logits_per_image
        return scores


def make_clip(batch: int) -> TrainingExample:
    """Return a CLIP of the size M/16: both towers have 12 layers and are 512 wide."""
    library: Any = import_module("transformers")

    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8}
    sizes |= {"num_hidden_layers": 12}
    config = library.CLIPConfig(
        text_config=sizes, vision_config={**sizes, "patch_size": 16}, projection_dim=512
    )
    pairs = torch.arange(batch)

    def loss(scores: Tensor) -> Tensor:
        return 0.5 * (F.cross_entropy(scores, pairs) + F.cross_entropy(scores.t(), pairs))

    inputs = (torch.randn(batch, 3, 224, 224), torch.randint(3, 49000, (batch, 77)))
    return TrainingExample(ImageTextPairs(library.CLIPModel(config)), inputs, loss)


def make_timesformer(batch: int) -> TrainingExample:
    """Return a TimeSformer, attention over time and then over space, for 8 frames."""
    library: Any = import_module("transformers")

    config = library.TimesformerConfig(num_labels=400)
    inputs = {
        "pixel_values": torch.randn(batch, 8, 3, 224, 224),
        "labels": torch.randint(0, 400, (batch,)),
    }
    return TrainingExample(library.TimesformerForVideoClassification(config), inputs, take_loss)


# ---------------------------------------------------------------------------------------------
# A detector in one stage


class ConvNormSilu(nn.Sequential):
    """A convolution with batch norm and SiLU."""

    def __init__(self, cin: int, cout: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(cout, eps=1e-3, momentum=0.03),
            nn.SiLU(inplace=True),
        )


class CrossStage(nn.Module):
    """Residual blocks on one half of the channels, joined with the other half (CSP)."""

    def __init__(self, cin: int, cout: int, depth: int, is_residual: bool = True) -> None:
        super().__init__()
        half = cout // 2
        self.is_residual = is_residual
        self.left, self.right = ConvNormSilu(cin, half), ConvNormSilu(cin, half)
        self.blocks = nn.ModuleList(
            nn.Sequential(ConvNormSilu(half, half), ConvNormSilu(half, half, 3))
            for _ in range(depth)
        )
        self.join = ConvNormSilu(cout, cout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x)
        for block in self.blocks:
            y = y + block(y) if self.is_residual else block(y)
        out: Tensor = self.join(torch.cat((y, self.right(x)), dim=1))
        return out


class PooledPyramid(nn.Module):
    """Three poolings in a row, joined (SPPF)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = ConvNormSilu(channels, channels // 2)
        self.join = ConvNormSilu(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.reduce(x)]
        for _ in range(3):
            found.append(F.max_pool2d(found[-1], 5, stride=1, padding=2))
        out: Tensor = self.join(torch.cat(found, dim=1))
        return out


class OneStageDetector(nn.Module):
    """A CSP backbone, a pyramid up and down, and a head of anchors for each level, like YOLO."""

    def __init__(self, width: int, depths: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(5)]
        self.stem = ConvNormSilu(3, width, 3, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(ConvNormSilu(a, b, 3, 2), CrossStage(b, b, depth))
            for (a, b), depth in zip(itertools.pairwise(sizes), depths, strict=True)
        )
        self.pool = PooledPyramid(sizes[4])
        c3, c4, c5 = sizes[2:]
        self.lateral5, self.lateral4 = ConvNormSilu(c5, c4), ConvNormSilu(c4, c3)
        self.up4 = CrossStage(2 * c4, c4, depths[0], is_residual=False)
        self.up3 = CrossStage(2 * c3, c3, depths[0], is_residual=False)
        self.down3, self.down4 = ConvNormSilu(c3, c3, 3, 2), ConvNormSilu(c4, c4, 3, 2)
        self.out4 = CrossStage(2 * c3, c4, depths[0], is_residual=False)
        self.out5 = CrossStage(2 * c4, c5, depths[0], is_residual=False)
        self.heads = nn.ModuleList(nn.Conv2d(c, 3 * outputs, 1) for c in (c3, c4, c5))

    def forward(self, images: Tensor) -> Tensor:
        x, levels = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        top = self.lateral5(self.pool(x))
        middle = self.up4(torch.cat((F.interpolate(top, scale_factor=2.0), levels[2]), dim=1))
        middle = self.lateral4(middle)
        low = self.up3(torch.cat((F.interpolate(middle, scale_factor=2.0), levels[1]), dim=1))
        middle = self.out4(torch.cat((self.down3(low), middle), dim=1))
        top = self.out5(torch.cat((self.down4(middle), top), dim=1))
        found = zip(self.heads, (low, middle, top), strict=True)
        return torch.cat([head(level).flatten(2) for head, level in found], dim=2)


def make_one_stage_detector(batch: int) -> TrainingExample:
    """Return a detector for 80 classes at 640x640, in channels-last format."""
    net: Any = OneStageDetector(48, (2, 4, 6, 2), outputs=85)
    images = torch.randn(batch, 3, 640, 640)
    net, images = (one.to(memory_format=torch.channels_last) for one in (net, images))
    places = sum((640 // stride) ** 2 for stride in (8, 16, 32))
    wanted = (torch.rand(batch, 3, 85, places) < 0.01).float()

    def loss(output: Tensor) -> Tensor:
        found = output.reshape(wanted.shape).float()
        boxes = F.l1_loss(found[:, :, :4].sigmoid(), wanted[:, :, :4])
        return boxes + F.binary_cross_entropy_with_logits(found[:, :, 4:], wanted[:, :, 4:])

    return TrainingExample(net, images, loss)


# ---------------------------------------------------------------------------------------------
# Volumes


def make_volume_layers(cin: int, cout: int, stride: int) -> nn.Sequential:
    """Return two 3-D convolutions with instance norm and leaky ReLU."""
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, stride, 1),
        nn.InstanceNorm3d(cout, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(cout, cout, 3, 1, 1),
        nn.InstanceNorm3d(cout, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )


class VolumeUNet(nn.Module):
    """A U-Net for volumes with outputs at two resolutions, like nnU-Net."""

    def __init__(self, channels: int, classes: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(
            [make_volume_layers(channels, widths[0], 1)]
            + [make_volume_layers(a, b, 2) for a, b in pairs]
        )
        self.up = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, stride=2) for a, b in reversed(pairs))
        self.merge = nn.ModuleList(make_volume_layers(2 * a, a, 1) for a, _ in reversed(pairs))
        self.coarse = nn.Conv3d(widths[1], classes, 1)
        self.fine = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        skips, found = [], []
        for layers in self.down:
            x = layers(x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat((up(x), skips.pop()), dim=1))
            found.append(x)
        return self.fine(found[-1]), self.coarse(found[-2])


def make_volume_unet(batch: int) -> TrainingExample:
    """Return a U-Net for volumes of 96x96x96 voxels with four channels and four classes."""
    masks = torch.randint(0, 4, (batch, 96, 96, 96))
    small = masks[:, ::2, ::2, ::2].contiguous()

    def loss(output: tuple[Tensor, Tensor]) -> Tensor:
        fine, coarse = output
        shares = fine.float().softmax(dim=1)
        own = shares.gather(1, masks.unsqueeze(1)).mean()
        return F.cross_entropy(fine, masks) + 0.5 * F.cross_entropy(coarse, small) + 1.0 - own

    net = VolumeUNet(4, 4, (32, 64, 128, 256, 320))
    return TrainingExample(net, torch.randn(batch, 4, 96, 96, 96), loss)


# ---------------------------------------------------------------------------------------------
# Points


def gather_edges(x: Tensor, count: int) -> Tensor:
    """Return each point's differences to its nearest neighbours, and the point: (B, 2C, N, k)."""
    batch, channels, points = x.shape
    with torch.no_grad():
        squares = x.square().sum(dim=1)
        closeness = 2 * x.transpose(1, 2) @ x - squares.unsqueeze(1) - squares.unsqueeze(2)
        nearest = closeness.topk(count, dim=-1).indices.view(batch, 1, points * count)
    found = x.gather(2, nearest.expand(-1, channels, -1)).view(batch, channels, points, count)
    own = x.unsqueeze(3).expand_as(found)
    return torch.cat((found - own, own), dim=1)


class EdgePointNet(nn.Module):
    """A classifier of point clouds by convolutions on edges, like DGCNN."""

    def __init__(self, classes: int, neighbours: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.edges = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * a, b, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))
            for a, b in itertools.pairwise((3, *widths))
        )
        self.join = nn.Sequential(
            nn.Conv1d(sum(widths), 1024, 1, bias=False), nn.BatchNorm1d(1024), nn.LeakyReLU(0.2)
        )
        self.head = nn.Sequential(
            nn.Linear(2048, 512, bias=False),
            nn.BatchNorm1d(512),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.5),
            nn.Linear(512, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for edge in self.edges:
            x = edge(gather_edges(x, self.neighbours)).amax(dim=3)
            found.append(x)
        x = self.join(torch.cat(found, dim=1))
        logits: Tensor = self.head(torch.cat((x.amax(dim=2), x.mean(dim=2)), dim=1))
        return logits


def make_edge_pointnet(batch: int) -> TrainingExample:
    """Return a DGCNN for clouds of 1,024 points with 20 neighbours in 40 classes."""
    net = EdgePointNet(40, 20, (64, 64, 128, 256))
    return TrainingExample(net, torch.randn(batch, 3, 1024))
