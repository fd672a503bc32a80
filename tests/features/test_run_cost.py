"""Runs add up part by part, agree with a simulated device, and wait for what loads slowly."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import joulecast
from joulecast.features.estimate_report import list_run_lines
from joulecast.features.run import (
    EVALUATION,
    TRAINING,
    WAITING,
    DataWait,
    LoadingTime,
    RunCost,
    RunSchedule,
    add_up_run,
    average_step,
    find_wait,
    time_loader,
)
from joulecast.records import DataParallel, Estimate, Setup
from joulecast.system.errors import InputError

STEP = Estimate(
    2.0, (1.5, 2.6), 0.95, 0.01, 1000, (), 0.0, "simulated", "gpu", "board", "additive",
    duration_interval_s=(0.008, 0.012),
)  # fmt: skip
EVALUATED = replace(STEP, energy_j=0.5, interval_j=(0.4, 0.7), duration_s=0.003)
SETUP = Setup(batch=8)
SCHEDULE = RunSchedule(100, evaluations=5, evaluation_batches=4)
WAIT = DataWait(LoadingTime(0.012, 50, workers=2), 0.002, idle_w=30.0)


def test_parts_of_a_run_add_up() -> None:
    cost = add_up_run(STEP, SETUP, SCHEDULE, EVALUATED, WAIT)
    parts = [(part.name, part.count) for part in cost.parts]
    assert parts == [(TRAINING, 100), (EVALUATION, 20), (WAITING, 100)]
    waiting_j = 100 * 0.002 * 30.0
    assert cost.energy_j == pytest.approx(200.0 + 10.0 + waiting_j)
    # Errors of the parts are common, so the ends add up.
    assert cost.interval_j == pytest.approx((150.0 + 8.0 + waiting_j, 260.0 + 14.0 + waiting_j))
    assert cost.duration_s == pytest.approx(1.0 + 0.06 + 0.2)
    assert cost.provenance == "simulated" and cost.level == 0.95
    # A step of several GPUs has their energy; evaluations and waiting are estimated for one.
    part = DataParallel(4, 32, 1000, 1, 300e9, 0.75, 1e-3, 1e-3, 1e-3, 0.1, 100.0, "simulated")
    four = add_up_run(replace(STEP, data_parallel=part), SETUP, SCHEDULE, EVALUATED, WAIT)
    pairs = list(zip(cost.parts, four.parts, strict=True))
    assert [b.energy_j / a.energy_j for a, b in pairs] == pytest.approx([1.0, 4.0, 4.0])
    assert [b.interval_j[1] / a.interval_j[1] for a, b in pairs] == pytest.approx([1.0, 4.0, 4.0])
    assert four.duration_s == pytest.approx(cost.duration_s)


def test_interval_of_a_sweep_does_not_shrink() -> None:
    one, many = (add_up_run(STEP, SETUP, RunSchedule(10, runs=runs)) for runs in (1, 200))
    assert many.energy_j == pytest.approx(200 * one.energy_j)
    assert many.interval_j == pytest.approx([200 * end_j for end_j in one.interval_j])
    assert many.parts == one.parts


def test_every_batch_of_a_step_is_waited_for() -> None:
    wait = DataWait(LoadingTime(0.1, 50), 0.1)
    waiting = add_up_run(STEP, replace(SETUP, accumulate=4), RunSchedule(10), wait=wait).parts[-1]
    assert (waiting.count, waiting.energy_j) == (40, 0.0)
    assert waiting.duration_s == pytest.approx(4.0)


def test_what_is_missing_is_said_in_one_sentence() -> None:
    def explain(setup: Setup = SETUP, *rest: Any) -> str:
        schedule = RunSchedule(10, 1, 1) if rest else RunSchedule(10)
        return add_up_run(STEP, setup, schedule, *rest).not_included

    assert explain() == "Not included: loading data, evaluation, checkpoint files and start-up."
    assert "compiling" in explain(replace(SETUP, compiled=True))
    wait = DataWait(LoadingTime(0.1, 50), 0.1)
    loaded = explain(SETUP, EVALUATED, wait)
    assert "idle power is not known" in loaded and "processor that loads data" in loaded
    assert "evaluation" not in loaded and "loading data," not in loaded
    # No data was loaded while the meter measured, whatever it covers.
    assert explain(SETUP, EVALUATED, replace(wait, idle_w=5.0)) == (
        "Not included: energy of the processor that loads data, checkpoint files and start-up."
    )


def test_average_step_has_its_share_of_everything() -> None:
    cost: RunCost = add_up_run(STEP, SETUP, replace(SCHEDULE, runs=3), EVALUATED)
    average = average_step(STEP, cost)
    assert 300 * average.energy_j == pytest.approx(cost.energy_j)
    assert 300 * average.duration_s == pytest.approx(cost.duration_s)
    assert average.interval_j[0] < average.energy_j < average.interval_j[1]
    assert average.duration_interval_s is not None
    assert average.duration_interval_s[0] == pytest.approx(0.008 * average.duration_s / 0.01)


def test_first_batch_is_not_counted_and_timing_ends() -> None:
    def count(loader: Any, *times_s: float) -> LoadingTime:
        clock = itertools.chain(times_s, itertools.repeat(times_s[-1]))
        return time_loader(loader, 4, clock=lambda: next(clock))

    # The first one starts the workers.
    assert count([1, 2, 3, 4], 9.0, 9.5, 10.0, 10.5) == LoadingTime(0.5, 3, 0)
    assert count(itertools.count(), 0.0, 6.0).batches == 1
    assert count(itertools.count(), 0.0).batches == 200
    found = time_loader(DataLoader(TensorDataset(torch.zeros(40, 3)), batch_size=4), 4)
    assert found.batches == 9 and found.workers == 0


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: time_loader([1], 4), "gave 1 batches: give one with at least 2"),
        (lambda: time_loader([], 4), "gave 0 batches"),
        (
            lambda: time_loader(DataLoader(TensorDataset(torch.zeros(40, 3)), batch_size=8), 4),
            "batches of 8, but the estimate is for 4: give batch=8",
        ),
    ],
)
def test_empty_and_other_loaders_are_refused(ask: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask()


@pytest.mark.parametrize(
    ("batch_s", "workers", "accumulate", "wait_s"),
    [(0.03, 0, 1, 0.03), (0.03, 2, 1, 0.01), (0.03, 2, 4, 0.025), (0.03, 0, 4, 0.03),
     (0.01, 1, 1, 0.0)],
)  # fmt: skip
def test_device_waits_for_what_no_worker_hides(
    batch_s: float, workers: int, accumulate: int, wait_s: float
) -> None:
    setup = Setup(batch=4, accumulate=accumulate)
    found = find_wait(LoadingTime(batch_s, 9, workers), 0.02, setup, idle_w=7.0)
    assert found.wait_s == pytest.approx(wait_s) and found.idle_w == 7.0


def test_hidden_and_unknown_waits_are_described() -> None:
    loading = LoadingTime(0.002, 10, workers=4)
    for wait_s, said in (
        (0.0, "Loading data adds nothing: a batch takes 2.00 ms to load with 4 workers"),
        (0.001, "Loading data adds 10.0 ms: a batch"),
    ):
        cost = add_up_run(STEP, SETUP, RunSchedule(10), wait=DataWait(loading, wait_s))
        assert said in list_run_lines(cost, SETUP)[1]


NET = "transformer:192,2"
SIMULATED = "simulated:5"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("runs") / "store.sqlite"
    joulecast.profile("transformer:256,2", batch=32, on=SIMULATED, store=str(path), points=30)
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
    measured = joulecast.measure(NET, batch=32, on=SIMULATED, **options)
    assert measured.energy_j is not None
    step_j = measured.energy_j / measured.trial.execution.steps
    found = joulecast.estimate(NET, batch=32, device="simulated-5", store=store, **options)
    assert found.energy_j == pytest.approx(step_j, rel=error)
    assert found.interval_j[0] < step_j < found.interval_j[1]
    copy = tmp_path / "store.sqlite"
    copy.write_bytes(Path(store).read_bytes())
    probed = joulecast.estimate(
        NET, batch=32, on=SIMULATED, store=str(copy), probe="layers", **options
    )
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
    assert [row.gpus for row in rows] == [1, 4] and rows[1].estimate is not None
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
