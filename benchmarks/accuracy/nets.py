"""Real nets outside the built-in families, with random weights: nothing is downloaded.

``DEV`` was used for development, ``TEST`` for evaluation only. Weaknesses that ``TEST`` showed were
then fixed, so it is no longer held out: ``FRESH``, fixed before any of it was measured, evaluates
the improved estimator. An entry builds its module and inputs on request, so that one that fails
does not affect the others. ``shrink`` returns the same architectures at sizes for a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from joulecast.records import Setup

BuiltNet = tuple[Any, Any, Any]

IMAGE, SMALL_IMAGE = 224, 64


@dataclass(frozen=True)
class Entry:
    """A net of a table.

    Attributes:
        make: Takes the batch size and whether the net is small; returns module, inputs and loss
            (None for cross-entropy).
    """

    name: str
    make: Callable[[int, bool], BuiltNet]
    batch: int
    precision: str
    optimizer: str
    tiny: bool = False

    @property
    def setup(self) -> Setup:
        """How the net is trained."""
        return Setup(batch=self.batch, precision=self.precision, optimizer=self.optimizer)

    def build(self) -> BuiltNet:
        """Return module, inputs and loss, on PyTorch's current default device."""
        return self.make(self.batch, self.tiny)


def shrink(entry: Entry) -> Entry:
    """Return the same architecture, small enough for a CPU."""
    return replace(entry, batch=2, precision="fp32", tiny=True)


# ---------------------------------------------------------------------------------------------
# Builders


def from_torchvision(name: str, **options: Any) -> Callable[[int, bool], BuiltNet]:
    """Return a function that builds a torchvision image net."""

    def make(batch: int, tiny: bool) -> BuiltNet:
        import torch

        models = import_module("torchvision.models")
        side = SMALL_IMAGE if tiny else IMAGE
        sized = {"image_size": side} if name.startswith("vit") else {}
        net = getattr(models, name)(weights=None, **options, **sized)
        return net, torch.randn(batch, 3, side, side), None

    return make


def from_transformers(
    kind: str,
    config: str,
    feed: Callable[[int, bool, Any], Any],
    sizes: dict[str, Any],
    small: dict[str, Any],
) -> Callable[[int, bool], BuiltNet]:
    """Return a function that builds a Hugging Face transformers net.

    Args:
        kind: Name of the module's class.
        config: Name of the configuration's class.
        feed: Takes batch size, whether the net is small, and the configuration; returns inputs.
        sizes: Fields of the configuration that differ from its defaults.
        small: Fields that differ in the small net.
    """

    def make(batch: int, tiny: bool) -> BuiltNet:
        library = import_module("transformers")
        chosen = getattr(library, config)(**{**sizes, **(small if tiny else {})})
        net = getattr(library, kind)(chosen)
        return net, feed(batch, tiny, chosen), None

    return make


def feed_tokens(count: int) -> Callable[[int, bool, Any], Any]:
    """Return a function that makes random tokens."""

    def feed(batch: int, tiny: bool, config: Any) -> Any:
        import torch

        shape = (batch, 16 if tiny else count)
        return {"input_ids": torch.randint(0, config.vocab_size, shape)}

    return feed


def feed_pairs(count: int, answer: int) -> Callable[[int, bool, Any], Any]:
    """Return a function that makes random tokens for encoder and decoder."""

    def feed(batch: int, tiny: bool, config: Any) -> Any:
        import torch

        read, written = (16, 8) if tiny else (count, answer)
        return {
            "input_ids": torch.randint(0, config.vocab_size, (batch, read)),
            "decoder_input_ids": torch.randint(0, config.vocab_size, (batch, written)),
        }

    return feed


def feed_images(batch: int, tiny: bool, config: Any) -> Any:
    """Return random images of the configuration's size."""
    import torch

    return {"pixel_values": torch.randn(batch, 3, config.image_size, config.image_size)}


def feed_sounds(batch: int, tiny: bool, config: Any) -> Any:
    """Return random spectrograms and decoder tokens."""
    import torch

    frames = 2 * config.max_source_positions
    tokens = 8 if tiny else 128
    return {
        "input_features": torch.randn(batch, config.num_mel_bins, frames),
        "decoder_input_ids": torch.randint(0, config.vocab_size, (batch, tokens)),
    }


_SMALL_DECODER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
_SMALL_ENCODER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}


# ---------------------------------------------------------------------------------------------
# Tables


