"""Read published steps of image models and of BERT on many GPUs, as Joulecast's records.

``published_steps.csv`` has figures of two public tables. Networks are in ``published_networks``;
``read_published_models.py`` reads them again.

    timm     training on an RTX 3090 (PyTorch 1.12, channels last), inference on an RTX 4090 and an
             RTX 5090 (PyTorch 2.9); autocast to fp16, batches that fill the card. Milliseconds of a
             step (huggingface/pytorch-image-models, ``results/benchmark-*.csv``, Apache-2.0).
    lambda   training of ResNet-50 on synthetic images and of BERT on SQuAD with NVIDIA's examples
             on twelve GPUs, in fp16 and TF32 or, before Ampere, fp32. Batch over samples per second
             (lambdal/deeplearning-benchmark, ``pytorch-train-*.csv``). The Quadro RTX 8000 is taken
             for an RTX 6000, which has the same chip; the A10's batches are those of other cards
             with 24 GB; the H100 SXM is the one of Dell's servers.

All ran with cuDNN's benchmark mode, which Joulecast's own measurements do not use.
"""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from joulecast.catalogue import find_data_sheet
from joulecast.records import Network, Setup

TABLE = Path(__file__).parent / "published_steps.csv"
NETWORKS = Path(__file__).parent / "published_networks"
TRAINING, BERT = "train", "bert"
_MS = 1e-3


@dataclass(frozen=True)
class PublishedStep:
    """A model's step and how long it takes on a device.

    Attributes:
        source: The table that it is from.
        mode: ``inf``, or ``train``: forward, backward and an update.
        size: Height and width of images, or tokens of a sequence.
    """

    source: str
    device: str
    mode: str
    model: str
    size: int
    batch: int
    precision: str
    duration_s: float

    @property
    def network(self) -> Network:
        """The model as Joulecast read it."""
        return _load_network(self.file_name)

    @property
    def setup(self) -> Setup:
        """How it ran."""
        phase = "train" if self.mode == TRAINING else "inference"
        optimizer = "adamw" if self.model.startswith(BERT) else "sgd"
        return Setup(self.batch, phase=phase, precision=self.precision, optimizer=optimizer)

    @property
    def file_name(self) -> str:
        """Name of the file of its network."""
        return f"{self.model}-{self.mode}-{self.size}.json.gz"


def read_published_steps(without: str | None = None) -> list[PublishedStep]:
    """Return all rows of the table.

    Args:
        without: A device to leave out, by any of its names.
    """
    left_out = find_data_sheet(without).name if without else ""
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = [
            PublishedStep(
                row["source"],
                row["device"],
                row["mode"],
                row["model"],
                int(row["size"]),
                int(row["batch"]),
                row["precision"],
                float(row["step_ms"]) * _MS,
            )
            for row in csv.DictReader(file)
        ]
    return [row for row in rows if find_data_sheet(row.device).name != left_out]


@lru_cache
def _load_network(name: str) -> Network:
    return Network.from_dict(json.loads(gzip.decompress((NETWORKS / name).read_bytes())))
