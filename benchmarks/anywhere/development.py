"""Development networks: for trying the scripts and for work on the estimator, never for claims.

None of them is a test network (``networks.py``), and none of the test networks is used here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training_examples import BenchmarkNetwork, TrainingExample, take_loss

HF = "transformers"


class Translator(nn.Module):
    """PyTorch's own Transformer between two embeddings and an output layer."""

    def __init__(self, vocab: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocab, width), nn.Embedding(vocab, width)
        self.transformer = nn.Transformer(
            width, heads, depth, depth, 4 * width, dropout=0.1, batch_first=True
        )
        self.output = nn.Linear(width, vocab)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], target.device)
        x = self.transformer(self.source(source), self.target(target), tgt_mask=mask)
        logits: Tensor = self.output(x)
        return logits


def make_translator(batch: int) -> TrainingExample:
    """Return a big translation transformer for sentences of 96 tokens."""
    vocab = 37000
    pair = (torch.randint(0, vocab, (batch, 96)), torch.randint(0, vocab, (batch, 96)))
    return TrainingExample(Translator(vocab, 1024, 16, 6), pair)


class DiffusionBlock(nn.Module):
    """A transformer block that is scaled and shifted by a condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        s1, b1, g1, s2, b2, g2 = self.modulate(condition).unsqueeze(1).chunk(6, dim=2)
        qkv = self.qkv(self.norm1(x) * (1 + s1) + b1)
        q, k, v = qkv.view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + g1 * self.out(y)
        return x + g2 * self.mlp(self.norm2(x) * (1 + s2) + b2)


class DiffusionTransformer(nn.Module):
    """A diffusion transformer over latent images with classes, like DiT-B/2."""

    def __init__(self, width: int, depth: int, heads: int, side: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, width, 2, stride=2)
        self.places = nn.Parameter(0.02 * torch.randn(1, side * side // 4, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(DiffusionBlock(width, heads) for _ in range(depth))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, x: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        condition = self.time(times) + self.label(labels)
        x = self.patch(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, condition)
        out: Tensor = self.last(self.norm(x))
        return out


def make_diffusion_transformer(batch: int) -> TrainingExample:
    """Return a DiT-B/2 for latent images of 32x32."""
    noise = torch.randn(batch, 256, 16)
    labels = torch.randint(0, 1001, (batch,))
    inputs = (torch.randn(batch, 4, 32, 32), torch.randn(batch, 256), labels)
    net = DiffusionTransformer(width=768, depth=12, heads=12, side=32)
    return TrainingExample(net, inputs, lambda output: F.mse_loss(output, noise))


def make_videomae(batch: int) -> TrainingExample:
    """Return a video transformer for 16 frames of 224x224."""
    library: Any = import_module("transformers")

    net = library.VideoMAEForVideoClassification(library.VideoMAEConfig(num_labels=400))
    videos = torch.randn(batch, 16, 3, 224, 224)
    labels = torch.randint(0, 400, (batch,))
    return TrainingExample(net, {"pixel_values": videos, "labels": labels}, take_loss)


def make_protein_model(batch: int) -> TrainingExample:
    """Return a masked language model of proteins, like ESM-2 with 35 million parameters."""
    library: Any = import_module("transformers")

    config = library.EsmConfig(
        vocab_size=33,
        hidden_size=480,
        num_hidden_layers=12,
        num_attention_heads=20,
        intermediate_size=1920,
        position_embedding_type="rotary",
        pad_token_id=1,
        mask_token_id=32,
    )
    ids = torch.randint(4, 24, (batch, 256))
    return TrainingExample(
        library.EsmForMaskedLM(config), {"input_ids": ids, "labels": ids}, take_loss
    )


class SequentialRecommender(nn.Module):
    """Next items from the last ones, with PyTorch's transformer layers, like SASRec."""

    def __init__(self, items: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(items, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, 2, width, 0.2, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], ids.device)
        x = self.encoder(self.items(ids) + self.places(places), mask=mask, is_causal=True)
        return torch.matmul(x, self.items.weight.t())


