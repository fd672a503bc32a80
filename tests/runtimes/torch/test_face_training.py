"""The network of the pruning study learns, is pruned, and learns on."""

from __future__ import annotations

import pytest
import torch

from joulecast.kinds.channel_groups import narrow_network
from joulecast.records import Device, Setup, Trial
from joulecast.runtimes.torch.face_training import FaceTask, FaceTrainer
from joulecast.runtimes.torch.runtime import TorchRuntime

TASK = FaceTask((4, 8, 8, 16), 32, Setup(batch=8), 32, 40, 10, 20, 4, learning_rate=0.05)


@pytest.fixture(scope="module")
def trainer():
    pytest.importorskip("torch_pruning")
    return FaceTrainer(TASK)


@pytest.fixture(scope="module")
def trained(trainer):
    return trainer.train(1)


def test_it_learns(trained):
    assert [point.step for point in trained.learning] == [20, 40]
    assert trained.learning[-1].loss < 0.66, "below that of guessing, 0.69"


def test_equal_seeds_train_alike(trainer, trained):
    again = trainer.train(1)
    assert again.learning == trained.learning
    assert trainer.train(2).learning != trained.learning


def test_removed_channels_are_those_of_the_record(trainer, trained):
    groups = trainer.rank_channels(trained)
    assert sorted(group.channels for group in groups) == sorted(TASK.widths)
    counts = {group.name: group.channels // 2 for group in groups}
    tuned = trainer.continue_training(trained, groups, counts, 1)
    widths = [one.out_channels for one in tuned.module if isinstance(one, torch.nn.Conv2d)]
    assert widths == [2, 4, 4, 8]
    assert [point.step for point in tuned.learning] == [20, 40, 50]
    assert tuned.learning[0] == trained.learning[0], "the schedule before pruning is shared"
    # What is measured is the record of the network that was trained.
    network = narrow_network(trainer.network, groups, counts)
    step = TorchRuntime("cpu", Device("cpu")).prepare(Trial(network, TASK.setup))
    step.run(1)
    step.close()
    convolutions = [layer for layer in network.layers if layer.kind == "conv2d"]
    assert [layer.sizes["cout"] for layer in convolutions] == widths


def test_the_unpruned_network_trains_on_too(trainer, trained):
    before = [value.clone() for value in trained.module.parameters()]
    kept = trainer.continue_training(trained, (), {}, 1)
    assert [one.out_channels for one in kept.module if isinstance(one, torch.nn.Conv2d)] == [
        4,
        8,
        8,
        16,
    ]
    after = list(trained.module.parameters())
    assert all(map(torch.equal, before, after)), "a copy is trained"
