"""Real networks, from the transformers library and in plain torch, to compare the atlas with.

Modules are on the meta device and small: only the operators that they call matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from joulecast.records import Network
from joulecast.runtimes.torch.losses import cross_entropy_loss, mean_square_loss
from joulecast.runtimes.torch.net_reader import read_net

BATCH, TOKENS, VOCABULARY = 2, 32, 1000
_SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
_ENCODER = {**_SMALL, "intermediate_size": 256}
_WORDS = {"vocab_size": VOCABULARY}
_GROUPED = {**_ENCODER, **_WORDS, "num_key_value_heads": 2, "head_dim": 16}


def read_real_network(name: str) -> Network:
    """Return the network that reading a real module gives."""
    # The library looks at the values of their masks, so fake tensors do not serve.
    is_real = name in ("opt", "whisper", "wav2vec2", "mixtral")
    with torch.device("cpu" if is_real else "meta"):
        net, inputs = REAL_NETWORKS[name]()
    is_generator = name in ("dcgan generator", "unet", "vae")
    loss = mean_square_loss if is_generator else cross_entropy_loss
    return read_net(net.train(), inputs, loss, name)


def _tokens(**more: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.zeros(BATCH, TOKENS, dtype=torch.long), **more}


def _image(size: int = 64) -> torch.Tensor:
    return torch.zeros(BATCH, 3, size, size)


def _make_transformers(model: str, config: str, inputs: Any, **sizes: Any) -> Callable[[], Any]:
    def make() -> tuple[nn.Module, Any]:
        hf = pytest.importorskip("transformers")
        return getattr(hf, model)(getattr(hf, config)(**sizes)), inputs()

    return make


def _pixels(size: int = 64) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"pixel_values": _image(size)}


def _encoder_decoder() -> dict[str, torch.Tensor]:
    return _tokens(decoder_input_ids=torch.zeros(BATCH, TOKENS, dtype=torch.long))


class UNetBlock(nn.Module):
    """Two convolutions with group norms and SiLU, and a skip connection."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, cin), nn.GroupNorm(8, cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv1(nn.functional.silu(self.norm1(x)))
        h = self.conv2(nn.functional.silu(self.norm2(h)))
        return self.skip(x) + h


