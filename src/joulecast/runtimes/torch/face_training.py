"""Train the network of the pruning study on faces, prune it, and train on.

    make ─▶ train ─▶ rank channels ─▶ remove channels ─▶ train on, with the test error on the way

Four 3x3 convolutions with batch norm, ReLU and pooling, and one linear layer; the paper does not
give its network. Every batch is new. All networks of a seed see the same batches, and all are
tested on the same images.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from joulecast.kinds.channel_groups import ChannelGroup
from joulecast.records import Network, Setup
from joulecast.runtimes.torch.channel_pruning import PrunableChannels, find_channel_groups
from joulecast.runtimes.torch.channel_removal import compute_importance, prune_channels
from joulecast.runtimes.torch.drawn_faces import DrawBatch, make_drawn_faces, read_celeba

CLASSES = 2
NETWORK_NAME = "faces"
_TEST_SEED = 90_210
_MOMENTUM, _WEIGHT_DECAY = 0.9, 1e-4


@dataclass(frozen=True)
class FaceTask:
    """A network on faces, and how it is trained.

    Attributes:
        widths: Channels of the convolutions.
        size: Height and width of an image.
        setup: Batch and precision of a step that is measured.
        train_batch: Images of a batch that it learns from.
        train_steps: Steps before channels are removed.
        tune_steps: Steps after that.
        test_every: Steps between tests.
        test_batches: Batches of test images.
        learning_rate: Largest learning rate of each of the two schedules.
        celeba: Folder of CelebA's images; empty to draw faces.
    """

    widths: tuple[int, ...]
    size: int
    setup: Setup
    train_batch: int
    train_steps: int
    tune_steps: int
    test_every: int
    test_batches: int
    learning_rate: float = 0.02
    celeba: str = ""


@dataclass(frozen=True)
class LearningPoint:
    """Loss and accuracy on the test images after a number of steps."""

    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class FaceNet:
    """A network that was trained so far, and how it learned."""

    module: nn.Module
    learning: tuple[LearningPoint, ...]


class FaceTrainer:
    """Trains networks for a task on a device.

    Args:
        task: What is trained.
        where: Device of PyTorch.

    Raises:
        FileError: The folder of images is not CelebA's.
    """

    def __init__(self, task: FaceTask, where: torch.device | str = "cpu") -> None:
        self.task, self.where = task, torch.device(where)
        # Read at once, so that nothing is measured for images that are not there.
        self._draw: DrawBatch = (
            read_celeba(Path(task.celeba), task.size)
            if task.celeba
            else make_drawn_faces(task.size)
        )

    @cached_property
    def channels(self) -> PrunableChannels:
        """The network as a record, and its groups of channels."""
        inputs = torch.zeros(self.task.setup.batch, 3, self.task.size, self.task.size)
        found = find_channel_groups(self._make_module(), inputs)
        return replace(found, network=replace(found.network, name=NETWORK_NAME))

    @property
    def network(self) -> Network:
        """The network before channels are removed."""
        return self.channels.network

    def train(self, seed: int) -> FaceNet:
        """Return a new network after its first schedule."""
        torch.manual_seed(seed)
        module = self._make_module().to(self.where)
        learning = self._run(module, seed, 0, self.task.train_steps)
        return FaceNet(module, learning)

    def rank_channels(self, net: FaceNet) -> tuple[ChannelGroup, ...]:
        """Return the groups of channels, ranked by the magnitude of this network's weights."""
        return compute_importance(copy.deepcopy(net.module).cpu(), self.channels.groups)

    def continue_training(
        self, net: FaceNet, groups: Sequence[ChannelGroup], counts: Mapping[str, int], seed: int
    ) -> FaceNet:
        """Return a copy of a network with fewer channels after its second schedule.

        Args:
            net: The trained network.
            groups: Its ranked groups of channels.
            counts: Channels that remain, by group; empty to keep all.
            seed: Decides the batches.
        """
        kept = copy.deepcopy(net.module).cpu()
        module = prune_channels(kept, groups, counts) if counts else kept
        module = module.to(self.where)
        first = self._test(module, self.task.train_steps)
        rest = self._run(module, 1000 + seed, self.task.train_steps, self.task.tune_steps)
        return FaceNet(module, (*net.learning[:-1], first, *rest))

    def _make_module(self) -> nn.Module:
        layers: list[nn.Module] = []
        inside = 3
        for width in self.task.widths:
            layers += [nn.Conv2d(inside, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
            inside = width
        space = self.task.size // 2 ** len(self.task.widths)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inside * space**2, CLASSES))

    def _run(
        self, module: nn.Module, seed: int, start: int, steps: int
    ) -> tuple[LearningPoint, ...]:
        """Train with SGD and a one-cycle learning rate; return tests on the way."""
        rng = torch.Generator(self.where).manual_seed(seed)
        optimizer = torch.optim.SGD(
            module.parameters(), self.task.learning_rate, _MOMENTUM, weight_decay=_WEIGHT_DECAY
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.task.learning_rate, total_steps=steps
        )
        uses_tf32 = self.task.setup.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = uses_tf32
        points = []
        for step in range(1, steps + 1):
            module.train()
            images, labels = self._draw(self.task.train_batch, rng)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(cross_entropy(module(images), labels))
            optimizer.step()
            schedule.step()
            if step % self.task.test_every == 0 or step == steps:
                points.append(self._test(module, start + step))
        return tuple(points)

    def _test(self, module: nn.Module, step: int) -> LearningPoint:
        module.eval()
        right, loss = 0.0, 0.0
        with torch.no_grad():
            for images, labels in self._test_images:
                logits = module(images)
                loss += float(cross_entropy(logits, labels)) / self.task.test_batches
                hits = (logits.argmax(1) == labels).float().mean()
                right += float(hits) / self.task.test_batches
        return LearningPoint(step, loss, right)

    @cached_property
    def _test_images(self) -> list[tuple[Tensor, Tensor]]:
        rng = torch.Generator(self.where).manual_seed(_TEST_SEED)
        batch = self.task.train_batch
        return [self._draw(batch, rng) for _ in range(self.task.test_batches)]
