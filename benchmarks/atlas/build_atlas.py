"""Compare the networks of the atlas with real models, and extend it by reading more of them.

    python benchmarks/atlas/build_atlas.py check
    python benchmarks/atlas/build_atlas.py extend --count 40 --seed 1 --out atlas.json.gz

``check`` prints, for small models of the transformers library, which share of their work is done by
kinds of layers that the atlas has. ``extend`` reads models of random sizes with Joulecast's own
reader and appends them to the shipped networks (``src/joulecast/campaign/atlas.json.gz``). These
were written once, from networks that earlier versions drew at random (commit 334f793,
``joulecast.atlas``). They stay at the beginning in this order: profiles rest on their trials.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from joulecast.campaign.atlas import draw_members, load_networks, split_members
from joulecast.estimators.additive.layers import set_up_layer
from joulecast.records import Network, Setup
from joulecast.torch_nets.losses import cross_entropy_loss
from joulecast.torch_nets.net_reader import read_net
from joulecast.variants import split_network

BATCH, PRECISIONS = 2, ("fp32", "tf32", "bf16")
# The library looks at values of their masks, so they cannot be read without memory.
_NEEDS_MEMORY = ("OPTForCausalLM", "MixtralForCausalLM")

DrawSize = Callable[..., int]
Config = Mapping[str, Any]


def draw_sizes(seed: str) -> DrawSize:
    """Return a function that draws a log-uniform integer between two bounds, by a multiple."""
    source = random.Random(seed)

    def draw(low: int, high: int, multiple: int = 1) -> int:
        value = math.exp(source.uniform(math.log(low), math.log(high)))
        return max(low, min(high, multiple * round(value / multiple)))

    return draw


def size_encoder(draw: DrawSize) -> Config:
    """Return sizes of BERT and similar models."""
    heads, head_dim = draw(2, 16), 16 * draw(1, 8)
    width = heads * head_dim
    return {
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": draw(2, 3),
        "intermediate_size": 4 * width,
        "vocab_size": draw(1000, 100_000),
        "max_position_embeddings": 2048,
        "pad_token_id": 0,
    }


def size_decoder(draw: DrawSize) -> Config:
    """Return sizes of Llama and similar models, whose keys are shared by several queries."""
    sizes = dict(size_encoder(draw))
    heads = sizes["num_attention_heads"]
    shared = [count for count in (1, 2, 4, 8) if heads % count == 0]
    sizes["num_key_value_heads"] = heads // shared[draw(1, len(shared)) - 1]
    return {**sizes, "head_dim": sizes["hidden_size"] // heads}


def size_vision(draw: DrawSize) -> Config:
    """Return sizes of transformers on patches."""
    sizes = {
        name: size for name, size in size_encoder(draw).items() if "_size" in name or "num" in name
    }
    sizes.pop("vocab_size")
    return {**sizes, "image_size": 16 * draw(4, 16), "patch_size": 16}


def size_stages(draw: DrawSize) -> Config:
    """Return sizes of convolutional models in four stages."""
    width = 8 * draw(2, 12)
    return {"hidden_sizes": [width * 2**stage for stage in range(4)], "depths": [2, 2, 2, 2]}


MODELS: dict[str, tuple[str, str, Callable[[DrawSize], Config]]] = {
    "gpt-neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", size_encoder),
    "opt": ("OPTForCausalLM", "OPTConfig", size_encoder),
    "llama": ("LlamaForCausalLM", "LlamaConfig", size_decoder),
    "mistral": ("MistralForCausalLM", "MistralConfig", size_decoder),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", size_decoder),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", size_decoder),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", size_decoder),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", size_decoder),
    "bert": ("BertForMaskedLM", "BertConfig", size_encoder),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", size_encoder),
    "vit": ("ViTForImageClassification", "ViTConfig", size_vision),
    "deit": ("DeiTForImageClassification", "DeiTConfig", size_vision),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", size_vision),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig", size_stages),
    "resnet": ("ResNetForImageClassification", "ResNetConfig", size_stages),
    "mobilenet v2": ("MobileNetV2ForImageClassification", "MobileNetV2Config", lambda draw: {}),
}


def read_model(name: str, seed: str = "0") -> Network:
    """Return the network that reading a model of random sizes gives."""
    import transformers

    draw = draw_sizes(f"{name} {seed}")
    model, config, size = MODELS[name]
    sizes = size(draw)
    with torch.device("cpu" if model in _NEEDS_MEMORY else "meta"):
        net = getattr(transformers, model)(getattr(transformers, config)(**sizes))
        inputs: dict[str, torch.Tensor]
        if "vocab_size" in sizes:
            inputs = {"input_ids": torch.zeros(BATCH, draw(16, 512), dtype=torch.long)}
        else:
            side = sizes.get("image_size", 32 * draw(2, 8))
            inputs = {"pixel_values": torch.zeros(BATCH, 3, side, side)}
    return read_net(net.train(), inputs, cross_entropy_loss, name)


def find_covered_share(network: Network, labels: set[str], precision: str) -> float:
    """Return the share of a network's work that layers of known labels do."""
    setup = Setup(batch=8, precision=precision)
    covered = total = 0.0
    for placed in split_network(network):
        layer = set_up_layer(placed.block, setup)
        work = placed.calls * (layer.size_bytes + layer.flops / 100.0)
        total += work
        covered += work if layer.label in labels else 0.0
    return covered / total


def check_coverage() -> None:
    """Print the share of the work of every model that the atlas has kinds of layers for."""
    labels = {one.layer.label for one in split_members(draw_members(len(load_networks())))}
    for name in MODELS:
        network = read_model(name)
        least = min(find_covered_share(network, labels, one) for one in PRECISIONS)
        print(f"{name:20} {least:7.1%}")


def write_atlas(networks: Sequence[Network], path: Path) -> None:
    """Write networks as the atlas has them: distinct layers once, one line each."""
    layers: dict[str, int] = {}
    rows = []
    for network in networks:
        row = network.to_dict()
        del row["totals"]
        for layer in row["layers"]:
            layer.pop("name", None)
        row["layers"] = [
            layers.setdefault(_dump(layer, sort_keys=True), len(layers)) for layer in row["layers"]
        ]
        rows.append(_dump(row))
    text = '{"layers":[\n' + ",\n".join(layers) + '\n],"networks":[\n' + ",\n".join(rows) + "\n]}\n"
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _dump(value: Any, sort_keys: bool = False) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys)


def main(words: Sequence[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("command", choices=("check", "extend"))
    parser.add_argument("--count", type=int, default=32, help="networks to add")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("atlas.json.gz"))
    options = parser.parse_args(words)
    if options.command == "check":
        return check_coverage()
    names = list(MODELS)
    added = [
        read_model(names[index % len(names)], f"{options.seed} {index}")
        for index in range(options.count)
    ]
    return write_atlas((*load_networks(), *added), options.out)


if __name__ == "__main__":
    main(sys.argv[1:])
