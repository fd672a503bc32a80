"""Networks of the benchmark: Hugging Face's model classes with reduced sizes and random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hugging_face
from torch import nn

# Its annotations leave out arguments that all configurations take.
transformers: Any = hugging_face


class FirstOutput(nn.Module):
    """A model that is called on one tensor and returns one tensor, as exporters want it."""

    def __init__(self, model: nn.Module, argument: str, **options: Any) -> None:
        super().__init__()
        self.model, self.argument, self.options = model, argument, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.model(**{self.argument: x}, **self.options)[0]
        return first


@dataclass(frozen=True)
class Net:
    """A module and a batch of one sample."""

    name: str
    module: nn.Module
    inputs: torch.Tensor


def make_tokens(count: int, vocabulary: int) -> torch.Tensor:
    """Return one sample of tokens."""
    return torch.randint(0, vocabulary, (1, count), generator=torch.Generator().manual_seed(0))


def make_image(pixels: int) -> torch.Tensor:
    """Return one image."""
    return torch.randn(1, 3, pixels, pixels, generator=torch.Generator().manual_seed(0))


def make_bert() -> Net:
    """Return a BERT of the size of BERT-mini, on 128 tokens."""
    config = transformers.BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    model = transformers.BertForSequenceClassification(config)
    return Net("BERT", FirstOutput(model, "input_ids"), make_tokens(128, config.vocab_size))


def make_vit() -> Net:
    """Return a ViT-small with half its layers, on images of 160 pixels."""
    config = transformers.ViTConfig(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=1536,
        image_size=160,
        num_labels=1000,
    )
    model = transformers.ViTForImageClassification(config)
    return Net("ViT", FirstOutput(model, "pixel_values"), make_image(160))


def make_gpt2() -> Net:
    """Return a narrow GPT-2 with its language-model head, on 64 tokens."""
    config = transformers.GPT2Config(
        n_embd=448,
        n_layer=5,
        n_head=7,
        vocab_size=16_000,
        n_positions=256,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    inputs = make_tokens(64, config.vocab_size)
    # Without a mask the exporter meets an operator that it does not know.
    options = {"use_cache": False, "attention_mask": torch.ones_like(inputs)}
    return Net("GPT-2", FirstOutput(model, "input_ids", **options), inputs)


def make_mobilenet() -> Net:
    """Return a MobileNetV2 on images of 192 pixels."""
    config = transformers.MobileNetV2Config(image_size=192, num_labels=1000)
    model = transformers.MobileNetV2ForImageClassification(config)
    return Net("MobileNetV2", FirstOutput(model, "pixel_values"), make_image(192))


def make_resnet() -> Net:
    """Return a ResNet-18 on images of 160 pixels."""
    config = transformers.ResNetConfig(
        depths=[2, 2, 2, 2],
        hidden_sizes=[64, 128, 256, 512],
        layer_type="basic",
        num_labels=1000,
    )
    model = transformers.ResNetForImageClassification(config)
    return Net("ResNet-18", FirstOutput(model, "pixel_values"), make_image(160))


def make_wav2vec2() -> Net:
    """Return a narrow wav2vec 2.0 on half a second of sound."""
    config = transformers.Wav2Vec2Config(
        hidden_size=288,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=1152,
        conv_dim=(192,) * 7,
        num_conv_pos_embeddings=32,
    )
    model = transformers.Wav2Vec2Model(config)
    sound = torch.randn(1, 8000, generator=torch.Generator().manual_seed(0))
    return Net("wav2vec 2.0", FirstOutput(model, "input_values"), sound)


def make_distilbert() -> Net:
    """Return a narrow DistilBERT on 96 tokens."""
    config = transformers.DistilBertConfig(dim=320, n_layers=3, n_heads=5, hidden_dim=1280)
    model = transformers.DistilBertForSequenceClassification(config)
    return Net("DistilBERT", FirstOutput(model, "input_ids"), make_tokens(96, config.vocab_size))


def make_convnext() -> Net:
    """Return a small ConvNeXt on images of 128 pixels."""
    config = transformers.ConvNextConfig(depths=[2, 2, 4, 2], hidden_sizes=[64, 128, 256, 384])
    model = transformers.ConvNextForImageClassification(config)
    return Net("ConvNeXt", FirstOutput(model, "pixel_values"), make_image(128))


def make_regnet() -> Net:
    """Return a small RegNet on images of 128 pixels."""
    config = transformers.RegNetConfig(
        embedding_size=32, hidden_sizes=[48, 96, 192, 432], depths=[1, 2, 4, 2], groups_width=24
    )
    model = transformers.RegNetForImageClassification(config)
    return Net("RegNet", FirstOutput(model, "pixel_values"), make_image(128))


def make_opt() -> Net:
    """Return a narrow OPT on 80 tokens."""
    config = transformers.OPTConfig(
        hidden_size=320,
        num_hidden_layers=4,
        num_attention_heads=5,
        ffn_dim=1280,
        vocab_size=12_000,
        word_embed_proj_dim=320,
    )
    model = transformers.OPTForCausalLM(config)
    inputs = make_tokens(80, config.vocab_size)
    return Net("OPT", FirstOutput(model, "input_ids", use_cache=False), inputs)


TEST_NETS: tuple[Callable[[], Net], ...] = (
    make_bert,
    make_vit,
    make_gpt2,
    make_mobilenet,
    make_resnet,
    make_wav2vec2,
)
"""The six nets of the result."""

DEVELOPMENT_NETS: tuple[Callable[[], Net], ...] = (
    make_distilbert,
    make_convnext,
    make_regnet,
    make_opt,
)
"""Nets on which the method was developed; none of them is in the result."""


def make_net(make: Callable[[], Net]) -> Net:
    """Return a net with weights drawn from a fixed seed, ready for inference."""
    torch.manual_seed(0)
    net = make()
    net.module.eval()
    return net
