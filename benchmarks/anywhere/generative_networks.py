"""Networks that generate: a diffusion U-Net, a GAN, a VAE and a vocoder."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from training_examples import TrainingExample

# ---------------------------------------------------------------------------------------------
# Diffusion


def embed_times(times: Tensor, width: int) -> Tensor:
    """Return sinusoidal embeddings of diffusion times."""
    half = width // 2
    rates = torch.exp(-math.log(10000.0) * torch.arange(half, device=times.device) / half)
    angles = times.float()[:, None] * rates
    return torch.cat((angles.cos(), angles.sin()), dim=1)


class TimedResidual(nn.Module):
    """A residual block of two convolutions that is shifted by the time embedding."""

    def __init__(self, cin: int, cout: int, embedding: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.time = nn.Linear(embedding, cout)
        self.norm2, self.conv2 = nn.GroupNorm(32, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        out: Tensor = self.skip(x) + self.conv2(F.silu(self.norm2(h)))
        return out


class PixelAttention(nn.Module):
    """Attention between all pixels of a feature map."""

    def __init__(self, channels: int, head_dim: int = 64) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.norm = nn.GroupNorm(32, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        shape = (batch, 3, channels // self.head_dim, self.head_dim, height * width)
        q, k, v = self.qkv(self.norm(x)).reshape(shape).transpose(3, 4).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(x.shape)
        out: Tensor = x + self.out(y)
        return out


class DiffusionUNet(nn.Module):
    """A U-Net that predicts noise, with attention at the two smallest resolutions."""

    def __init__(self, width: int, factors: tuple[int, ...], depth: int) -> None:
        super().__init__()
        self.width, embedding = width, 4 * width
        self.time = nn.Sequential(
            nn.Linear(width, embedding), nn.SiLU(), nn.Linear(embedding, embedding)
        )
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, channels = [width], width
        for level, factor in enumerate(factors):
            for _ in range(depth):
                self.down.append(TimedResidual(channels, factor * width, embedding))
                channels = factor * width
                skips.append(channels)
                if level >= len(factors) - 2:
                    self.down.append(PixelAttention(channels))
            if level < len(factors) - 1:
                self.down.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                skips.append(channels)
        self.middle1 = TimedResidual(channels, channels, embedding)
        self.middle2 = PixelAttention(channels)
        self.middle3 = TimedResidual(channels, channels, embedding)
        for level, factor in reversed(list(enumerate(factors))):
            for _ in range(depth + 1):
                self.up.append(TimedResidual(channels + skips.pop(), factor * width, embedding))
                channels = factor * width
            if level:
                self.up.append(nn.Conv2d(channels, channels, 3, padding=1))
        self.norm, self.last = nn.GroupNorm(32, channels), nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        time = self.time(embed_times(times, self.width))
        x = self.first(x)
        skips = [x]
        for layer in self.down:
            x = layer(x, time) if isinstance(layer, TimedResidual) else layer(x)
            if isinstance(layer, PixelAttention):
                skips[-1] = x
            else:
                skips.append(x)
        x = self.middle3(self.middle2(self.middle1(x, time)), time)
        for layer in self.up:
            if isinstance(layer, TimedResidual):
                x = layer(torch.cat((x, skips.pop()), dim=1), time)
            else:
                x = layer(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        out: Tensor = self.last(F.silu(self.norm(x)))
        return out


def make_diffusion_unet(batch: int) -> TrainingExample:
    """Return a diffusion U-Net for images of 64x64."""
    noise = torch.randn(batch, 3, 64, 64)
    inputs = (torch.randn(batch, 3, 64, 64), torch.randint(0, 1000, (batch,)))
    net = DiffusionUNet(width=128, factors=(1, 2, 3, 4), depth=2)
    return TrainingExample(net, inputs, lambda output: F.mse_loss(output, noise))


# ---------------------------------------------------------------------------------------------
# GAN


class Gan(nn.Module):
    """A generator and a discriminator of 128x128 images, trained in one step."""

    def __init__(self, code: int, width: int) -> None:
        super().__init__()
        widths = [width * factor for factor in (16, 8, 4, 2, 1)]
        layers: list[nn.Module] = [nn.ConvTranspose2d(code, widths[0], 4, bias=False)]
        for cin, cout in itertools.pairwise(widths):
            layers += [nn.BatchNorm2d(cin), nn.ReLU(True)]
            layers += [nn.ConvTranspose2d(cin, cout, 4, stride=2, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU(True)]
        layers += [nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1), nn.Tanh()]
        self.generator = nn.Sequential(*layers)
        layers = [nn.Conv2d(3, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        for cout, cin in zip(reversed(widths[:-1]), reversed(widths[1:]), strict=True):
            layers += [nn.Conv2d(cin, cout, 4, stride=2, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(cout), nn.LeakyReLU(0.2)]
        self.discriminator = nn.Sequential(*layers, nn.Conv2d(widths[0], 1, 4))

    def forward(self, codes: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        made = self.generator(codes)
        real, fake = self.discriminator(images), self.discriminator(made.detach())
        judge = F.relu(1.0 - real).mean() + F.relu(1.0 + fake).mean()
        return made, judge - self.discriminator(made).mean()


def make_gan(batch: int) -> TrainingExample:
    """Return a convolutional GAN with hinge loss."""
    inputs = (torch.randn(batch, 128, 1, 1), torch.randn(batch, 3, 128, 128))
    return TrainingExample(Gan(128, width=64), inputs, lambda output: output[1])


# ---------------------------------------------------------------------------------------------
# VAE


class ConvVae(nn.Module):
    """A convolutional variational autoencoder of 64x64 images."""

    def __init__(self, latent: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for cin, cout in zip((3, *widths), widths, strict=False):
            layers += [nn.Conv2d(cin, cout, 3, stride=2, padding=1), nn.BatchNorm2d(cout)]
            layers += [nn.LeakyReLU()]
        self.encoder = nn.Sequential(*layers, nn.Flatten())
        side = 64 >> len(widths)
        self.mean = nn.Linear(widths[-1] * side * side, latent)
        self.log_variance = nn.Linear(widths[-1] * side * side, latent)
        layers = [nn.Linear(latent, widths[-1] * side * side)]
        layers += [nn.Unflatten(1, (widths[-1], side, side))]
        for cin, cout in zip(reversed(widths), (*reversed(widths[:-1]), widths[0]), strict=True):
            layers += [nn.ConvTranspose2d(cin, cout, 3, stride=2, padding=1, output_padding=1)]
            layers += [nn.BatchNorm2d(cout), nn.LeakyReLU()]
        self.decoder = nn.Sequential(*layers, nn.Conv2d(widths[0], 3, 3, padding=1), nn.Sigmoid())

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        code = self.encoder(images)
        mean, log_variance = self.mean(code), self.log_variance(code)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(drawn), mean, log_variance


def make_conv_vae(batch: int) -> TrainingExample:
    """Return a VAE for faces of 64x64."""
    images = torch.rand(batch, 3, 64, 64)

    def loss(output: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        made, mean, log_variance = output
        divergence = 1 + log_variance - mean.square() - log_variance.exp()
        return F.mse_loss(made, images) - 0.5 * 0.00025 * divergence.sum(dim=1).mean()

    return TrainingExample(ConvVae(128, (32, 64, 128, 256, 512)), images, loss)


# ---------------------------------------------------------------------------------------------
# Vocoder


class DilatedResidual(nn.Module):
    """Three pairs of dilated and plain convolutions over time."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.dilated = nn.ModuleList(
            weight_norm(
                nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2)
            )
            for d in (1, 3, 5)
        )
        self.plain = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, padding=(kernel - 1) // 2))
            for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Vocoder(nn.Module):
    """A generator of waveforms from spectrograms, like that of HiFi-GAN."""

    def __init__(self, mels: int, channels: int) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(mels, channels, 7, padding=3))
        self.ups, self.residuals = nn.ModuleList(), nn.ModuleList()
        for rate in (8, 8, 2, 2):
            up = nn.ConvTranspose1d(
                channels, channels // 2, 2 * rate, stride=rate, padding=rate // 2
            )
            self.ups.append(weight_norm(up))
            channels //= 2
            self.residuals.append(nn.ModuleList(DilatedResidual(channels, k) for k in (3, 7, 11)))
        self.last = weight_norm(nn.Conv1d(channels, 1, 7, padding=3))

    def forward(self, mels: Tensor) -> Tensor:
        x = self.first(mels)
        for up, residuals in zip(self.ups, self.residuals, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            assert isinstance(residuals, nn.ModuleList)
            x = torch.stack([one(x) for one in residuals]).mean(dim=0)
        return torch.tanh(self.last(F.leaky_relu(x)))


def make_vocoder(batch: int) -> TrainingExample:
    """Return a vocoder that turns 32 frames of 80 mels into 8,192 samples."""
    sound = torch.randn(batch, 1, 8192)
    net = Vocoder(mels=80, channels=512)
    return TrainingExample(net, torch.randn(batch, 80, 32), lambda out: F.l1_loss(out, sound))
