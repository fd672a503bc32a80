"""Networks of the third test that read images: self-supervision, detection, masks, faces, text."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training_examples import TrainingExample

# ---------------------------------------------------------------------------------------------
# Vision transformers


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


# ---------------------------------------------------------------------------------------------
# Detection


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


# ---------------------------------------------------------------------------------------------
# Segmentation


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
    return TrainingExample(
        net, torch.randn(batch, 3, 256, 256), lambda masks: sum(map(judge, masks)) / len(masks)
    )


# ---------------------------------------------------------------------------------------------
# Faces


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


# ---------------------------------------------------------------------------------------------
# Text in images


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