def make_sequential_recommender(batch: int) -> TrainingExample:
    """Return a recommender of 20,000 items from the last 100."""
    net = SequentialRecommender(20000, 100, width=128, depth=2)
    return TrainingExample(net, torch.randint(0, 20000, (batch, 100)))


class BagRecommender(nn.Module):
    """Clicks from bags of categories: embedding bags, pairwise products and an MLP."""

    first: Tensor
    second: Tensor

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        first, second = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)
        self.top = nn.Sequential(
            nn.Linear(width + len(first), 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, 1),
        )  # fmt: skip

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        low = self.bottom(dense)
        found = [bag(categories[:, at]) for at, bag in enumerate(self.bags)]
        vectors = torch.stack((low, *found), dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.first, self.second]
        logits: Tensor = self.top(torch.cat((low, products), dim=1))
        return logits.squeeze(1)


def make_bag_recommender(batch: int) -> TrainingExample:
    """Return a recommender with 12 tables of 100,000 rows and 4 categories in a bag."""
    net = BagRecommender(12, 100_000, width=64)
    inputs = (torch.rand(batch, 13), torch.randint(0, 100_000, (batch, 12, 4)))
    clicks = torch.randint(0, 2, (batch,)).float()
    return TrainingExample(
        net, inputs, lambda logits: F.binary_cross_entropy_with_logits(logits, clicks)
    )


class SuperResolution(nn.Module):
    """Residual blocks without norms and a pixel shuffle, like EDSR."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(depth)
        )
        self.up = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Conv2d(width, 3, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        start = x = self.first(x)
        for block in self.blocks:
            x = x + 0.1 * block(x)
        out: Tensor = self.up(start + x)
        return out


def make_super_resolution(batch: int) -> TrainingExample:
    """Return a network that doubles the resolution of 48x48 patches."""
    wanted = torch.rand(batch, 3, 96, 96)
    net = SuperResolution(width=256, depth=16)
    return TrainingExample(net, torch.rand(batch, 3, 48, 48), lambda out: F.l1_loss(out, wanted))


class WideBlock(nn.Module):
    """A residual block with norm and ReLU before each convolution."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(cin), nn.BatchNorm2d(cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False) if cin != cout else None

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(x))
        y = self.conv2(F.relu(self.bn2(self.conv1(h))))
        out: Tensor = y + (x if self.skip is None else self.skip(h))
        return out


def make_wide_resnet(batch: int) -> TrainingExample:
    """Return a WRN-28-10 for CIFAR-100."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    cin = 16
    for stage, cout in enumerate((160, 320, 640)):
        for number in range(4):
            layers.append(WideBlock(cin, cout, 2 if stage and not number else 1))
            cin = cout
    layers += [nn.BatchNorm2d(cin), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(cin, 100))
    return TrainingExample(net, torch.randn(batch, 3, 32, 32))


DEVELOPMENT = (
    BenchmarkNetwork("translator", "language", make_translator, 64, "tf32", "adam"),
    BenchmarkNetwork(
        "diffusion_transformer", "generative", make_diffusion_transformer, 128, "bf16", "adamw"
    ),
    BenchmarkNetwork("wide_resnet", "vision", make_wide_resnet, 256, "bf16", "sgd"),
    BenchmarkNetwork("bag_recommender", "tables", make_bag_recommender, 8192, "tf32", "sgd"),
    BenchmarkNetwork("videomae", "video", make_videomae, 16, "bf16", "adamw", HF),
    BenchmarkNetwork("protein_model", "language", make_protein_model, 32, "bf16", "adamw", HF),
    BenchmarkNetwork("super_resolution", "vision", make_super_resolution, 32, "tf32", "adam"),
    BenchmarkNetwork(
        "sequential_recommender", "tables", make_sequential_recommender, 64, "fp32", "adamw"
    ),
)
