"""Real runs of Lightning's Trainer on the processor, under the modelled meter."""

import csv
import logging

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader
from virtual_instruments import VirtualClock

from joulecast.callbacks.lightning import EnergyCallback
from training_examples import BATCH, make_layers, make_samples, read_tensorboard, use_virtual_clock

# Warnings of the trainer and of its loggers do not concern the callback.
pytestmark = [pytest.mark.journey, pytest.mark.filterwarnings("ignore")]
SHIPPED = "nvidia-h200"


class Classifier(LightningModule):
    """A net whose batches take 50 ms to train on and 150 ms to evaluate, if there is a clock."""

    def __init__(self, fails_at: int | None = None, clock: VirtualClock | None = None) -> None:
        super().__init__()
        self.clock = clock
        self.layers = make_layers()
        self.fails_at, self.seen = fails_at, torch.zeros(())

    def training_step(self, batch, batch_idx):
        x, labels = batch
        if batch_idx == self.fails_at:
            raise KeyError("a bug of the user")
        self.seen = self.seen + len(x)
        self._spend(0.05)
        loss = nn.functional.cross_entropy(self.layers(x), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, labels = batch
        self._spend(0.15)
        self.log("validation", nn.functional.cross_entropy(self.layers(x), labels))

    def _spend(self, duration_s: float) -> None:
        if self.clock is not None:
            self.clock.sleep(duration_s)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


def fit(folder, callback, net=None, **options) -> Trainer:
    options = {"max_epochs": 4, "logger": False, "enable_checkpointing": False, **options}
    trainer = Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    samples = make_samples(1024)
    loader = DataLoader(samples, batch_size=BATCH)
    trainer.fit(net or Classifier(), loader, DataLoader(samples[:128], batch_size=BATCH))
    return trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run with everything: accumulation, bf16, evaluation, checkpoints, two loggers."""
    folder = tmp_path_factory.mktemp("run")
    callback = EnergyCallback(device=SHIPPED, meter="modelled", save=False)
    with use_virtual_clock() as clock:
        trainer = fit(
            folder,
            callback,
            Classifier(clock=clock),
            logger=[TensorBoardLogger(folder), CSVLogger(folder)],
            accumulate_grad_batches=2,
            precision="bf16-mixed",
            enable_checkpointing=True,
            log_every_n_steps=8,
        )
    return trainer, callback, folder


def test_the_real_module_batch_and_setup_are_estimated_before_training(run):
    trainer, callback, _ = run
    energy, setup = callback.energy, callback.energy._setup
    assert (setup.batch, setup.accumulate) == (BATCH, 2)
    assert (setup.precision, setup.optimizer) == ("bf16", "adamw")
    assert [layer.kind for layer in energy._network.layers].count("linear") == 2
    assert energy.run.steps == trainer.global_step == callback.summary.steps == 32
    assert callback.summary.estimated_j == pytest.approx(32 * energy.estimate.energy_j)


def test_reading_leaves_no_trace_in_the_module(run):
    trainer, _, _ = run
    assert type(trainer.lightning_module.seen) is torch.Tensor
    assert float(trainer.lightning_module.seen) == 4 * 1024
    assert "log" not in trainer.lightning_module.__dict__


def test_evaluation_and_checkpoints_are_not_steps(run):
    _, callback, _ = run
    windows = callback.energy._windows
    assert sum(one.steps for one in windows) == 32
    assert sum(one.batches for one in windows) == 64
    # Each of four epochs ends with an evaluation of two batches, at 10 W.
    mixed = [one for one in windows if one.is_mixed and one.is_warm]
    other_j = [(one.energy.energy_j or 0.0) - one.steps for one in mixed]
    assert [one for one in other_j if one] == pytest.approx([3.0] * 4)
    steady = [one for one in windows if one.is_steady]
    assert steady and all(one.step_energy_j == pytest.approx(1.0) for one in steady)
    assert callback.summary.energy_j == pytest.approx(64 * 0.5 + 4 * 3.0)


def read_csv_log(folder) -> dict[str, list[float]]:
    (file,) = folder.rglob("metrics.csv")
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    return {name: [float(row[name]) for row in rows if row[name]] for name in rows[0]}


def test_scalars_reach_all_loggers_of_the_trainer(run):
    _, callback, folder = run
    for found in (read_tensorboard(folder), read_csv_log(folder)):
        measured = found["energy/measured_j"]
        assert len(measured) == 5 and measured == sorted(measured)
        assert 0 < measured[-1] <= callback.summary.energy_j * 1.001
        for low, mean, high in zip(
            found["energy/projected_low_j"],
            found["energy/projected_j"],
            found["energy/projected_high_j"],
            strict=True,
        ):
            assert low <= mean <= high


def test_the_budget_stops_the_trainer(tmp_path, caplog):
    callback = EnergyCallback("4 J", device=SHIPPED, meter="modelled", save=False)
    trainer = fit(tmp_path, callback, max_epochs=100)
    assert callback.summary.stopped_by_budget and callback.summary.energy_j >= 4.0
    assert trainer.global_step == callback.summary.steps < 1600
    assert "The budget of 4.00 J is passed" in caplog.text


def test_an_exception_passes_and_what_was_measured_is_kept(tmp_path):
    callback = EnergyCallback(meter="modelled", save=False)
    with pytest.raises(KeyError, match="a bug of the user"):
        fit(tmp_path, callback, Classifier(fails_at=10))
    assert (callback.summary.steps, callback.summary.error) == (10, "KeyError")
    assert callback.summary.energy_j > 0


def test_a_failure_of_the_callback_never_ends_training(tmp_path, monkeypatch, caplog):
    def fail(self):
        raise RuntimeError("ours")

    monkeypatch.setattr("joulecast.callbacks.training_energy.TrainingEnergy.step_end", fail)
    trainer = fit(tmp_path, EnergyCallback(meter="modelled", save=False), max_epochs=1)
    assert trainer.global_step == 16
    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert [one.name for one in warnings].count("joulecast.training") == 2  # and no profile