class UNet(nn.Module):
    """Diffusion-like: group norms, strided convolutions down, transposed convolutions up."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.down2 = UNetBlock(width, width), UNetBlock(width, 2 * width)
        self.pool = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.middle = UNetBlock(2 * width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.up1 = UNetBlock(2 * width, width)
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(self.stem(x))
        x = self.middle(self.down2(self.pool(first)))
        x = torch.cat([self.up(x), first], dim=1)
        return self.head(self.up1(x))


class DoubleConv(nn.Sequential):
    """Two convolutions with batch norms, as in U-Nets for segmentation."""

    def __init__(self, cin: int, cout: int) -> None:
        layers: list[nn.Module] = []
        for channels in (cin, cout):
            layers += [nn.Conv2d(channels, cout, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]
        super().__init__(*layers)


class SegmentationUNet(nn.Module):
    """Max pooling down, bilinear upsampling and concatenation up."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.down1, self.down2 = DoubleConv(3, width), DoubleConv(width, 2 * width)
        self.middle = DoubleConv(2 * width, 2 * width)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.up2, self.up1 = DoubleConv(4 * width, width), DoubleConv(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.up(self.middle(self.pool(second)))
        x = self.up2(torch.cat([second, x], dim=1))
        x = self.up1(torch.cat([first, self.up(x)], dim=1))
        return self.head(x)


def _make_dcgan_generator() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = [nn.ConvTranspose2d(100, 128, 4, 1, 0, bias=False)]
    for cin, cout in ((128, 64), (64, 32), (32, 16)):
        layers += [nn.BatchNorm2d(cin), nn.ReLU(True)]
        layers += [nn.ConvTranspose2d(cin, cout, 4, 2, 1, bias=False)]
    layers += [nn.BatchNorm2d(16), nn.ReLU(True), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()]
    return nn.Sequential(*layers), torch.zeros(BATCH, 100, 1, 1)


def _make_dcgan_discriminator() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for cin, cout in ((16, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(cin, cout, 4, 2, 1, bias=False), nn.BatchNorm2d(cout)]
        layers += [nn.LeakyReLU(0.2)]
    layers += [nn.Conv2d(128, 1, 4, 1, 0, bias=False), nn.Flatten()]
    return nn.Sequential(*layers), _image()


class LstmLanguageModel(nn.Module):
    """Embedding, dropout, stacked LSTM, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.drop = nn.Dropout(0.2)
        self.rnn = nn.LSTM(64, 128, 2, batch_first=True, dropout=0.2)
        self.decoder = nn.Linear(128, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.drop(self.rnn(self.drop(self.embedding(x)))[0]))


class GruClassifier(nn.Module):
    """Bidirectional GRU on frames of a spectrogram."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(40, 64, 5, stride=2, padding=2)
        self.rnn = nn.GRU(64, 64, 3, batch_first=True, bidirectional=True)
        self.head = nn.Linear(128, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv(x)).transpose(1, 2)
        return self.head(self.rnn(x)[0][:, -1])


class Dlrm(nn.Module):
    """Embedding tables, two MLPs and pairwise dot products of features."""

    def __init__(self, tables: int = 6, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(5000, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        features = tables + 1
        self.rows, self.columns = torch.tril_indices(features, features, -1, device="cpu")
        pairs = features * (features - 1) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        found = torch.stack([x, *(table(ids[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(found, found.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.rows, self.columns]], dim=1))


class MixerBlock(nn.Module):
    """MLPs over tokens and over channels, with the tokens transposed."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.channels = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(MixerBlock(16, width) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


class DenseLayer(nn.Module):
    """Pre-activation bottleneck whose output is appended to its input."""

    def __init__(self, cin: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(cin), nn.BatchNorm2d(4 * growth)
        self.conv1 = nn.Conv2d(cin, 4 * growth, 1, bias=False)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.conv1(torch.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(torch.relu(self.norm2(out)))], 1)


def _make_densenet() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32)]
    layers += [nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    layers += [DenseLayer(32 + 16 * i, 16) for i in range(3)]
    layers += [nn.BatchNorm2d(80), nn.ReLU(), nn.Conv2d(80, 40, 1, bias=False), nn.AvgPool2d(2)]
    layers += [DenseLayer(40 + 16 * i, 16) for i in range(3)]
    layers += [nn.BatchNorm2d(88), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(88, 10)), _image()


class SqueezeExcite(nn.Module):
    """Gate of channels by their means."""

    def __init__(self, channels: int, gate: type[nn.Module] = nn.Hardsigmoid) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, channels // 4, 1)
        self.expand = nn.Conv2d(channels // 4, channels, 1)
        self.inner = nn.ReLU() if gate is nn.Hardsigmoid else nn.SiLU()
        self.gate = gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(self.expand(self.inner(self.reduce(self.pool(x)))))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, squeeze-excite, projection."""

    def __init__(self, width: int, activation: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        wide = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), activation(),
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            activation(), SqueezeExcite(wide, gate),
            nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def _make_mobile(activation: type[nn.Module], gate: type[nn.Module]) -> Any:
    stem = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), activation()]
    body = [InvertedResidual(16, activation, gate) for _ in range(3)]
    head = [nn.Conv2d(16, 96, 1, bias=False), nn.BatchNorm2d(96), activation()]
    head += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(96, 10)]
    return nn.Sequential(*stem, *body, *head), _image()


def _make_vgg() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = []
    for cin, cout in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(cin, cout, 3, padding=1), nn.ReLU(True)]
        layers += [nn.Conv2d(cout, cout, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2)]
    layers += [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.Dropout(), nn.Linear(128, 10)), _image()


class VideoBlock(nn.Module):
    """3-D residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv3d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm3d(width), nn.BatchNorm3d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + x)


def _make_video() -> tuple[nn.Module, torch.Tensor]:
    stem = [nn.Conv3d(3, 16, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)]
    stem += [nn.BatchNorm3d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 10)]
    net = nn.Sequential(*stem, VideoBlock(16), VideoBlock(16), *head)
    return net, torch.zeros(BATCH, 3, 8, 32, 32)


class NanoBlock(nn.Module):
    """Pre-norm attention and MLP of a small GPT, in plain torch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.ln1(x)).split(width, dim=2)
        q, k, v = (p.view(batch, tokens, self.heads, -1).transpose(1, 2) for p in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(batch, tokens, width))
        return x + self.mlp(self.ln2(x))


class NanoGpt(nn.Module):
    """Small GPT with learned positions and a tied head."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(TOKENS, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(NanoBlock(width, 4) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        x = self.drop(self.wte(x) + self.wpe(positions))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LoraLinear(nn.Module):
    """Frozen linear layer with a trainable low-rank update."""

    def __init__(self, cin: int, cout: int, rank: int = 8) -> None:
        super().__init__()
        self.base = nn.Linear(cin, cout).requires_grad_(False)
        self.down, self.up = nn.Linear(cin, rank, bias=False), nn.Linear(rank, cout, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2.0 * self.up(self.down(x))


def _make_lora() -> Any:
    net = NanoGpt().requires_grad_(False)
    for block in net.blocks:
        block.qkv, block.out = LoraLinear(64, 192), LoraLinear(64, 64)
    return net, torch.zeros(BATCH, TOKENS, dtype=torch.long)


def _make_torch_encoder() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    head = nn.Linear(64, 10)
    net = nn.Sequential(nn.Linear(40, 64), nn.TransformerEncoder(layer, 3), head)
    return net, torch.zeros(BATCH, TOKENS, 40)


def _make_mlp() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = []
    for cin, cout in ((784, 512), (512, 256)):
        layers += [nn.Linear(cin, cout), nn.BatchNorm1d(cout), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(256, 10)), torch.zeros(BATCH, 784)


def _whisper_inputs() -> dict[str, torch.Tensor]:
    return {
        "input_features": torch.zeros(BATCH, 80, 100),
        "decoder_input_ids": torch.zeros(BATCH, TOKENS, dtype=torch.long),
    }


_WHISPER = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "max_source_positions": 50,
    "pad_token_id": 0,
    **_WORDS,
}

REAL_NETWORKS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "gpt2": _make_transformers(
        "GPT2LMHeadModel", "GPT2Config", _tokens, n_embd=64, n_head=4, n_layer=3, **_WORDS
    ),
    "gpt-neox": _make_transformers(
        "GPTNeoXForCausalLM", "GPTNeoXConfig", _tokens, **_ENCODER, **_WORDS
    ),
    "opt": _make_transformers(
        "OPTForCausalLM", "OPTConfig", _tokens, **_SMALL, ffn_dim=256, word_embed_proj_dim=64,
        **_WORDS,
    ),
    "llama": _make_transformers("LlamaForCausalLM", "LlamaConfig", _tokens, **_GROUPED),
    "mistral": _make_transformers("MistralForCausalLM", "MistralConfig", _tokens, **_GROUPED),
    "qwen2": _make_transformers("Qwen2ForCausalLM", "Qwen2Config", _tokens, **_GROUPED),
    "qwen3": _make_transformers("Qwen3ForCausalLM", "Qwen3Config", _tokens, **_GROUPED),
    "gemma": _make_transformers("GemmaForCausalLM", "GemmaConfig", _tokens, **_GROUPED),
    "phi3": _make_transformers(
        "Phi3ForCausalLM", "Phi3Config", _tokens, **_GROUPED, pad_token_id=0
    ),
    "mixtral": _make_transformers(
        "MixtralForCausalLM", "MixtralConfig", _tokens, **_GROUPED, num_local_experts=4,
        experts_implementation="eager",
    ),
    "bert": _make_transformers("BertForMaskedLM", "BertConfig", _tokens, **_ENCODER, **_WORDS),
    "bert classifier": _make_transformers(
        "BertForSequenceClassification", "BertConfig", _tokens, **_ENCODER, **_WORDS
    ),
    "roberta": _make_transformers(
        "RobertaForSequenceClassification", "RobertaConfig", _tokens, **_ENCODER, **_WORDS
    ),
    "distilbert": _make_transformers(
        "DistilBertForSequenceClassification", "DistilBertConfig", _tokens, dim=64, n_layers=3,
        n_heads=4, hidden_dim=256, **_WORDS,
    ),
    "t5": _make_transformers(
        "T5ForConditionalGeneration", "T5Config", _encoder_decoder, d_model=64, d_ff=256,
        num_heads=4, d_kv=16, num_layers=2, **_WORDS,
    ),
    "vit": _make_transformers(
        "ViTForImageClassification", "ViTConfig", _pixels(), **_ENCODER, image_size=64,
        patch_size=16,
    ),
    "deit": _make_transformers(
        "DeiTForImageClassification", "DeiTConfig", _pixels(), **_ENCODER, image_size=64,
        patch_size=16,
    ),
    "clip": _make_transformers(
        "CLIPVisionModel", "CLIPVisionConfig", _pixels(), **_ENCODER, image_size=64,
        patch_size=16,
    ),
    "swin": _make_transformers(
        "SwinForImageClassification", "SwinConfig", _pixels(), image_size=64, embed_dim=24,
        depths=[2, 2], num_heads=[2, 4], window_size=4,
    ),
    "convnext": _make_transformers(
        "ConvNextForImageClassification", "ConvNextConfig", _pixels(),
        hidden_sizes=[16, 32, 48, 64], depths=[2, 2, 2, 2],
    ),
    "resnet": _make_transformers(
        "ResNetForImageClassification", "ResNetConfig", _pixels(), depths=[2, 2, 2, 2],
        embedding_size=16, hidden_sizes=[32, 48, 64, 96],
    ),
    "mobilenet v2": _make_transformers(
        "MobileNetV2ForImageClassification", "MobileNetV2Config", _pixels()
    ),
    "efficientnet": _make_transformers(
        "EfficientNetForImageClassification", "EfficientNetConfig", _pixels(),
        width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=640,
    ),
    "segformer": _make_transformers(
        "SegformerForSemanticSegmentation", "SegformerConfig", _pixels(),
        hidden_sizes=[16, 32, 48, 64], num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=32,
    ),
    "whisper": _make_transformers(
        "WhisperForConditionalGeneration", "WhisperConfig", _whisper_inputs, **_WHISPER
    ),
    "wav2vec2": _make_transformers(
        "Wav2Vec2ForCTC", "Wav2Vec2Config", lambda: {"input_values": torch.zeros(BATCH, 4000)},
        **_ENCODER, conv_dim=(32,) * 7, num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4, mask_time_prob=0.0, vocab_size=32,
    ),
    "mamba": _make_transformers(
        "MambaForCausalLM", "MambaConfig", _tokens, hidden_size=64, num_hidden_layers=2,
        state_size=8, **_WORDS,
    ),
    "nano gpt": lambda: (NanoGpt(), torch.zeros(BATCH, TOKENS, dtype=torch.long)),
    "torch encoder": _make_torch_encoder,
    "unet": lambda: (UNet(), _image()),
    "segmentation unet": lambda: (SegmentationUNet(), _image()),
    "dcgan generator": _make_dcgan_generator,
    "dcgan discriminator": _make_dcgan_discriminator,
    "lstm language model": lambda: (
        LstmLanguageModel(), torch.zeros(BATCH, TOKENS, dtype=torch.long)
    ),
    "gru classifier": lambda: (GruClassifier(), torch.zeros(BATCH, 40, 20)),
    "dlrm": lambda: (
        Dlrm(), (torch.zeros(BATCH, 13), torch.zeros(BATCH, 6, dtype=torch.long))
    ),
    "mixer": lambda: (Mixer(), _image()),
    "densenet": _make_densenet,
    "mobilenet v3": lambda: _make_mobile(nn.Hardswish, nn.Hardsigmoid),
    "efficientnet torch": lambda: _make_mobile(nn.SiLU, nn.Sigmoid),
    "vgg": _make_vgg,
    "video": _make_video,
    "lora": _make_lora,
    "mlp": _make_mlp,
}  # fmt: skip
