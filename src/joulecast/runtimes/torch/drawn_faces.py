"""Draw faces for a task with two classes, or read them from CelebA.

CelebA's attribute ``Male`` is the task of the AMPERE paper's pruning study. Where the images are
absent, faces are drawn: an ellipse with eyes, brows, a nose, a mouth and hair. The two classes
differ in the length of the hair, the strength of the brows and the width of the jaw, each drawn
from distributions that overlap, so that no network can be right every time. The label stands in for
the attribute and says nothing about people. Everything comes from a seed, on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from joulecast.errors import FileError, InputError

DrawBatch = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
"""Returns images, n x 3 x size x size with about zero mean and unit deviation, and labels, n."""

ATTRIBUTE = "Male"
_IMAGES, _ATTRIBUTES = "img_align_celeba", "list_attr_celeba.txt"
_MOST_IMAGES = 40_000
# The square around a face in CelebA's aligned images.
_CROP = (19, 49, 159, 189)
_NOISE = 1.0
# How far the means of the classes are apart, and the standard deviation of each, for every trait.
_TRAIT_DISTANCE, _TRAIT_SD = 1.0, 0.45


def make_drawn_faces(size: int) -> DrawBatch:
    """Return a function that draws batches of faces."""

    def draw(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.rand(count, generator=rng, device=rng.device) < 0.5
        return _Sketch(size, labels, rng).draw(), labels.long()

    return draw


class _Sketch:
    """Faces that are being drawn, one for each label."""

    def __init__(self, size: int, labels: Tensor, rng: torch.Generator) -> None:
        self.size, self.labels, self.rng = size, labels, rng
        axis = torch.linspace(-1.0, 1.0, size, device=rng.device)
        self.x = axis[None, None, :] - self._between(-0.1, 0.1)
        self.y = axis[None, :, None] - self._between(-0.1, 0.1)

    def draw(self) -> Tensor:
        """Return the images."""
        count, rng = len(self.labels), self.rng
        jaw, brow, short = self._trait(), self._trait(), self._trait()
        x = self.x / (self._between(0.55, 0.65) + 0.06 * jaw * (1.0 + self.y))
        y = self.y / self._between(0.75, 0.85)
        image = self._between(-1.0, 1.0, 3, 1, 1).expand(count, 3, self.size, self.size).clone()
        dark = self._between(-1.0, -0.4, 3, 1, 1)
        # Long hair reaches below the chin, behind the face.
        behind = _inside(x, y, 0.0, -0.1, 1.3, 1.2) * torch.sigmoid(12 * (0.3 - 0.7 * short - y))
        image = _paint(image, dark, behind)
        skin_tone = torch.tensor([1.0, 0.75, 0.6], device=rng.device)[:, None, None]
        skin = self._between(0.1, 1.0, 1, 1, 1) * skin_tone
        image = _paint(image, skin, _inside(x, y, 0.0, 0.0, 1.0, 1.0))
        image = _paint(
            image, dark, _inside(x, y, 0.0, -0.2, 1.05, 1.0) * torch.sigmoid(12 * (-y - 0.6))
        )
        for side in (-0.4, 0.4):
            image = _paint(image, dark, _inside(x, y, side, -0.2, 0.12, 0.07))
            thickness = 0.05 + 0.03 * brow.clamp(-1.0, 1.0)
            image = _paint(image, dark, _inside(x, y, side, -0.42, 0.22, thickness))
        image = _paint(image, 0.7 * skin, _inside(x, y, 0.0, 0.12, 0.08, 0.18))
        lips = torch.tensor([0.7, -0.5, -0.4], device=rng.device)[:, None, None]
        image = _paint(image, lips, _inside(x, y, 0.0, 0.5, 0.32, self._between(0.05, 0.1)))
        noise = torch.randn(image.shape, generator=rng, device=rng.device)
        return image * self._between(0.7, 1.2, 1, 1, 1) + _NOISE * noise

    def _between(self, low: float, high: float, *shape: int) -> Tensor:
        """Return numbers of a uniform distribution, one for each face."""
        sizes = (len(self.labels), *(shape or (1, 1)))
        return low + (high - low) * torch.rand(sizes, generator=self.rng, device=self.labels.device)

    def _trait(self) -> Tensor:
        """Return a trait of each face, whose mean depends on the label."""
        sizes = (len(self.labels), 1, 1)
        drawn = torch.randn(sizes, generator=self.rng, device=self.labels.device)
        side = torch.where(self.labels, 0.5, -0.5)[:, None, None]
        return _TRAIT_DISTANCE * side + _TRAIT_SD * drawn


def read_celeba(folder: Path, size: int, attribute: str = ATTRIBUTE) -> DrawBatch:
    """Return a function that draws batches of CelebA's images.

    Args:
        folder: Has the folder img_align_celeba and the file list_attr_celeba.txt.
        size: Height and width that images are reduced to.
        attribute: Name of the attribute that is the label.

    Raises:
        FileError: The folder is not CelebA's.
        InputError: There is no such attribute.
    """
    labels, paths = _list_images(folder, attribute)
    images = torch.empty(len(paths), 3, size, size)
    for place, path in enumerate(paths):
        images[place] = _read_image(path, size)

    def draw(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, len(paths), (count,), generator=rng, device=rng.device).cpu()
        return images[chosen].to(rng.device), labels[chosen].to(rng.device)

    return draw


def _list_images(folder: Path, attribute: str) -> tuple[Tensor, list[Path]]:
    try:
        lines = (folder / _ATTRIBUTES).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise FileError(
            f"cannot read {folder / _ATTRIBUTES} ({error.strerror or error}): give the folder of "
            f"CelebA that has {_ATTRIBUTES} and {_IMAGES}"
        ) from error
    names = lines[1].split() if len(lines) > 1 else []
    if attribute not in names:
        raise InputError(f"CelebA has no attribute {attribute!r}: give one of its 40, like Male")
    column = 1 + names.index(attribute)
    rows = [line.split() for line in lines[2 : 2 + _MOST_IMAGES]]
    labels = torch.tensor([int(row[column]) > 0 for row in rows]).long()
    return labels, [folder / _IMAGES / row[0] for row in rows]


def _read_image(path: Path, size: int) -> Tensor:
    from PIL import Image

    try:
        with Image.open(path) as photo:
            small = photo.convert("RGB").crop(_CROP).resize((size, size))
            pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
    except OSError as error:
        raise FileError(f"cannot read {path} ({error}): restore CelebA's images") from error
    return pixels.view(size, size, 3).permute(2, 0, 1) / 64.0 - 2.0


def _inside(
    x: Tensor, y: Tensor, left: float, top: float, width: float, height: float | Tensor
) -> Tensor:
    """Return a mask of an ellipse, 0 to 1 with a soft edge."""
    return torch.sigmoid(14 * (1.0 - ((x - left) / width) ** 2 - ((y - top) / height) ** 2) * width)


def _paint(image: Tensor, colour: Tensor, where: Tensor) -> Tensor:
    return image + where[:, None].float() * (colour - image)
