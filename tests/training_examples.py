"""A small network, its data, its profile, a clock and loggers, for tests of trainers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from virtual_instruments import VirtualClock

import joulecast
from joulecast.meters.modelled import ModelledMeter

Scalars = dict[str, list[float]]
CLASSES, FEATURES, WIDTH, BATCH = 10, 64, 4096, 64


def make_layers(width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))


def make_samples(count: int = 256) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(FEATURES), torch.tensor(n % CLASSES)) for n in range(count)]


def make_cpu_profile(place: Path) -> str:
    """Measure steps of two other networks on this processor; return the store."""
    store = str(place / "store.sqlite")
    for width in (WIDTH // 16, WIDTH // 2):
        network = joulecast.inspect(make_layers(width), torch.randn(BATCH, FEATURES))
        joulecast.measure(
            network, meter="modelled", batch=BATCH, optimizer="adamw", rounds=2, store=store
        )
    return store


@contextmanager
def use_virtual_clock() -> Iterator[VirtualClock]:
    """Measure callbacks on a virtual clock, on which the meter sees one busy core of 10 W."""
    clock = VirtualClock(step_s=1.0)
    fake = SimpleNamespace(monotonic=clock.now, time=lambda: 1.7e9)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("callbacks.training_energy", "features.monitor"):
            patch.setattr(f"joulecast.{module}.time", fake)
        patch.setattr(
            "joulecast.features.monitor.find_meter",
            lambda name, on: clock.drive(ModelledMeter(cpu_time=clock.now)),
        )
        yield clock


@contextmanager
def use_loggers_offline(folder: Path) -> Iterator[str]:
    """Let Weights & Biases and MLflow write into a folder; the value is MLflow's address."""
    import mlflow
    import wandb

    uri = (folder / "mlflow").as_uri()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("WANDB_DIR", str(folder))
        for name in ("CACHE", "CONFIG", "DATA"):
            patch.setenv(f"WANDB_{name}_DIR", str(folder / "wandb"))
        try:
            yield uri
        finally:
            # Both keep their folder for as long as the process lives; the next run has another.
            wandb.finish()
            wandb.teardown()
            mlflow.set_tracking_uri(None)


def read_tensorboard(folder: Path) -> Scalars:
    """Return the values of every scalar, in the order of their steps."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: Scalars = {}
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        events = EventAccumulator(str(file))
        events.Reload()
        for name in events.Tags()["scalars"]:
            found.setdefault(name, []).extend(one.value for one in events.Scalars(name))
    return found


def read_mlflow(uri: str) -> Scalars:
    """Return the values of every metric of all runs."""
    import mlflow

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    client, found = mlflow.MlflowClient(tracking_uri=uri), {}
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            for name in run.data.metrics:
                history = client.get_metric_history(run.info.run_id, name)
                found.setdefault(name, []).extend(one.value for one in history)
    return found
