"""Runs as people train: estimates of them agree with a simulated device, and parts add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import joulecast

NET = "transformer:192,2"
DEVICE = "simulated:5"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("runs") / "store.sqlite"
    joulecast.profile("transformer:256,2", batch=32, on=DEVICE, store=str(path), points=30)
    return str(path)


@pytest.mark.parametrize(
    ("options", "probed_error", "error"),
    [
        ({"accumulate": 4}, 0.06, 0.06),
        ({"checkpoint": True}, 0.06, 0.12),
        # Nothing compiled was profiled, so the estimate alone is a guess.
        ({"compiled": True}, 0.06, 0.30),
        ({"accumulate": 3, "checkpoint": True}, 0.06, 0.12),
    ],
)
def test_estimates_agree_with_the_device(
    store: str, tmp_path: Path, options: dict[str, Any], probed_error: float, error: float
) -> None:
    measured = joulecast.measure(NET, batch=32, on=DEVICE, **options)
    assert measured.energy_j is not None
    step_j = measured.energy_j / measured.trial.execution.steps
    found = joulecast.estimate(NET, batch=32, device="simulated-5", store=store, **options)
    assert found.energy_j == pytest.approx(step_j, rel=error)
    assert found.interval_j[0] < step_j < found.interval_j[1]
    copy = tmp_path / "store.sqlite"
    copy.write_bytes(Path(store).read_bytes())
    probed = joulecast.estimate(NET, batch=32, on=DEVICE, store=str(copy), probe=True, **options)
    assert probed.energy_j == pytest.approx(step_j, rel=probed_error)


def test_run_adds_up(store: str) -> None:
    how: dict[str, Any] = {"batch": 32, "device": "simulated-5", "store": store}
    loader = torch.utils.data.DataLoader(torch.zeros(320, 4), batch_size=32)
    cost = joulecast.estimate_run(
        NET, steps=50, eval_every=20, eval_samples=100, runs=2, loader=loader, **how
    )
    step = joulecast.estimate(NET, **how)
    evaluated = joulecast.estimate(NET, phase="inference", **how)
    training, evaluation, waiting = cost.run.parts
    assert training.energy_j == pytest.approx(50 * step.energy_j)
    assert (evaluation.count, evaluation.energy_j) == (8, pytest.approx(8 * evaluated.energy_j))
    assert waiting.count == 50 and waiting.energy_j > 0
    assert cost.energy_j == pytest.approx(2 * sum(part.energy_j for part in cost.run.parts))
    assert cost.run.provenance == "simulated"


def test_several_gpus_take_fewer_steps(store: str) -> None:
    how: dict[str, Any] = {"batch": 32, "device": "simulated-5", "store": store}
    gpus = {"gpus": 4, "parallel": "data", "link_gb_s": 300}
    step = joulecast.estimate(NET, **how, **gpus)
    cost = joulecast.estimate_run(NET, epochs=2, samples=1280, **how, **gpus)
    assert step.gpus == 4 and cost.run.schedule.steps == 2 * 10
    assert cost.energy_j == pytest.approx(20 * step.energy_j)
    plain = joulecast.estimate(NET, **how)
    assert joulecast.estimate(NET, gpus=1, parallel="data", **how) == plain
    assert 4 * plain.energy_j < step.energy_j < 6 * plain.energy_j
    several = {**gpus, "gpus": (1, 4)}
    rows = joulecast.compare(NET, devices="simulated-5", store=store, batch=32, **several).rows
    assert [row.gpus for row in rows] == [1, 4]
    assert rows[1].estimate is not None
    assert rows[1].estimate.energy_j == pytest.approx(step.energy_j)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.blocks = nn.ModuleList(Feed(*layers) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Feed(nn.Sequential):
    """A block of layers."""


def test_own_module_is_checkpointed_compiled_from_a_copy() -> None:
    net, inputs = Blocks(), torch.ones(4, 8)
    before = [weight.detach().clone() for weight in net.parameters()]
    seen = joulecast.measure(
        net, inputs, on="cpu", meter="modelled", rounds=1, checkpoint=True, accumulate=2, threads=1
    )
    assert seen.trial.setup.accumulate == 2
    assert any(layer.recomputed for layer in seen.trial.network.layers)
    assert not any("forward" in vars(block) for block in net.blocks)
    assert all(map(torch.equal, before, net.parameters()))
    plain = joulecast.inspect(net, inputs)
    assert not any(layer.recomputed for layer in plain.layers)
