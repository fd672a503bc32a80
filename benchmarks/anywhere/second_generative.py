"""Networks of the second test that generate: images, images from images, views of a scene."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from generative_networks import embed_times
from torch import Tensor, nn

from training_examples import TrainingExample, take_second

# ---------------------------------------------------------------------------------------------
# Diffusion with text


class Stream(nn.Module):
    """What one kind of tokens has before joint attention: a modulated norm and projections."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.modulate = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.norm_q, self.norm_k = nn.RMSNorm(head_dim), nn.RMSNorm(head_dim)

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens, _ = x.shape
        scale, shift = self.modulate(condition).unsqueeze(1).chunk(2, dim=2)
        qkv = self.qkv(self.norm(x) * (1 + scale) + shift)
        q, k, v = qkv.view(batch, tokens, 3, -1, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        return self.norm_q(q).to(v.dtype), self.norm_k(k).to(v.dtype), v


class StreamEnd(nn.Module):
    """What one kind of tokens has after joint attention: a projection and an MLP, both gated."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.modulate, self.out = nn.Linear(width, 4 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, attended: Tensor, condition: Tensor) -> Tensor:
        gate1, scale, shift, gate2 = self.modulate(condition).unsqueeze(1).chunk(4, dim=2)
        x = x + gate1 * self.out(attended)
        out: Tensor = x + gate2 * self.mlp(self.norm(x) * (1 + scale) + shift)
        return out


class JointBlock(nn.Module):
    """A block in which image and text tokens attend to each other, each with its own weights.

    The last block returns the text as it was: nothing reads it.
    """

    def __init__(self, width: int, heads: int, is_last: bool) -> None:
        super().__init__()
        self.image, self.text = Stream(width, width // heads), Stream(width, width // heads)
        self.image_end = StreamEnd(width)
        self.text_end = None if is_last else StreamEnd(width)

    def forward(self, image: Tensor, text: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        parts = zip(self.image(image, condition), self.text(text, condition), strict=True)
        q, k, v = (torch.cat(pair, dim=2) for pair in parts)
        joint = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        of_image, of_text = joint.split([image.shape[1], text.shape[1]], dim=1)
        image = self.image_end(image, of_image, condition)
        return image, text if self.text_end is None else self.text_end(text, of_text, condition)


class JointDiffusion(nn.Module):
    """A diffusion transformer over latent images and text tokens, like that of SD 3."""

    def __init__(self, width: int, depth: int, heads: int, side: int, text: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(16, width, 2, stride=2)
        self.places = nn.Parameter(0.02 * torch.randn(1, side * side // 4, width))
        self.text = nn.Linear(text, width)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(
            JointBlock(width, heads, is_last=at == depth - 1) for at in range(depth)
        )
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 64)

    def forward(self, x: Tensor, times: Tensor, texts: Tensor) -> Tensor:
        condition = F.silu(self.time(embed_times(times, 256)))
        image = self.patch(x).flatten(2).transpose(1, 2) + self.places
        words = self.text(texts)
        for block in self.blocks:
            image, words = block(image, words, condition)
        out: Tensor = self.last(self.norm(image))
        return out


def make_joint_diffusion(batch: int) -> TrainingExample:
    """Return a diffusion transformer for latent images of 32x32 with 77 text tokens."""
    wanted = torch.randn(batch, 256, 64)
    inputs = (torch.randn(batch, 16, 32, 32), torch.rand(batch), torch.randn(batch, 77, 768))
    net = JointDiffusion(width=896, depth=10, heads=14, side=32, text=768)
    return TrainingExample(net, inputs, lambda output: F.mse_loss(output, wanted))


# ---------------------------------------------------------------------------------------------
# Vector quantization


class PlainResidual(nn.Module):
    """A residual block without norms."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, hidden, 3, padding=1)
        self.conv2 = nn.Conv2d(hidden, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.conv2(F.relu(self.conv1(F.relu(x))))
        return out


class QuantizedAutoencoder(nn.Module):
    """An autoencoder of images whose code is a grid of vectors from a table (VQ-VAE)."""

    def __init__(self, width: int, code: int, entries: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width // 2, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            *(PlainResidual(width, width // 2) for _ in range(4)),
            nn.ReLU(),
            nn.Conv2d(width, code, 1),
        )
        self.table = nn.Embedding(entries, code)
        self.decoder = nn.Sequential(
            nn.Conv2d(code, width, 3, padding=1),
            *(PlainResidual(width, width // 2) for _ in range(4)),
            nn.ReLU(),
            nn.ConvTranspose2d(width, width // 2, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(width // 2, 3, 4, stride=2, padding=1),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(images).permute(0, 2, 3, 1)
        flat = code.reshape(-1, code.shape[-1])
        entries = self.table.weight
        distances = flat.square().sum(1, keepdim=True) - 2 * flat @ entries.t()
        nearest = (distances + entries.square().sum(1)).argmin(dim=1)
        found = self.table(nearest).view(code.shape)
        loss = F.mse_loss(found, code.detach()) + 0.25 * F.mse_loss(code, found.detach())
        passed = code + (found - code).detach()
        made = self.decoder(passed.permute(0, 3, 1, 2).contiguous())
        return made, loss + F.mse_loss(made, images)


def make_quantized_autoencoder(batch: int) -> TrainingExample:
    """Return a VQ-VAE for images of 128x128 with 1,024 entries."""
    net = QuantizedAutoencoder(width=256, code=64, entries=1024)
    return TrainingExample(net, torch.rand(batch, 3, 128, 128), take_second)


# ---------------------------------------------------------------------------------------------
# Images from images


class SkipLevel(nn.Module):
    """A level of a U-Net around the next one: down, inside, up, joined with its input."""

    def __init__(self, outer: int, inner: int, inside: nn.Module | None) -> None:
        super().__init__()
        down = [nn.LeakyReLU(0.2), nn.Conv2d(outer, inner, 4, 2, 1, bias=inside is None)]
        up = nn.ConvTranspose2d(inner if inside is None else 2 * inner, outer, 4, 2, 1, bias=False)
        middle = [] if inside is None else [nn.InstanceNorm2d(inner), inside]
        self.layers = nn.Sequential(*down, *middle, nn.ReLU(), up, nn.InstanceNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.layers(x)), dim=1)


class ImageTranslator(nn.Module):
    """A U-Net generator and a discriminator of patches, trained in one step, like pix2pix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width * factor for factor in (1, 2, 4, 8, 8, 8, 8)]
        inside: nn.Module | None = None
        for outer, inner in reversed(list(itertools.pairwise(widths))):
            inside = SkipLevel(outer, inner, inside)
        assert inside is not None
        self.generator = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1),
            inside,
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, 3, 4, 2, 1),
            nn.Tanh(),
        )
        layers: list[nn.Module] = [nn.Conv2d(6, width, 4, 2, 1), nn.LeakyReLU(0.2)]
        for (cin, cout), stride in zip(itertools.pairwise(widths[:4]), (2, 2, 1), strict=True):
            layers += [nn.Conv2d(cin, cout, 4, stride, 1, bias=False)]
            layers += [nn.InstanceNorm2d(cout), nn.LeakyReLU(0.2)]
        self.discriminator = nn.Sequential(*layers, nn.Conv2d(widths[3], 1, 4, 1, 1))

    def forward(self, images: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        made = self.generator(images)
        real = self.discriminator(torch.cat((images, wanted), dim=1))
        fake = self.discriminator(torch.cat((images, made.detach()), dim=1))
        judge = 0.5 * ((real - 1.0).square().mean() + fake.square().mean())
        seen = self.discriminator(torch.cat((images, made), dim=1))
        loss = judge + (seen - 1.0).square().mean() + 100.0 * F.l1_loss(made, wanted)
        return made, loss


def make_image_translator(batch: int) -> TrainingExample:
    """Return a pix2pix network for images of 256x256, with instance norms."""
    inputs = (torch.randn(batch, 3, 256, 256), torch.randn(batch, 3, 256, 256))
    return TrainingExample(ImageTranslator(width=64), inputs, take_second)


# ---------------------------------------------------------------------------------------------
# Views of a scene


def encode_waves(x: Tensor, count: int) -> Tensor:
    """Return coordinates with sines and cosines of so many octaves."""
    angles = (x.unsqueeze(-1) * 2.0 ** torch.arange(count, device=x.device)).flatten(-2)
    return torch.cat((x, angles.sin(), angles.cos()), dim=-1)


class RadianceField(nn.Module):
    """An MLP from places and directions to colours and densities."""

    def __init__(self, width: int, depth: int, place: int = 63, direction: int = 27) -> None:
        super().__init__()
        self.joint = depth // 2
        self.layers = nn.ModuleList(
            nn.Linear(place if not at else width + (place if at == self.joint else 0), width)
            for at in range(depth)
        )
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.view, self.colour = nn.Linear(width + direction, width // 2), nn.Linear(width // 2, 3)

    def forward(self, places: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        x = places
        for at, layer in enumerate(self.layers):
            x = F.relu(layer(torch.cat((places, x), dim=-1) if at == self.joint else x))
        view = F.relu(self.view(torch.cat((self.feature(x), directions), dim=-1)))
        return self.colour(view).sigmoid(), F.relu(self.density(x)).squeeze(-1)


class SceneRenderer(nn.Module):
    """A coarse and a fine radiance field, rendered along rays, like NeRF."""

    def __init__(self, width: int, depth: int, coarse: int, fine: int) -> None:
        super().__init__()
        self.count, self.more = coarse, fine
        self.coarse, self.fine = RadianceField(width, depth), RadianceField(width, depth)

    def render(
        self, field: nn.Module, origins: Tensor, directions: Tensor, depths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the colours of rays and the weights of their samples."""
        places = origins.unsqueeze(1) + depths.unsqueeze(2) * directions.unsqueeze(1)
        views = encode_waves(directions, 4).unsqueeze(1).expand(-1, depths.shape[1], -1)
        colours, densities = field(encode_waves(places, 10), views)
        gaps = F.pad(depths[:, 1:] - depths[:, :-1], (0, 1), value=1e3)
        alpha = 1.0 - torch.exp(-densities * gaps)
        passed = torch.cumprod(F.pad(1.0 - alpha[:, :-1] + 1e-10, (1, 0), value=1.0), dim=1)
        weights = alpha * passed
        return (weights.unsqueeze(2) * colours).sum(dim=1), weights

    def forward(self, origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        rays, device = len(origins), origins.device
        depths = torch.linspace(2.0, 6.0, self.count, device=device).expand(rays, -1)
        depths = depths + torch.rand(rays, self.count, device=device) * 4.0 / self.count
        first, weights = self.render(self.coarse, origins, directions, depths)
        with torch.no_grad():
            shares = torch.cumsum(weights + 1e-5, dim=1)
            drawn = torch.rand(rays, self.more, device=device) * shares[:, -1:]
            found = torch.searchsorted(shares, drawn).clamp(max=self.count - 1)
            depths = torch.cat((depths, depths.gather(1, found)), dim=1).sort(dim=1).values
        return first, self.render(self.fine, origins, directions, depths)[0]


def make_scene_renderer(batch: int) -> TrainingExample:
    """Return a NeRF with 64 coarse and 128 fine samples of each ray."""
    colours = torch.rand(batch, 3)

    def loss(output: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(output[0], colours) + F.mse_loss(output[1], colours)

    inputs = (torch.randn(batch, 3), F.normalize(torch.randn(batch, 3), dim=1))
    return TrainingExample(SceneRenderer(256, 8, coarse=64, fine=128), inputs, loss)
