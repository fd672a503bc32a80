"""Train a network on faces, remove channels, and train on.

    make ─▶ train ─▶ rank channels ─▶ remove channels ─▶ train on, with the test error on the way

CelebA's attribute ``Male`` is the task of the paper. Where its images are absent, faces are drawn:
an ellipse with eyes, brows, a nose, a mouth and hair. The classes differ in the length of the hair,
the strength of the brows and the width of the jaw, each drawn from distributions that overlap, so
that no network can be right every time. The label stands in for the attribute and says nothing
about people. Everything comes from a seed, on any device.

The network has four 3 x 3 convolutions with batch norm, ReLU and pooling, and one linear layer; the
paper does not give its own. Every batch is new. All networks of a seed see the same batches, and
all are tested on the same images.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from joulecast.operators.channel_groups import ChannelGroup
from joulecast.system.errors import FileError
from joulecast.torch_nets.channel_pruning import PrunableChannels, find_channel_groups
from joulecast.torch_nets.channel_removal import compute_importance, prune_channels
from papers.ampere.pruning import Study

DrawBatch = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
"""Returns images, n x 3 x size x size with about zero mean and unit deviation, and labels, n."""
Tests = tuple[tuple[int, float, float], ...]
"""Steps after which a network was tested, with the loss and accuracy at each."""

_IMAGES, _ATTRIBUTES, _ATTRIBUTE = "img_align_celeba", "list_attr_celeba.txt", "Male"
_MOST_IMAGES = 40_000
# The square around a face in CelebA's aligned images.
_CROP = (19, 49, 159, 189)
_TEST_SEED = 90_210


@dataclass(frozen=True)
class FaceNet:
    """A network that was trained so far, and how it learned."""

    module: nn.Module
    tests: Tests

    def list_tests(self) -> dict[str, Any]:
        columns = zip(*self.tests, strict=True)
        return dict(zip(("steps", "losses", "accuracies"), columns, strict=True))


class FaceTrainer:
    """Trains networks of a study on a device of PyTorch, on CelebA's images or drawn ones."""

    def __init__(self, study: Study, where: torch.device | str = "cpu", celeba: str = "") -> None:
        self.study, self.where = study, torch.device(where)
        # Read at once, so that nothing is measured for images that are not there.
        self._draw = read_celeba(Path(celeba), study.size) if celeba else draw_faces(study.size)

    @cached_property
    def channels(self) -> PrunableChannels:
        inputs = torch.zeros(self.study.setup["batch"], 3, self.study.size, self.study.size)
        found = find_channel_groups(self._make_module(), inputs)
        return replace(found, network=replace(found.network, name="faces"))

    def train(self, seed: int) -> FaceNet:
        """Return a new network after its first schedule."""
        torch.manual_seed(seed)
        module = self._make_module().to(self.where)
        return FaceNet(module, self._run(module, seed, 0, self.study.steps[0]))

    def rank_channels(self, net: FaceNet) -> tuple[ChannelGroup, ...]:
        """Return the groups of channels, ranked by the magnitude of this network's weights."""
        return compute_importance(copy.deepcopy(net.module).cpu(), self.channels.groups)

    def continue_training(
        self, net: FaceNet, groups: Sequence[ChannelGroup], counts: Mapping[str, int], seed: int
    ) -> FaceNet:
        """Return a copy with fewer channels, or all if none are counted, after another schedule."""
        kept = copy.deepcopy(net.module).cpu()
        module = (prune_channels(kept, groups, counts) if counts else kept).to(self.where)
        before, after, _ = self.study.steps
        tests = (*net.tests[:-1], self._test(module, before))
        return FaceNet(module, (*tests, *self._run(module, 1000 + seed, before, after)))

    def _make_module(self) -> nn.Module:
        layers: list[nn.Module] = []
        inside = 3
        for width in self.study.widths:
            layers += [nn.Conv2d(inside, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
            inside = width
        space = self.study.size // 2 ** len(self.study.widths)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inside * space**2, 2))

    def _run(self, module: nn.Module, seed: int, start: int, steps: int) -> Tests:
        """Train with SGD and a one-cycle learning rate; return tests on the way."""
        rng, rate = torch.Generator(self.where).manual_seed(seed), self.study.learning_rate
        optimizer = torch.optim.SGD(module.parameters(), rate, 0.9, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
        uses_tf32 = self.study.setup.get("precision") == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = uses_tf32
        tests = []
        for step in range(1, steps + 1):
            module.train()
            images, labels = self._draw(self.study.train_batch, rng)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(cross_entropy(module(images), labels))
            optimizer.step()
            schedule.step()
            if step % self.study.steps[2] == 0 or step == steps:
                tests.append(self._test(module, start + step))
        return tuple(tests)

    def _test(self, module: nn.Module, step: int) -> tuple[int, float, float]:
        module.eval()
        right, loss, count = 0.0, 0.0, self.study.test_batches
        with torch.no_grad():
            for images, labels in self._test_images:
                logits = module(images)
                loss += float(cross_entropy(logits, labels)) / count
                right += float((logits.argmax(1) == labels).float().mean()) / count
        return step, loss, right

    @cached_property
    def _test_images(self) -> list[tuple[Tensor, Tensor]]:
        rng = torch.Generator(self.where).manual_seed(_TEST_SEED)
        return [self._draw(self.study.train_batch, rng) for _ in range(self.study.test_batches)]


def draw_faces(size: int) -> DrawBatch:
    def draw(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.rand(count, generator=rng, device=rng.device) < 0.5

        def between(low: float, high: float, *shape: int) -> Tensor:
            sizes = (count, *(shape or (1, 1)))
            return low + (high - low) * torch.rand(sizes, generator=rng, device=rng.device)

        def draw_trait() -> Tensor:
            drawn = torch.randn((count, 1, 1), generator=rng, device=rng.device)
            return torch.where(labels, 0.5, -0.5)[:, None, None] + 0.45 * drawn

        axis = torch.linspace(-1.0, 1.0, size, device=rng.device)
        x, y = axis[None, None, :] - between(-0.1, 0.1), axis[None, :, None] - between(-0.1, 0.1)
        jaw, brow, short = draw_trait(), draw_trait(), draw_trait()
        x = x / (between(0.55, 0.65) + 0.06 * jaw * (1.0 + y))
        y = y / between(0.75, 0.85)

        def ellipse(left: float, top: float, width: float, height: float | Tensor) -> Tensor:
            """Return a mask, 0 to 1 with a soft edge."""
            distance = ((x - left) / width) ** 2 + ((y - top) / height) ** 2
            return torch.sigmoid(14 * (1.0 - distance) * width)

        image = between(-1.0, 1.0, 3, 1, 1).expand(count, 3, size, size).clone()
        dark = between(-1.0, -0.4, 3, 1, 1)
        # Long hair reaches below the chin, behind the face.
        behind = ellipse(0.0, -0.1, 1.3, 1.2) * torch.sigmoid(12 * (0.3 - 0.7 * short - y))
        tone, red = torch.tensor([[1.0, 0.75, 0.6], [0.7, -0.5, -0.4]], device=rng.device)
        skin, lips = between(0.1, 1.0, 1, 1, 1) * tone[:, None, None], red[:, None, None]
        fringe = ellipse(0.0, -0.2, 1.05, 1.0) * torch.sigmoid(12 * (-y - 0.6))
        shapes = [(dark, behind), (skin, ellipse(0.0, 0.0, 1.0, 1.0)), (dark, fringe)]
        for side in (-0.4, 0.4):
            thickness = 0.05 + 0.03 * brow.clamp(-1.0, 1.0)
            shapes.append((dark, ellipse(side, -0.2, 0.12, 0.07)))
            shapes.append((dark, ellipse(side, -0.42, 0.22, thickness)))
        shapes.append((0.7 * skin, ellipse(0.0, 0.12, 0.08, 0.18)))
        shapes.append((lips, ellipse(0.0, 0.5, 0.32, between(0.05, 0.1))))
        for colour, where in shapes:
            image = image + where[:, None].float() * (colour - image)
        noise = torch.randn(image.shape, generator=rng, device=rng.device)
        return image * between(0.7, 1.2, 1, 1, 1) + noise, labels.long()

    return draw


def read_celeba(folder: Path, size: int) -> DrawBatch:
    """Return a function that draws batches of CelebA's images, reduced to a size.

    Raises:
        FileError: The folder lacks img_align_celeba, or list_attr_celeba.txt with its attribute.
    """
    from PIL import Image

    path = folder / _ATTRIBUTES
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        column = 1 + lines[1].split().index(_ATTRIBUTE)
        rows = [line.split() for line in lines[2 : 2 + _MOST_IMAGES]]
        known = torch.tensor([int(row[column]) > 0 for row in rows]).long()
        images = torch.empty(len(rows), 3, size, size)
        for place, row in enumerate(rows):
            path = folder / _IMAGES / row[0]
            with Image.open(path) as photo:
                small = photo.convert("RGB").crop(_CROP).resize((size, size))
            pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
            images[place] = pixels.view(size, size, 3).permute(2, 0, 1) / 64.0 - 2.0
    except (OSError, ValueError, IndexError) as error:
        raise FileError(
            f"cannot read {path} ({error}): give the folder of CelebA that has {_ATTRIBUTES}, with "
            f"the attribute {_ATTRIBUTE}, and {_IMAGES}"
        ) from error

    def draw(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, len(rows), (count,), generator=rng, device=rng.device).cpu()
        return images[chosen].to(rng.device), known[chosen].to(rng.device)

    return draw
