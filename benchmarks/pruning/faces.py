"""Draw synthetic faces for a binary task: does the face smile?

A face is an ellipse on a background with eyes, brows, a nose, perhaps hair and glasses, and a mouth
that bends up or down; light, position, size and noise vary. If the mouth hardly bends, noise hides
its direction, so the task cannot be solved perfectly. Everything comes from a seed, on any device,
and nothing is downloaded.

``read_celeba`` returns the same kind of batches from the CelebA images.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

SIZE = 64
NOISE = 1.0
# Least and largest bend of a mouth, as a share of the face's height.
BENDS = (0.0, 0.15)
DrawBatch = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


def draw_faces(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images, 3 x 64 x 64 with about zero mean and unit deviation, and labels."""

    def between(low: float, high: float, *shape: int) -> Tensor:
        drawn = torch.rand((count, *(shape or (1, 1))), generator=rng, device=rng.device)
        return low + (high - low) * drawn

    axis = torch.linspace(-1.0, 1.0, SIZE, device=rng.device)
    x = axis[None, None, :] - between(-0.1, 0.1)
    y = axis[None, :, None] - between(-0.1, 0.1)
    half_width, half_height = between(0.6, 0.8), between(0.75, 0.9)
    x, y = x / half_width, y / half_height
    smiles = torch.rand(count, generator=rng, device=rng.device) < 0.5
    bend = between(*BENDS) / 0.8 * torch.where(smiles, 1.0, -1.0)[:, None, None]
    image = between(-1.0, 1.0, 3, 1, 1).expand(count, 3, SIZE, SIZE).clone()
    skin = (
        between(0.1, 1.0, 1, 1, 1)
        * torch.tensor([1.0, 0.75, 0.6], device=rng.device)[:, None, None]
    )
    dark = between(-1.0, -0.4, 3, 1, 1)
    image = _paint(image, skin, _inside(x, y, 0.0, 0.0, 1.0, 1.0))
    hair = _inside(x, y, 0.0, -0.2, 1.05, 1.0) * torch.sigmoid(12 * (-y - between(0.4, 0.9)))
    image = _paint(image, dark, hair)
    for side in (-1.0, 1.0):
        image = _paint(image, dark, _inside(x, y, 0.4 * side, -0.2, 0.12, 0.07))
        image = _paint(image, dark, _inside(x, y, 0.4 * side, -0.42, 0.2, 0.04))
        ring = _inside(x, y, 0.4 * side, -0.2, 0.3, 0.22) - _inside(
            x, y, 0.4 * side, -0.2, 0.24, 0.16
        )
        image = _paint(image, dark, ring.clamp(0, 1) * (between(0.0, 1.0) < 0.3))
    image = _paint(image, 0.7 * skin, _inside(x, y, 0.0, 0.12, 0.08, 0.18))
    # A mouth is a parabola: if it smiles, its ends are above its middle.
    line = y - between(0.42, 0.58) + bend * ((x / 0.4) ** 2 - 0.5) * 2.0
    mouth = torch.sigmoid(60 * (between(0.05, 0.09) - line.abs())) * torch.sigmoid(
        40 * (0.42 - x.abs())
    )
    lips = torch.tensor([0.7, -0.5, -0.4], device=rng.device)[:, None, None]
    image = _paint(image, lips, mouth)
    noise = torch.randn(image.shape, generator=rng, device=rng.device)
    light = between(0.7, 1.2, 1, 1, 1)
    return image * light + NOISE * noise, smiles.long()


def _inside(x: Tensor, y: Tensor, left: float, top: float, width: float, height: float) -> Tensor:
    """Return a mask of an ellipse, 0 to 1 with a soft edge."""
    return torch.sigmoid(14 * (1.0 - ((x - left) / width) ** 2 - ((y - top) / height) ** 2) * width)


def _paint(image: Tensor, colour: Tensor, where: Tensor) -> Tensor:
    return image + where[:, None].float() * (colour - image)


def read_celeba(folder: Path, attribute: str = "Smiling", most: int = 40_000) -> DrawBatch:
    """Return batches of CelebA; ``folder`` has img_align_celeba and list_attr_celeba.txt."""
    from PIL import Image

    lines = (folder / "list_attr_celeba.txt").read_text().splitlines()
    column = lines[1].split().index(attribute)
    rows = [line.split() for line in lines[2 : 2 + most]]
    labels = torch.tensor([int(row[1 + column]) > 0 for row in rows]).long()
    images = torch.empty(len(rows), 3, SIZE, SIZE)
    for place, row in enumerate(rows):
        with Image.open(folder / "img_align_celeba" / row[0]) as photo:
            small = photo.convert("RGB").crop((19, 49, 159, 189)).resize((SIZE, SIZE))
            pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
        images[place] = pixels.view(SIZE, SIZE, 3).permute(2, 0, 1) / 64.0 - 2.0

    def draw(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, len(rows), (count,), generator=rng, device=rng.device).cpu()
        return images[chosen].to(rng.device), labels[chosen].to(rng.device)

    return draw
