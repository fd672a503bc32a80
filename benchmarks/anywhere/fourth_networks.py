"""The networks of the fourth test, fixed before any of them was measured or estimated.

They are for devices that were never measured (``benchmarks/devices``): models of torchvision and
transformers as they come, none of which is in an earlier table. They alternate between domains and
precisions, so that the first ones are a fair sample if device time runs out.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from vision_networks import make_torchvision

from training_examples import BenchmarkNetwork, TrainingExample, take_loss

VISION, HF = "torchvision", "transformers"


def make_pythia(batch: int) -> TrainingExample:
    """Return a GPT-NeoX of the size of Pythia-410M."""
    library: Any = import_module("transformers")
    config = library.GPTNeoXConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    return _make_language_model(library.GPTNeoXForCausalLM(config), config.vocab_size, batch, 512)


def make_opt(batch: int) -> TrainingExample:
    """Return an OPT of 125 million parameters."""
    library: Any = import_module("transformers")
    config = library.OPTConfig()
    return _make_language_model(library.OPTForCausalLM(config), config.vocab_size, batch, 256)


def make_roberta(batch: int) -> TrainingExample:
    """Return a RoBERTa base that fills in masked tokens."""
    library: Any = import_module("transformers")
    config = library.RobertaConfig(vocab_size=50265, max_position_embeddings=514)
    return _make_language_model(library.RobertaForMaskedLM(config), config.vocab_size, batch, 128)


def make_bart(batch: int) -> TrainingExample:
    """Return a BART base that summarises."""
    library: Any = import_module("transformers")
    config = library.BartConfig(
        encoder_layers=6, decoder_layers=6, d_model=768, encoder_ffn_dim=3072, decoder_ffn_dim=3072
    )
    inputs = {
        "input_ids": torch.randint(3, config.vocab_size, (batch, 512)),
        "labels": torch.randint(3, config.vocab_size, (batch, 64)),
    }
    return TrainingExample(library.BartForConditionalGeneration(config), inputs, take_loss)


def make_segformer(batch: int) -> TrainingExample:
    """Return a SegFormer B1 that labels every pixel."""
    library: Any = import_module("transformers")
    config = library.SegformerConfig(
        hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=256, num_labels=19
    )
    inputs = {
        "pixel_values": torch.randn(batch, 3, 256, 256),
        "labels": torch.randint(0, 19, (batch, 256, 256)),
    }
    return TrainingExample(library.SegformerForSemanticSegmentation(config), inputs, take_loss)


def _make_language_model(
    module: torch.nn.Module, vocabulary: int, batch: int, tokens: int
) -> TrainingExample:
    ids = torch.randint(3, vocabulary, (batch, tokens))
    return TrainingExample(module, {"input_ids": ids, "labels": ids.clone()}, take_loss)


FOURTH_NETWORKS = (
    BenchmarkNetwork("pythia_410m", "language", make_pythia, 16, "bf16", "adamw", HF, 1),
    BenchmarkNetwork("roberta_base", "language", make_roberta, 32, "tf32", "adamw", HF, 1),
    BenchmarkNetwork(
        "efficientnet_b4", "vision", make_torchvision("efficientnet_b4"), 32, "bf16", "sgd", VISION
    ),
    BenchmarkNetwork("opt_125m", "language", make_opt, 4, "tf32", "adamw", HF, 1),
    BenchmarkNetwork("vgg16_bn", "vision", make_torchvision("vgg16_bn"), 32, "fp32", "sgd", VISION),
    BenchmarkNetwork("swin_b", "vision", make_torchvision("swin_b"), 64, "bf16", "adamw", VISION),
    BenchmarkNetwork("bart_base", "language", make_bart, 32, "bf16", "adamw", HF, 1),
    BenchmarkNetwork(
        "regnet_x_3_2gf", "vision", make_torchvision("regnet_x_3_2gf"), 128, "tf32", "sgd", VISION
    ),
    BenchmarkNetwork("segformer_b1", "vision", make_segformer, 32, "tf32", "adamw", HF, 1),
    BenchmarkNetwork(
        "shufflenet_v2_x2_0",
        "vision",
        make_torchvision("shufflenet_v2_x2_0"),
        128,
        "bf16",
        "sgd",
        VISION,
    ),
    BenchmarkNetwork(
        "densenet201", "vision", make_torchvision("densenet201"), 64, "tf32", "sgd", VISION
    ),
    BenchmarkNetwork(
        "convnext_large", "vision", make_torchvision("convnext_large"), 64, "bf16", "adamw", VISION
    ),
    BenchmarkNetwork(
        "r3d_18", "video", make_torchvision("r3d_18", (3, 16, 112, 112)), 16, "tf32", "sgd", VISION
    ),
    BenchmarkNetwork(
        "mnasnet1_3", "vision", make_torchvision("mnasnet1_3"), 128, "fp32", "sgd", VISION
    ),
)
