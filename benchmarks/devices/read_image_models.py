"""Read timm's models into network files, so that the benchmark does not need timm.

    pip install timm torchvision
    python benchmarks/devices/read_image_models.py

writes ``image_networks/MODEL-MODE-IMAGE.json.gz`` for every model of ``image_steps.csv``.
"""

from __future__ import annotations

import timm
import torch
from image_steps import NETWORKS, TRAINING, ImageStep, read_image_steps
from read_models import write_network
from timm.layers import set_fused_attn

import joulecast
from joulecast.records import Network

# Any would do: networks are per sample, and the batch belongs to the setup.
_BATCH = 2


def main() -> None:
    """Read every model of the table."""
    for step in {one.file_name: one for one in read_image_steps()}.values():
        network = read_model(step)
        path = write_network(network, NETWORKS / step.file_name)
        print(f"{path.name}: {len(network.layers)} layers, {path.stat().st_size} bytes", flush=True)


def read_model(step: ImageStep) -> Network:
    """Return the network of a model, as it ran: PyTorch 1.12 has no fused attention."""
    is_training = step.mode == TRAINING
    set_fused_attn(not is_training)
    module = timm.create_model(step.model)
    images = torch.zeros(_BATCH, 3, step.image, step.image)
    if is_training:
        module = module.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    return joulecast.inspect(module, images, batch=_BATCH)


if __name__ == "__main__":
    main()
