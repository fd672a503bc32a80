"""Read published steps of image models on GeForce cards, as Joulecast's records.

``image_steps.csv`` has 117 rows of the tables that Ross Wightman publishes with timm
(huggingface/pytorch-image-models, ``results/benchmark-*.csv``; Apache-2.0): training steps on an
RTX 3090 (PyTorch 1.12, channels last) and inferences on an RTX 4090 and an RTX 5090 (PyTorch 2.9),
all with autocast to fp16, cuDNN's benchmark mode and batches that fill the card. Networks are in
``image_networks``; ``read_image_models.py`` reads them again.
"""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from joulecast.records import Network, Setup

TABLE = Path(__file__).parent / "image_steps.csv"
NETWORKS = Path(__file__).parent / "image_networks"
TRAINING = "train"
_MS = 1e-3


@dataclass(frozen=True)
class ImageStep:
    """A model's step and how long it takes on a device.

    Attributes:
        mode: ``inf``, or ``train``: forward, backward and an update by SGD with momentum.
        image: Height and width of the images.
    """

    device: str
    mode: str
    model: str
    image: int
    batch: int
    duration_s: float

    @property
    def network(self) -> Network:
        """The model as Joulecast read it."""
        return _load_network(self.file_name)

    @property
    def setup(self) -> Setup:
        """How it ran."""
        phase = "train" if self.mode == TRAINING else "inference"
        return Setup(self.batch, phase=phase, precision="fp16")

    @property
    def file_name(self) -> str:
        """Name of the file of its network."""
        return f"{self.model}-{self.mode}-{self.image}.json.gz"


def read_image_steps(path: Path = TABLE) -> list[ImageStep]:
    """Return all rows of the table."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            ImageStep(
                row["device"],
                row["mode"],
                row["model"],
                int(row["image"]),
                int(row["batch"]),
                float(row["step_ms"]) * _MS,
            )
            for row in csv.DictReader(file)
        ]


@lru_cache
def _load_network(name: str) -> Network:
    return Network.from_dict(json.loads(gzip.decompress((NETWORKS / name).read_bytes())))
