"""The reference applications are real networks that every runtime builds alike."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import joulecast
from joulecast.features.reference_applications import (
    build_reference_application,
    list_reference_applications,
)
from joulecast.operators import network_work
from joulecast.operators.check import check_network
from joulecast.records import Setup, Trial
from joulecast.runtimes import open_runtime
from joulecast.system.errors import InputError
from joulecast.torch_nets.build import build_seeded

OUTPUTS = {
    "image_classification": (1000,),
    # 21 classes and 4 corners for 6 anchors at each of 12x12 + 6x6 + 3x3 + 2x2 places.
    "object_detection": (25 * 6 * (144 + 36 + 9 + 4),),
    "super_resolution": (1, 288, 288),
    "segmentation": (21, 112, 112),
    "question_answering": (2, 128),
    "speech": (100, 29),
}


def run(name: str) -> torch.Tensor:
    network = build_reference_application(name)
    net = build_seeded(network, 0).eval()
    generator = torch.Generator().manual_seed(0)
    if network.input.vocabulary:
        x = torch.randint(0, network.input.vocabulary, (1, *network.input.shape))
    else:
        x = torch.randn((1, *network.input.shape), generator=generator)
    with torch.no_grad():
        return net(x)


def test_there_are_the_six_applications_of_deepen2023() -> None:
    assert set(list_reference_applications()) == set(OUTPUTS)


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_application_is_a_valid_small_network(name: str) -> None:
    network = build_reference_application(name)
    check_network(network)
    flops = network_work(network, Setup(1, "inference")).total.flops
    assert network.name == name and 0.05e9 <= flops <= 1e9


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_application_runs_in_pytorch(name: str) -> None:
    output = run(name)
    assert tuple(output.shape[1:]) == OUTPUTS[name] and output.isfinite().all()


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_application_runs_in_onnx_runtime(name: str) -> None:
    trial = Trial(build_reference_application(name), Setup(1, "inference", threads=1))
    step = open_runtime("onnx:cpu").prepare(trial)
    step.run(1)
    step.wait()
    step.close()


def test_an_application_is_a_net_of_every_command() -> None:
    observation = joulecast.measure("speech", on="simulated:3", phase="inference", rounds=1)
    assert observation.trial == Trial(build_reference_application("speech"), Setup(1, "inference"))
    with pytest.raises(InputError, match="inputs of 80x200"):
        joulecast.inspect("speech", input_shape=(40, 100))


def test_super_resolution_ends_in_a_pixel_shuffle() -> None:
    network = build_reference_application("super_resolution")
    last = build_seeded(network, 0).layer_modules()[-1]
    x = torch.randn(1, 32, 96, 96)
    assert torch.equal(last(x), F.pixel_shuffle(last.op(x), 3))


def test_answers_and_letters_are_probabilities() -> None:
    answer, letters = run("question_answering"), run("speech")
    assert torch.allclose(answer.sum(-1), torch.ones(1, 2))
    assert torch.allclose(letters.exp().sum(-1), torch.ones(1, 100), atol=1e-5)
