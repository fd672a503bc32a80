"""Read the models of published steps into network files, so that the benchmark needs no library.

    pip install timm torchvision transformers
    python benchmarks/devices/read_published_models.py

writes ``published_networks/MODEL-MODE-SIZE.json.gz`` for every model of ``published_steps.csv``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from published_steps import BERT, NETWORKS, TRAINING, PublishedStep, read_published_steps
from read_models import write_network

import joulecast
from joulecast.records import Network

# Any would do: networks are per sample, and the batch belongs to the setup.
_BATCH = 2
_NCHW = "_nchw"
_BERT_SIZES = {
    "bert_base_squad": {},
    "bert_large_squad": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}


def main() -> None:
    """Read every model of the table."""
    for step in {one.file_name: one for one in read_published_steps()}.values():
        network = read_bert(step) if step.model.startswith(BERT) else read_image_model(step)
        path = write_network(network, NETWORKS / step.file_name)
        print(f"{path.name}: {len(network.layers)} layers, {path.stat().st_size} bytes", flush=True)


def read_image_model(step: PublishedStep) -> Network:
    """Return the network of an image model, as it ran: PyTorch 1.12 has no fused attention."""
    timm: Any = import_module("timm")
    is_training, is_nchw = step.mode == TRAINING, step.model.endswith(_NCHW)
    timm.layers.set_fused_attn(not is_training)
    module = timm.create_model(step.model.removesuffix(_NCHW))
    images = torch.zeros(_BATCH, 3, step.size, step.size)
    if is_training and not is_nchw:
        module = module.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    return joulecast.inspect(module, images, batch=_BATCH)


def read_bert(step: PublishedStep) -> Network:
    """Return the network of a BERT with the head for SQuAD, with eager attention."""
    transformers: Any = import_module("transformers")
    config = transformers.BertConfig(attn_implementation="eager", **_BERT_SIZES[step.model])
    tokens = torch.zeros(_BATCH, step.size, dtype=torch.long)
    inputs = {
        "input_ids": tokens,
        "attention_mask": tokens + 1,
        "token_type_ids": tokens,
        "start_positions": tokens[:, 0],
        "end_positions": tokens[:, 0],
    }
    return joulecast.inspect(transformers.BertForQuestionAnswering(config), inputs, loss=take_loss)


def take_loss(outputs: Any) -> Any:
    """Return the loss that the module computed."""
    return outputs.loss


if __name__ == "__main__":
    main()
