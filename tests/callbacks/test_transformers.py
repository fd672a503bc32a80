"""Real runs of Hugging Face's Trainer on the processor, under the modelled meter."""

import logging

import pytest
import torch
import wandb
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import joulecast
from joulecast.callbacks.transformers import EnergyCallback
from training_examples import (
    BATCH,
    CLASSES,
    FEATURES,
    WIDTH,
    make_cpu_profile,
    make_layers,
    make_samples,
    read_mlflow,
    read_tensorboard,
    use_loggers_offline,
)

# Warnings of the trainer and of its loggers do not concern the callback.
pytestmark = [pytest.mark.journey, pytest.mark.filterwarnings("ignore")]


class Classifier(nn.Module):
    def __init__(self, fails_at: int | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = make_layers(width)
        self.calls, self.fails_at = 0, fails_at

    def forward(self, x, labels=None):
        self.calls += self.training
        if self.calls == self.fails_at:
            raise KeyError("a bug of the user")
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def make_trainer(folder, callback, net=None, collator=None, **options) -> Trainer:
    # Few epochs: the start of each takes as long as a step of so small a net.
    samples = [{"x": x, "labels": label} for x, label in make_samples()] * 100
    options = {"max_steps": 60, "report_to": [], "logging_steps": 20, **options}
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=BATCH,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    net = Classifier() if net is None else net
    return Trainer(
        net,
        args,
        data_collator=collator,
        train_dataset=samples,
        eval_dataset=samples[:128],
        callbacks=[callback],
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_cpu_profile(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def run(store, tmp_path_factory):
    """One run with everything: accumulation, bf16, evaluation, and three loggers."""
    folder = tmp_path_factory.mktemp("run")
    with use_loggers_offline(folder) as uri:
        callback = EnergyCallback(store=store, meter="modelled")
        trainer = make_trainer(
            folder,
            callback,
            report_to=["tensorboard", "wandb", "mlflow"],
            gradient_accumulation_steps=2,
            bf16=True,
            eval_strategy="steps",
            eval_steps=30,
        )
        trainer.train()
        return trainer, callback, folder, uri, dict(wandb.run.summary)


def test_the_real_module_batch_and_setup_are_estimated_before_training(run, store):
    _, callback, *_ = run
    energy = callback.energy
    setup = energy.observation.trial.setup if energy.observation else energy._setup
    assert (setup.batch, setup.accumulate) == (BATCH, 2)
    assert (setup.precision, setup.optimizer, setup.loss) == ("bf16", "adamw", "own")
    kinds = [layer.kind for layer in energy._network.layers]
    assert kinds.count("linear") == 2
    assert callback.summary.estimated_j == pytest.approx(60 * energy.estimate.energy_j)
    one = joulecast.estimate(
        energy._network, setup=setup, store=store, accumulate=1, device=energy.hooks.device
    )
    assert energy.estimate.energy_j > 1.5 * one.energy_j


def test_scalars_reach_the_history_and_all_loggers_of_the_trainer(run):
    trainer, _, folder, uri, summary = run
    history = [one for one in trainer.state.log_history if "loss" in one]
    measured = [one["energy/measured_j"] for one in history]
    assert len(measured) == 3 and measured == sorted(measured)
    last = history[-1]
    assert last["energy/projected_low_j"] <= last["energy/projected_j"]
    assert last["energy/projected_j"] <= last["energy/projected_high_j"]
    for prefix, found in (("train/", read_tensorboard(folder)), ("", read_mlflow(uri))):
        assert found[f"{prefix}energy/measured_j"][:3] == pytest.approx(measured)
    names = ("projected_j", "projected_low_j", "projected_high_j", "estimated_j", "measured_j")
    assert {f"train/energy/{name}" for name in names} <= set(summary)
    evaluations = [one for one in trainer.state.log_history if "eval_loss" in one]
    assert evaluations and not any("energy/measured_j" in one for one in evaluations)


def test_the_profile_learns_from_a_run(store, tmp_path, caplog, monkeypatch):
    # On a busy machine much time may pass between steps.
    monkeypatch.setattr("joulecast.callbacks.training_windows.MOST_WAITING_SHARE", 1.0)
    callback = EnergyCallback(store=store, meter="modelled")
    batch = {"x": torch.randn(BATCH, FEATURES), "labels": torch.arange(BATCH) % CLASSES}
    trainer = make_trainer(
        tmp_path,
        callback,
        Classifier(width=8 * WIDTH),
        collator=lambda samples: batch,  # a loader that keeps up
        max_steps=16,
        gradient_accumulation_steps=4,
    )
    with caplog.at_level(logging.INFO):
        trainer.train()
    found = callback.energy.observation
    assert found is not None, caplog.text
    assert (found.source, found.provenance, found.meter) == ("own net", "modelled", "modelled")
    assert found.count >= 3 and found.measured_steps > 0
    before, network = callback.energy.estimate, found.trial.network
    after = joulecast.estimate(network, setup=found.trial.setup, store=store)
    error_before = abs(before.energy_j - found.energy_j)
    assert abs(after.energy_j - found.energy_j) < max(error_before, 0.05 * found.energy_j)


def test_the_budget_stops_the_trainer(store, tmp_path, caplog):
    callback = EnergyCallback(budget="4 J", store=store, meter="modelled")
    trainer = make_trainer(tmp_path, callback, max_steps=5000)
    trainer.train()
    assert callback.summary.stopped_by_budget
    assert trainer.state.global_step == callback.summary.steps < 5000
    assert callback.summary.energy_j >= 4.0
    assert "The budget of 4.00 J is passed" in caplog.text


def test_an_exception_passes_and_what_was_measured_is_kept(tmp_path):
    callback = EnergyCallback(meter="modelled", save=False)
    trainer = make_trainer(tmp_path, callback, Classifier(fails_at=20))
    with pytest.raises(KeyError, match="a bug of the user"):
        trainer.train()
    summary = callback.finish("KeyError")
    assert (summary.steps, summary.error) == (19, "KeyError") and summary.energy_j > 0


def test_training_is_the_same_with_and_without_the_callback(tmp_path):
    losses = []
    for callback in (TrainerCallback(), EnergyCallback(meter="modelled", save=False)):
        torch.manual_seed(1)
        trainer = make_trainer(tmp_path, callback, max_steps=8, logging_steps=1, seed=3)
        trainer.train()
        losses.append([one["loss"] for one in trainer.state.log_history if "loss" in one])
    assert losses[0] == losses[1]


def test_a_failure_of_the_callback_never_ends_training(tmp_path, monkeypatch, caplog):
    def fail(self):
        raise RuntimeError("ours")

    monkeypatch.setattr("joulecast.callbacks.training_energy.TrainingEnergy.step_end", fail)
    callback = EnergyCallback(meter="modelled", save=False)
    trainer = make_trainer(tmp_path, callback, max_steps=5)
    trainer.train()
    assert trainer.state.global_step == 5 and not trainer.model._forward_pre_hooks
    assert callback.summary.error == "RuntimeError" and callback.summary.duration_s > 0
    assert not callback.energy._monitor._opened
    assert caplog.text.count("Energy is no longer measured, and training goes on") == 1


def test_a_meter_that_is_missing_never_ends_training(tmp_path, caplog):
    trainer = make_trainer(tmp_path, EnergyCallback(meter="nvml", save=False), max_steps=3)
    trainer.train()
    assert trainer.state.global_step == 3
    assert "meter nvml is not available" in caplog.text


class Plain(nn.Module):
    """A module without state, which compiles as one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make_layers(8)

    def forward(self, x, labels=None):
        return {"loss": nn.functional.cross_entropy(self.layers(x), labels)}


@pytest.mark.parametrize("way", ["in place", "by the trainer"])
def test_a_net_that_must_be_one_graph_is_measured_and_read(tmp_path, monkeypatch, caplog, way):
    torch._dynamo.reset()
    net, options = Plain(), {}
    if way == "in place":
        net.compile(backend="eager", fullgraph=True)
    else:
        monkeypatch.setenv("ACCELERATE_DYNAMO_USE_FULLGRAPH", "true")
        options = {"torch_compile": True, "torch_compile_backend": "eager"}
    callback = EnergyCallback(device="nvidia-h200", meter="modelled", save=False)
    trainer = make_trainer(tmp_path, callback, net, max_steps=3, **options)
    trainer.train()
    assert trainer.state.global_step == 3
    assert "no longer measured" not in caplog.text
    assert sum(one.batches for one in callback.energy._windows) == 3
    assert callback.energy.estimate is not None, caplog.text
    assert callback.energy._setup.compiled
