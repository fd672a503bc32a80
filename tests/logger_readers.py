"""Make Weights & Biases and MLflow write files, and read scalars from them and TensorBoard."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

Scalars = dict[str, list[float]]

# A file of Weights & Biases is a log of LevelDB behind a header of seven bytes: blocks of 32 KiB
# with records of checksum (4 bytes), length (2), type (1) and data; large ones have several parts.
_WANDB_HEADER, _BLOCK, _RECORD_HEADER = 7, 32768, 7
_FULL, _LAST = 1, 4


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


def read_wandb(folder: Path) -> Scalars:
    """Return the values of every scalar of offline runs."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: Scalars = {}
    for file in sorted(folder.rglob("run-*.wandb")):
        for data in _split_records(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                value = json.loads(item.value_json)
                if isinstance(value, int | float):
                    found.setdefault(name, []).append(value)
    return found


def _split_records(data: bytes) -> Iterator[bytes]:
    at, parts = _WANDB_HEADER, b""
    while at + _RECORD_HEADER <= len(data):
        if _BLOCK - at % _BLOCK < _RECORD_HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += _RECORD_HEADER
        parts += data[at : at + length]
        at += length
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""
