"""The networks of the fifth test: fixed before any of them was estimated or measured."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.anywhere.networks import H, Make, V, hf, pair, signal, text, vision
from benchmarks.anywhere.truth import BenchmarkNetwork as Network
from benchmarks.anywhere.truth import TrainingExample, take_loss


class OdeClassifier(nn.Module):
    """A neural ODE: one convolutional field, integrated by Runge-Kutta steps."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.GroupNorm(8, width), nn.ReLU())
        self.field = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1),
            nn.GroupNorm(8, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1),
            nn.Tanh(),
        )
        self.head, self.steps = nn.Linear(width, 10), steps

    def forward(self, x: Tensor) -> Tensor:
        x, dt = self.stem(x), 1.0 / self.steps
        for _ in range(self.steps):
            a = self.field(x)
            b = self.field(x + 0.5 * dt * a)
            c = self.field(x + 0.5 * dt * b)
            d = self.field(x + dt * c)
            x = x + dt / 6 * (a + 2 * b + 2 * c + d)
        return self.head(x.mean((2, 3)))


class StyleGenerator(nn.Module):
    """Modulated convolutions with weights for every sample (StyleGAN 2): grouped convolutions."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.map = nn.Sequential(
            *(layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.LeakyReLU(0.2)))
        )
        self.start = nn.Parameter(torch.randn(1, width, 8, 8))
        widths = [width // 2 ** (level // 2) for level in range(levels + 1)]
        self.kernels = nn.ParameterList(
            nn.Parameter(torch.randn(o, i, 3, 3) * (9 * i) ** -0.5) for i, o in pairwise(widths)
        )
        self.styles = nn.ModuleList(nn.Linear(256, i) for i in widths[:-1])
        self.to_rgb = nn.Conv2d(widths[-1], 3, 1)

    def forward(self, z: Tensor) -> Tensor:
        w = self.map(z)
        x = self.start.expand(len(z), -1, -1, -1)
        for kernel, style in zip(self.kernels, self.styles, strict=True):
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            weight = kernel.unsqueeze(0) * (1 + style(w))[:, None, :, None, None]
            weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
            b, c, h, s = x.shape
            out = weight.shape[1]
            x = F.conv2d(
                x.reshape(1, b * c, h, s), weight.reshape(b * out, c, 3, 3), padding=1, groups=b
            )
            x = F.leaky_relu(x.view(b, out, h, s), 0.2)
        return self.to_rgb(x)


class ConvLstm(nn.Module):
    """A convolutional LSTM that reads a video and predicts its next frame."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(
            nn.Conv2d((1 if at == 0 else width) + width, 4 * width, 5, padding=2)
            for at in range(depth)
        )
        self.head, self.width = nn.Conv2d(width, 1, 1), width

    def forward(self, video: Tensor) -> Tensor:
        b, frames, _, h, w = video.shape
        states = [
            (video.new_zeros(b, self.width, h, w), video.new_zeros(b, self.width, h, w))
            for _ in self.cells
        ]
        for frame in range(frames):
            x = video[:, frame]
            for at, cell in enumerate(self.cells):
                hidden, memory = states[at]
                i, f, o, g = cell(torch.cat([x, hidden], 1)).chunk(4, 1)
                memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
                x = o.sigmoid() * memory.tanh()
                states[at] = x, memory
        return self.head(x)


