"""Networks of the benchmark, as people train them: compiled, checkpointed or accumulated.

All come from torchvision or transformers, with random weights. ``DEVELOPMENT`` was looked at while
the method was made. ``TEST`` was fixed before any of it was measured; its batches are as large as
people use on this GPU, so that the device rather than the host decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn

_CLASSES = 1000


@dataclass(frozen=True)
class RunNetwork:
    """A network and how it is trained.

    Attributes:
        make: Builds the module.
        make_inputs: Makes a batch of inputs: one tensor, or named ones.
        compiled: Train it by ``torch.compile``.
        checkpointed: Its blocks are checkpointed by the module itself.
        accumulate: Batches per update.
    """

    name: str
    make: Callable[[], nn.Module]
    make_inputs: Callable[[int], Tensor | dict[str, Tensor]]
    batch: int
    precision: str = "bf16"
    optimizer: str = "adamw"
    compiled: bool = False
    checkpointed: bool = False
    accumulate: int = 1


def make_vision(name: str, checkpointed: bool = False) -> Callable[[], nn.Module]:
    """Return a maker of a network of torchvision."""

    def make() -> nn.Module:
        options = {"memory_efficient": True} if checkpointed else {}
        models = import_module("torchvision.models")
        net: nn.Module = getattr(models, name)(weights=None, num_classes=_CLASSES, **options)
        return net

    return make


def make_images(batch: int) -> Tensor:
    """Return random images."""
    return torch.randn(batch, 3, 224, 224)


def make_text_model(
    model_type: str, checkpointed: bool = False, **sizes: Any
) -> Callable[[], nn.Module]:
    """Return a maker of a language model of transformers that computes its own loss."""

    def make() -> nn.Module:
        transformers = import_module("transformers")
        config = transformers.AutoConfig.for_model(model_type, **sizes)
        causal = model_type in ("gpt2", "opt", "gpt_neox", "llama")
        auto = "AutoModelForCausalLM" if causal else "AutoModelForMaskedLM"
        net: Any = getattr(transformers, auto).from_config(config)
        if checkpointed:
            net.gradient_checkpointing_enable({"use_reentrant": False})
        return cast(nn.Module, net)

    return make


def make_tokens(length: int, vocabulary: int) -> Callable[[int], dict[str, Tensor]]:
    """Return a maker of random tokens with labels."""

    def make(batch: int) -> dict[str, Tensor]:
        tokens = torch.randint(5, vocabulary, (batch, length))
        return {"input_ids": tokens, "labels": tokens.clone()}

    return make


def _list_ways(one: RunNetwork, accumulate: int) -> list[RunNetwork]:
    """Return a network trained plainly, compiled and accumulated."""
    return [
        one,
        replace(one, name=f"{one.name} compiled", compiled=True),
        replace(one, name=f"{one.name} x{accumulate}", accumulate=accumulate),
    ]


_BASES = [
    RunNetwork("resnet50", make_vision("resnet50"), make_images, 64, "bf16", "sgd"),
    RunNetwork("resnet18", make_vision("resnet18"), make_images, 128, "tf32", "sgd"),
    RunNetwork("vit_b_16", make_vision("vit_b_16"), make_images, 32),
    RunNetwork("convnext_tiny", make_vision("convnext_tiny"), make_images, 64),
    RunNetwork("mobilenet_v2", make_vision("mobilenet_v2"), make_images, 64, "tf32", "sgd"),
    RunNetwork("bert", make_text_model("bert"), make_tokens(128, 30522), 32),
    RunNetwork("gpt2", make_text_model("gpt2"), make_tokens(512, 50257), 8),
    RunNetwork(
        "llama",
        make_text_model(
            "llama",
            hidden_size=768,
            intermediate_size=2048,
            num_hidden_layers=8,
            num_attention_heads=12,
            vocab_size=32000,
        ),
        make_tokens(512, 32000),
        8,
    ),
]

DEVELOPMENT = [way for one in _BASES for way in _list_ways(one, 4)] + [
    RunNetwork(
        "bert checkpointed",
        make_text_model("bert", True),
        make_tokens(128, 30522),
        32,
        checkpointed=True,
    ),
    RunNetwork(
        "gpt2 checkpointed",
        make_text_model("gpt2", True),
        make_tokens(512, 50257),
        8,
        checkpointed=True,
    ),
]

TEST = [
    RunNetwork(
        "efficientnet_v2_s compiled",
        make_vision("efficientnet_v2_s"),
        make_images,
        128,
        "bf16",
        "sgd",
        compiled=True,
    ),
    RunNetwork("swin_t compiled", make_vision("swin_t"), make_images, 128, compiled=True),
    RunNetwork(
        "opt-125m compiled", make_text_model("opt"), make_tokens(512, 50000), 32, compiled=True
    ),
    RunNetwork(
        "densenet121 checkpointed",
        make_vision("densenet121", True),
        make_images,
        128,
        "tf32",
        "sgd",
        checkpointed=True,
    ),
    RunNetwork(
        "roberta checkpointed",
        make_text_model("roberta", True),
        make_tokens(256, 50000),
        64,
        checkpointed=True,
    ),
    RunNetwork(
        "pythia-160m checkpointed",
        make_text_model(
            "gpt_neox",
            True,
            hidden_size=768,
            intermediate_size=3072,
            num_hidden_layers=12,
            num_attention_heads=12,
        ),
        make_tokens(1024, 50000),
        16,
        checkpointed=True,
    ),
    RunNetwork(
        "resnet34 x4", make_vision("resnet34"), make_images, 256, "tf32", "sgd", accumulate=4
    ),
    RunNetwork(
        "distilbert x8",
        make_text_model("distilbert"),
        make_tokens(128, 30522),
        128,
        accumulate=8,
    ),
    RunNetwork("convnext_small x4", make_vision("convnext_small"), make_images, 64, accumulate=4),
]