DEV = (
    Entry("shufflenet_v2_x1_0", from_torchvision("shufflenet_v2_x1_0"), 64, "tf32", "sgd"),
    Entry("mnasnet1_0", from_torchvision("mnasnet1_0"), 64, "tf32", "sgd"),
    Entry("wide_resnet50_2", from_torchvision("wide_resnet50_2"), 32, "bf16", "sgd"),
    Entry(
        "googlenet",
        from_torchvision("googlenet", aux_logits=False, init_weights=False),
        64,
        "tf32",
        "adamw",
    ),
    Entry(
        "distilbert",
        from_transformers(
            "DistilBertForMaskedLM",
            "DistilBertConfig",
            feed_tokens(256),
            {},
            {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4, "vocab_size": 512},
        ),
        16,
        "tf32",
        "adamw",
    ),
    Entry(
        "qwen2",
        from_transformers(
            "Qwen2ForCausalLM",
            "Qwen2Config",
            feed_tokens(512),
            {
                "hidden_size": 896,
                "intermediate_size": 2432,
                "num_hidden_layers": 10,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "vocab_size": 32000,
            },
            _SMALL_DECODER,
        ),
        8,
        "bf16",
        "adamw",
    ),
)

TEST = (
    Entry("mobilenet_v2", from_torchvision("mobilenet_v2"), 64, "tf32", "sgd"),
    Entry("efficientnet_b0", from_torchvision("efficientnet_b0"), 64, "tf32", "sgd"),
    Entry("densenet121", from_torchvision("densenet121"), 32, "tf32", "sgd"),
    Entry("resnext50_32x4d", from_torchvision("resnext50_32x4d"), 32, "tf32", "sgd"),
    Entry("regnet_y_1_6gf", from_torchvision("regnet_y_1_6gf"), 64, "tf32", "adamw"),
    Entry("vgg16", from_torchvision("vgg16"), 32, "bf16", "sgd"),
    Entry("convnext_tiny", from_torchvision("convnext_tiny"), 32, "bf16", "adamw"),
    Entry("swin_t", from_torchvision("swin_t"), 32, "tf32", "adamw"),
    Entry("vit_b_16", from_torchvision("vit_b_16"), 32, "bf16", "adamw"),
    Entry(
        "deit_small",
        from_transformers(
            "ViTForImageClassification",
            "ViTConfig",
            feed_images,
            {
                "hidden_size": 384,
                "intermediate_size": 1536,
                "num_attention_heads": 6,
                "num_labels": 1000,
            },
            {
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": SMALL_IMAGE,
            },
        ),
        64,
        "tf32",
        "adamw",
    ),
    Entry(
        "bert_base",
        from_transformers("BertForMaskedLM", "BertConfig", feed_tokens(256), {}, _SMALL_ENCODER),
        16,
        "bf16",
        "adamw",
    ),
    Entry(
        "gpt2",
        from_transformers(
            "GPT2LMHeadModel",
            "GPT2Config",
            feed_tokens(512),
            {},
            {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512},
        ),
        8,
        "bf16",
        "adamw",
    ),
    Entry(
        "llama_gqa",
        from_transformers(
            "LlamaForCausalLM",
            "LlamaConfig",
            feed_tokens(512),
            {
                "hidden_size": 1024,
                "intermediate_size": 2816,
                "num_hidden_layers": 12,
                "num_attention_heads": 16,
                "num_key_value_heads": 4,
                "vocab_size": 32000,
            },
            _SMALL_DECODER,
        ),
        8,
        "bf16",
        "adamw",
    ),
    Entry(
        "t5_small",
        from_transformers(
            "T5ForConditionalGeneration",
            "T5Config",
            feed_pairs(256, 128),
            {},
            {
                "d_model": 64,
                "d_kv": 16,
                "d_ff": 128,
                "num_layers": 2,
                "num_heads": 4,
                "vocab_size": 512,
            },
        ),
        32,
        "tf32",
        "adamw",
    ),
    Entry(
        "whisper_tiny",
        from_transformers(
            "WhisperForConditionalGeneration",
            "WhisperConfig",
            feed_sounds,
            {
                "d_model": 384,
                "encoder_layers": 4,
                "decoder_layers": 4,
                "encoder_attention_heads": 6,
                "decoder_attention_heads": 6,
                "encoder_ffn_dim": 1536,
                "decoder_ffn_dim": 1536,
            },
            {
                "d_model": 64,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "encoder_ffn_dim": 128,
                "decoder_ffn_dim": 128,
                "vocab_size": 512,
                "max_source_positions": 64,
                "pad_token_id": 0,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "decoder_start_token_id": 1,
            },
        ),
        8,
        "bf16",
        "adamw",
    ),
)