class LongConvolution(nn.Module):
    """A language model with long convolutions by FFT (Hyena) in place of attention."""

    def __init__(self, vocabulary: int, width: int, depth: int, tokens: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.inputs = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.filters = nn.ParameterList(
            nn.Parameter(torch.randn(width, tokens) * tokens**-0.5) for _ in range(depth)
        )
        self.outputs = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x, n = self.embed(ids), ids.shape[1]
        for at, (mix, kernel, out, mlp) in enumerate(
            zip(self.inputs, self.filters, self.outputs, self.mlps, strict=True)
        ):
            q, k, v = mix(self.norms[2 * at](x)).chunk(3, -1)
            u = (k * v).transpose(1, 2).float()
            y = torch.fft.irfft(torch.fft.rfft(u, 2 * n) * torch.fft.rfft(kernel, 2 * n), 2 * n)[
                ..., :n
            ]
            x = x + out(q * y.transpose(1, 2).to(q.dtype))
            x = x + mlp(self.norms[2 * at + 1](x))
        return self.head(x)


def square(output: Tensor) -> Tensor:
    """Return the mean square of an output."""
    return output.float().square().mean()


def plain(
    cls: Callable[..., nn.Module],
    inputs: Callable[[int], Any],
    loss: Any = "cross_entropy",
    **options: Any,
) -> Make:
    """Return a function that builds one of the modules above."""
    return lambda batch: TrainingExample(cls(**options), inputs(batch), loss)


def vlm(batch: int) -> TrainingExample:
    """Return a vision-language model (LLaVA) with a small tower and a small decoder."""
    library: Any = import_module("transformers")
    tower = library.CLIPVisionConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
        image_size=224, patch_size=16,
    )  # fmt: skip
    decoder = library.LlamaConfig(
        vocab_size=32064, hidden_size=1536, intermediate_size=4096, num_hidden_layers=14,
        num_attention_heads=12, num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    config = library.LlavaConfig(
        vision_config=tower, text_config=decoder, image_token_id=32000, vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )  # fmt: skip
    net = library.LlavaForConditionalGeneration(config)
    ids = torch.randint(5, 31000, (batch, 196 + 188))
    ids[:, 4:200] = 32000
    labels = ids.clone()
    labels[:, :200] = -100
    return TrainingExample(
        net,
        {"input_ids": ids, "pixel_values": torch.randn(batch, 3, 224, 224), "labels": labels},
        take_loss,
    )


def make_swin2sr(batch: int) -> TrainingExample:
    """Return a Swin2SR that doubles the size of images, with the mean square of its output."""
    library: Any = import_module("transformers")
    config = library.Swin2SRConfig(
        embed_dim=60, depths=[6, 6, 6, 6], num_heads=[6, 6, 6, 6], window_size=8, image_size=64,
        upscale=2, upsampler="pixelshuffledirect",
    )  # fmt: skip
    net, images = library.Swin2SRForImageSuperResolution(config), torch.rand(batch, 3, 64, 64)
    return TrainingExample(net, images, lambda output: square(output.reconstruction))


def make_fcn(batch: int) -> TrainingExample:
    """Return an FCN with a ResNet-50 for 21 classes at 256x256."""
    models: Any = import_module("torchvision.models.segmentation")
    net = models.fcn_resnet50(weights=None, weights_backbone=None, num_classes=21)
    images, masks = torch.randn(batch, 3, 256, 256), torch.zeros(batch, 256, 256, dtype=torch.long)
    return TrainingExample(net, images, lambda output: F.cross_entropy(output["out"], masks))


def series(batch: int) -> dict[str, Tensor]:
    """Return 32 channels of 512 past and 96 future values."""
    return {"past_values": torch.randn(batch, 512, 32), "future_values": torch.randn(batch, 96, 32)}


ODE = plain(OdeClassifier, lambda batch: torch.randn(batch, 3, 32, 32), width=64, steps=10)
STYLE = plain(StyleGenerator, lambda batch: torch.randn(batch, 256), square, width=512, levels=5)
CONV_LSTM = plain(
    ConvLstm, lambda batch: torch.randn(batch, 10, 1, 64, 64), square, width=64, depth=2
)
HYENA = plain(
    LongConvolution, lambda batch: torch.randint(0, 8192, (batch, 1024)), vocabulary=8192,
    width=512, depth=8, tokens=1024,
)  # fmt: skip
VIDEOMAE = hf(
    "VideoMAEForVideoClassification", signal("pixel_values", (16, 3, 224, 224), 400),
    num_labels=400,
)  # fmt: skip
MODERNBERT = hf(
    "ModernBertForMaskedLM", text(50368, 256), reference_compile=False,
    attn_implementation="sdpa", num_hidden_layers=12,
)  # fmt: skip
DINOV2 = hf(
    "Dinov2ForImageClassification", signal("pixel_values", (3, 224, 224), 1000), hidden_size=384,
    num_hidden_layers=12, num_attention_heads=6, image_size=224, patch_size=14, num_labels=1000,
)  # fmt: skip
BLOOM = hf(
    "BloomForCausalLM", text(250880, 256), vocab_size=250880, hidden_size=1024, n_layer=24,
    n_head=16, use_cache=False,
)  # fmt: skip
MIXER = hf(
    "PatchTSMixerForPrediction", series, context_length=512, patch_length=16, patch_stride=16,
    num_input_channels=32, d_model=128, num_layers=8, prediction_length=96, loss="mse",
)  # fmt: skip
MARIAN = hf(
    "MarianMTModel", pair(58100, 64, 64), "MarianConfig", vocab_size=58101, d_model=512,
    encoder_layers=6, decoder_layers=6, encoder_attention_heads=8, decoder_attention_heads=8,
    encoder_ffn_dim=2048, decoder_ffn_dim=2048, pad_token_id=58100, decoder_start_token_id=58100,
    eos_token_id=0, forced_eos_token_id=0, use_cache=False,
)  # fmt: skip
FRESH: tuple[Network, ...] = (
    Network("neural_ode", "vision", ODE, 128, "tf32", "sgd"),
    Network("videomae", "video", VIDEOMAE, 8, "bf16", "adamw", H, 1),
    Network("style_generator", "generation", STYLE, 16, "tf32", "adam"),
    Network("modernbert", "language", MODERNBERT, 64, "bf16", "adamw", H, 1),
    Network("llava_small", "multimodal", vlm, 8, "bf16", "adamw", H, 1),
    Network("conv_lstm", "video", CONV_LSTM, 32, "tf32", "adam"),
    Network("dinov2_s", "vision", DINOV2, 128, "bf16", "adamw", H),
    Network("bloom_560m", "language", BLOOM, 8, "bf16", "adamw", H, 1),
    Network("swin2sr", "generation", make_swin2sr, 16, "fp32", "adam", H, 1),
    Network("hyena", "language", HYENA, 16, "bf16", "adamw", "", 1),
    Network("fcn_resnet50", "vision", make_fcn, 32, "tf32", "sgd", V),
    Network("patch_mixer", "series", MIXER, 64, "tf32", "adam", H),
    Network("squeezenet1_1", "vision", vision("squeezenet1_1"), 64, "fp32", "sgd", V),
    Network("marian", "language", MARIAN, 64, "tf32", "adamw", H, 1),
)
"""Networks in the order of measuring, so that the first ones are a fair sample."""
