"""Networks of the third test that generate: images from text or noise, and sound."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from generative_networks import TimedResidual, embed_times
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from training_examples import TrainingExample, take_second

# ---------------------------------------------------------------------------------------------
# Diffusion with text


class CrossAttention(nn.Module):
    """Attention of pixels to words, or among themselves."""

    def __init__(self, width: int, source: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k = nn.Linear(source, width, bias=False)
        self.to_v = nn.Linear(source, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        parts = (self.to_q(x), self.to_k(source), self.to_v(source))
        q, k, v = (one.unflatten(2, (self.heads, -1)).transpose(1, 2) for one in parts)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out: Tensor = self.out(y)
        return out


class TextTransformer(nn.Module):
    """A transformer block on the pixels of a map that also reads a text."""

    def __init__(self, width: int, text: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.own = CrossAttention(width, width, width // 64)
        self.cross = CrossAttention(width, text, width // 64)
        self.gate, self.shrink = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, maps: Tensor, texts: Tensor) -> Tensor:
        x = self.first(self.norm(maps).flatten(2).transpose(1, 2))
        normed = self.norm1(x)
        x = x + self.own(normed, normed)
        x = x + self.cross(self.norm2(x), texts)
        value, gate = self.gate(self.norm3(x)).chunk(2, dim=-1)
        x = self.last(x + self.shrink(value * F.gelu(gate)))
        return maps + x.transpose(1, 2).reshape(maps.shape)


class TextStage(nn.Module):
    """A residual block with the time and a transformer block with the text."""

    def __init__(self, cin: int, cout: int, embedding: int, text: int) -> None:
        super().__init__()
        self.residual = TimedResidual(cin, cout, embedding)
        self.transformer = TextTransformer(cout, text)

    def forward(self, x: Tensor, time: Tensor, texts: Tensor) -> Tensor:
        out: Tensor = self.transformer(self.residual(x, time), texts)
        return out


class TextDiffusionUNet(nn.Module):
    """A U-Net over latent images that predicts noise from a text, like Stable Diffusion's."""

    def __init__(self, width: int, factors: tuple[int, ...], text: int) -> None:
        super().__init__()
        self.width, embedding = width, 4 * width
        self.time = nn.Sequential(
            nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding)
        )
        self.first = nn.Conv2d(4, width, 3, padding=1)
        widths = [width, *(factor * width for factor in factors)]
        pairs = list(itertools.pairwise(widths))
        self.down1 = nn.ModuleList(TextStage(a, b, embedding, text) for a, b in pairs)
        self.down2 = nn.ModuleList(TextStage(b, b, embedding, text) for _, b in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(b, b, 3, 2, 1) for _, b in pairs[:-1])
        self.middle = TextStage(widths[-1], widths[-1], embedding, text)
        self.up1 = nn.ModuleList(TextStage(2 * b, b, embedding, text) for _, b in pairs)
        self.up2 = nn.ModuleList(TextStage(2 * b, a, embedding, text) for a, b in pairs)
        self.grow = nn.ModuleList(nn.Conv2d(a, a, 3, padding=1) for a, _ in pairs[1:])
        self.norm, self.last = nn.GroupNorm(32, width), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor, texts: Tensor) -> Tensor:
        time = self.time(embed_times(times, self.width))
        x, skips = self.first(x), []
        for level, (one, two) in enumerate(zip(self.down1, self.down2, strict=True)):
            x = self.shrink[level - 1](x) if level else x
            for stage in (one, two):
                x = stage(x, time, texts)
                skips.append(x)
        x = self.middle(x, time, texts)
        for level in reversed(range(len(self.up1))):
            for stage in (self.up1[level], self.up2[level]):
                x = stage(torch.cat((x, skips.pop()), dim=1), time, texts)
            if level:
                x = self.grow[level - 1](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        out: Tensor = self.last(F.silu(self.norm(x)))
        return out


def make_text_diffusion(batch: int) -> TrainingExample:
    """Return a diffusion U-Net for latent images of 32x32 with 77 words of 768."""
    noise = torch.randn(batch, 4, 32, 32)
    inputs = (
        torch.randn(batch, 4, 32, 32),
        torch.randint(0, 1000, (batch,)),
        torch.randn(batch, 77, 768),
    )
    net = TextDiffusionUNet(width=256, factors=(1, 2, 4), text=768)
    return TrainingExample(net, inputs, lambda output: F.mse_loss(output, noise))


# ---------------------------------------------------------------------------------------------
# A GAN with styles


class StyledConv(nn.Module):
    """A convolution whose input channels are scaled by a style.

    Its outputs are normalized and get noise, except those of one pixel, which make colours.
    """

    def __init__(self, cin: int, cout: int, code: int, kernel: int = 3) -> None:
        super().__init__()
        self.kernel = kernel
        self.style = nn.Linear(code, cin)
        self.weight = nn.Parameter(torch.randn(cout, cin, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(cout))
        self.strength = nn.Parameter(torch.zeros(())) if kernel > 1 else None

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        style = 1.0 + self.style(code)
        weight = self.weight / math.sqrt(self.weight[0].numel())
        y = F.conv2d(x * style[:, :, None, None], weight, padding=self.kernel // 2)
        bias = self.bias[None, :, None, None]
        if self.strength is None:
            return y + bias
        power = style.square() @ weight.square().sum(dim=(2, 3)).t()
        y = y * torch.rsqrt(power + 1e-8)[:, :, None, None]
        noise = self.strength * torch.randn_like(y[:, :1])
        return F.leaky_relu(y + noise + bias, 0.2) * math.sqrt(2.0)


class StyleGenerator(nn.Module):
    """Images from codes: a learned start, two styled convolutions at each resolution."""

    def __init__(self, code: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(8):
            layers += [nn.Linear(code, code), nn.LeakyReLU(0.2)]
        self.mapping = nn.Sequential(*layers)
        self.start = nn.Parameter(torch.randn(1, widths[0], 4, 4))
        pairs = list(itertools.pairwise((widths[0], *widths)))
        self.conv1 = nn.ModuleList(StyledConv(a, b, code) for a, b in pairs)
        self.conv2 = nn.ModuleList(StyledConv(b, b, code) for _, b in pairs)
        self.colour = nn.ModuleList(StyledConv(b, 3, code, kernel=1) for _, b in pairs)

    def forward(self, codes: Tensor) -> Tensor:
        code = self.mapping(F.normalize(codes) * math.sqrt(codes.shape[1]))
        x, image = self.start.expand(len(codes), -1, -1, -1), torch.zeros((), device=codes.device)
        stages = zip(self.conv1, self.conv2, self.colour, strict=True)
        for level, (conv1, conv2, colour) in enumerate(stages):
            if level:
                x, image = (
                    F.interpolate(one, scale_factor=2.0, mode="bilinear", align_corners=False)
                    for one in (x, image)
                )
            x = conv2(conv1(x, code), code)
            image = image + colour(x, code)
        return image


class JudgeBlock(nn.Module):
    """A residual block that halves the resolution."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cin, 3, padding=1)
        self.conv2 = nn.Conv2d(cin, cout, 3, stride=2, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.conv2(F.leaky_relu(self.conv1(x), 0.2)), 0.2)
        return (y + self.skip(F.avg_pool2d(x, 2))) / math.sqrt(2.0)


class StyleGan(nn.Module):
    """A generator with styles and a residual discriminator, trained in one step."""

    def __init__(self, code: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.generator = StyleGenerator(code, widths)
        blocks = (JudgeBlock(b, a) for a, b in reversed(list(itertools.pairwise(widths))))
        self.discriminator = nn.Sequential(
            nn.Conv2d(3, widths[-1], 1), nn.LeakyReLU(0.2), *blocks,
            nn.Conv2d(widths[0], widths[0], 3, padding=1), nn.LeakyReLU(0.2), nn.Flatten(),
            nn.Linear(16 * widths[0], widths[0]), nn.LeakyReLU(0.2), nn.Linear(widths[0], 1),
        )  # fmt: skip

    def forward(self, codes: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        made = self.generator(codes)
        real, fake = self.discriminator(images), self.discriminator(made.detach())
        judge = F.softplus(-real).mean() + F.softplus(fake).mean()
        return made, judge + F.softplus(-self.discriminator(made)).mean()


def make_style_gan(batch: int) -> TrainingExample:
    """Return a StyleGAN 2 for images of 128x128, without its penalties on gradients."""
    inputs = (torch.randn(batch, 512), torch.randn(batch, 3, 128, 128))
    return TrainingExample(StyleGan(512, (512, 512, 512, 512, 256, 128)), inputs, take_second)


# ---------------------------------------------------------------------------------------------
# A codec of sound


def make_sound_conv(cin: int, cout: int, kernel: int, stride: int = 1) -> nn.Module:
    """Return a convolution over time with weight norm."""
    padding = (kernel - stride + 1) // 2
    return weight_norm(nn.Conv1d(cin, cout, kernel, stride, padding))


class SoundResidual(nn.Module):
    """Two convolutions with ELU around a bottleneck."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ELU(), make_sound_conv(width, width // 2, 3),
            nn.ELU(), make_sound_conv(width // 2, width, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


class SoundCodec(nn.Module):
    """An autoencoder of sound with residual vector quantization, like EnCodec."""

    def __init__(self, width: int, code: int, strides: tuple[int, ...], tables: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [make_sound_conv(1, width, 7)]
        for rate in strides:
            layers += [SoundResidual(width), nn.ELU()]
            layers += [make_sound_conv(width, 2 * width, 2 * rate, rate)]
            width *= 2
        self.encoder = nn.Sequential(*layers)
        self.memory_in, self.memory_out = (
            nn.LSTM(width, width, 2, batch_first=True) for _ in range(2)
        )
        self.to_code = nn.Sequential(nn.ELU(), make_sound_conv(width, code, 7))
        self.tables = nn.ModuleList(nn.Embedding(1024, code) for _ in range(tables))
        layers = []
        self.from_code = make_sound_conv(code, width, 7)
        for rate in reversed(strides):
            up = nn.ConvTranspose1d(
                width, width // 2, 2 * rate, rate, (rate + 1) // 2, output_padding=rate % 2
            )
            width //= 2
            layers += [nn.ELU(), weight_norm(up), SoundResidual(width)]
        self.decoder = nn.Sequential(*layers, nn.ELU(), make_sound_conv(width, 1, 7))

    @staticmethod
    def remember(lstm: nn.Module, x: Tensor) -> Tensor:
        """Return the input with the LSTM's output over time."""
        return x + lstm(x.transpose(1, 2))[0].transpose(1, 2)

    def quantize(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the nearest entries of all tables, and the loss of the code."""
        rest, total, loss = code, torch.zeros_like(code), code.new_zeros(())
        for table in self.tables:
            entries: Any = table.weight
            distances = entries.square().sum(dim=1) - 2 * rest @ entries.t()
            found = table(distances.argmin(dim=-1))
            loss = loss + F.mse_loss(found, rest.detach()) + F.mse_loss(rest, found.detach())
            rest, total = rest - found.detach(), total + found
        return code + (total - code).detach(), loss

    def forward(self, sound: Tensor) -> tuple[Tensor, Tensor]:
        x = self.to_code(self.remember(self.memory_in, self.encoder(sound)))
        code, loss = self.quantize(x.transpose(1, 2))
        x = self.remember(self.memory_out, self.from_code(code.transpose(1, 2)))
        made = self.decoder(x)
        for size in (512, 2048):
            loss = loss + F.l1_loss(find_spectrum(made, size), find_spectrum(sound, size))
        return made, loss + F.l1_loss(made, sound)


def find_spectrum(sound: Tensor, size: int) -> Tensor:
    """Return the magnitudes of short-time spectra."""
    window = torch.hann_window(size, device=sound.device)
    waves = torch.stft(sound.squeeze(1), size, size // 4, window=window, return_complex=True)
    return torch.sqrt(waves.real.square() + waves.imag.square() + 1e-7)


def make_audio_codec(batch: int) -> TrainingExample:
    """Return a codec for 1 s of sound at 24 kHz with eight tables of 1,024 entries."""
    net = SoundCodec(width=32, code=128, strides=(2, 4, 5, 8), tables=8)
    return TrainingExample(net, torch.randn(batch, 1, 24000), take_second)