_SMALL_PAIR = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": 512,
}
FRESH = (
    Entry("mobilenet_v3_large", from_torchvision("mobilenet_v3_large"), 96, "tf32", "sgd"),
    Entry("efficientnet_v2_s", from_torchvision("efficientnet_v2_s"), 32, "bf16", "adamw"),
    Entry("convnext_small", from_torchvision("convnext_small"), 24, "bf16", "adamw"),
    Entry("regnet_x_800mf", from_torchvision("regnet_x_800mf"), 64, "tf32", "sgd"),
    Entry("vgg13_bn", from_torchvision("vgg13_bn"), 32, "tf32", "sgd"),
    Entry("squeezenet1_1", from_torchvision("squeezenet1_1"), 128, "tf32", "sgd"),
    Entry("swin_s", from_torchvision("swin_s"), 24, "bf16", "adamw"),
    Entry("vit_b_32", from_torchvision("vit_b_32"), 64, "bf16", "adamw"),
    Entry(
        "roberta",
        from_transformers(
            "RobertaForMaskedLM",
            "RobertaConfig",
            feed_tokens(192),
            {
                "hidden_size": 512,
                "intermediate_size": 2048,
                "num_hidden_layers": 8,
                "num_attention_heads": 8,
                "vocab_size": 30000,
            },
            _SMALL_ENCODER,
        ),
        24,
        "tf32",
        "adamw",
    ),
    Entry(
        "gpt2_narrow",
        from_transformers(
            "GPT2LMHeadModel",
            "GPT2Config",
            feed_tokens(384),
            {"n_embd": 640, "n_layer": 10, "n_head": 10, "vocab_size": 32000},
            {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512},
        ),
        12,
        "bf16",
        "adamw",
    ),
    Entry(
        "opt",
        from_transformers(
            "OPTForCausalLM",
            "OPTConfig",
            feed_tokens(384),
            {
                "hidden_size": 768,
                "word_embed_proj_dim": 768,
                "ffn_dim": 3072,
                "num_hidden_layers": 10,
                "num_attention_heads": 12,
                "vocab_size": 32000,
            },
            {
                "hidden_size": 64,
                "word_embed_proj_dim": 64,
                "ffn_dim": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 512,
            },
        ),
        12,
        "bf16",
        "adamw",
    ),
    Entry(
        "gpt_neox",
        from_transformers(
            "GPTNeoXForCausalLM",
            "GPTNeoXConfig",
            feed_tokens(256),
            {
                "hidden_size": 512,
                "intermediate_size": 2048,
                "num_hidden_layers": 8,
                "num_attention_heads": 8,
                "vocab_size": 32000,
            },
            _SMALL_ENCODER,
        ),
        16,
        "tf32",
        "adamw",
    ),
    Entry(
        "mistral_gqa",
        from_transformers(
            "MistralForCausalLM",
            "MistralConfig",
            feed_tokens(512),
            {
                "hidden_size": 768,
                "intermediate_size": 2048,
                "num_hidden_layers": 10,
                "num_attention_heads": 12,
                "num_key_value_heads": 4,
                "vocab_size": 32000,
            },
            _SMALL_DECODER,
        ),
        12,
        "bf16",
        "adamw",
    ),
    Entry(
        "bart",
        from_transformers(
            "BartForConditionalGeneration",
            "BartConfig",
            feed_pairs(256, 128),
            {
                "d_model": 512,
                "encoder_layers": 4,
                "decoder_layers": 4,
                "encoder_attention_heads": 8,
                "decoder_attention_heads": 8,
                "encoder_ffn_dim": 2048,
                "decoder_ffn_dim": 2048,
                "vocab_size": 30000,
            },
            _SMALL_PAIR,
        ),
        24,
        "tf32",
        "adamw",
    ),
    Entry(
        "t5_thin",
        from_transformers(
            "T5ForConditionalGeneration",
            "T5Config",
            feed_pairs(192, 96),
            {"d_model": 384, "d_kv": 64, "d_ff": 1024, "num_layers": 6, "num_heads": 6},
            {
                "d_model": 64,
                "d_kv": 16,
                "d_ff": 128,
                "num_layers": 2,
                "num_heads": 4,
                "vocab_size": 512,
            },
        ),
        32,
        "bf16",
        "adamw",
    ),
)

TABLES = {"dev": DEV, "test": TEST, "fresh": FRESH}
